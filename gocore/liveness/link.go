package liveness

import (
	"errors"
	"io"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/paddlempi/paddlempi/gocore/status"
)

// link is a connection to another rank. First the rank that makes it sends its hello, and the other one
// its reply. The first may have tried several addresses of the other: it then sends begin on the
// connection that it takes, and the other one too. From then on both sides send facts, first all those
// that they know.
type link struct {
	l      *Liveness
	socket *socket
	rank   int           // of the other end
	made   bool          // this rank made the connection
	proved chan struct{} // closed when the other end has shown its token and sent begin
	ended  chan struct{} // closed when the connection is gone
	closed chan struct{} // closed when this end is closed

	// mu of Liveness guards this.
	dropped bool // this rank closes the connection: its end says nothing

	mu       sync.Mutex
	out      []byte // what is still to be sent
	flushing bool   // a goroutine sends it
	closing  bool   // close the socket when out is sent
}

const (
	// strangerLimit is how long a process that connects may take to show its token.
	strangerLimit = 10 * time.Second
	// strangers is how many such processes are served at once.
	strangers = 64
	// grace is the time between two attempts to connect to a rank that refuses. Meanwhile the news may
	// come that it has left.
	grace = 500 * time.Millisecond
	// refusals is the number of refused attempts after which a rank counts as dead.
	refusals = 2
	// closeLimit is how long the last messages to a rank may take.
	closeLimit = 200 * time.Millisecond
)

var errStranger = errors.New("another process answers there")

func newLink(l *Liveness, s *socket, rank int, made bool) *link {
	return &link{l: l, socket: s, rank: rank, made: made, proved: make(chan struct{}), ended: make(chan struct{}), closed: make(chan struct{})}
}

// queue sends a fact, and does not wait.
func (k *link) queue(f fact) { k.send(f.encode()) }

func (k *link) send(b []byte) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.out = append(k.out, b...)
	if !k.flushing && !k.closing {
		k.flushing = true
		go k.flush()
	}
}

// flush sends until nothing is left. After an error it drops the rest: the reader sees the error too.
func (k *link) flush() {
	for {
		k.mu.Lock()
		b := k.out
		k.out = nil
		if len(b) == 0 {
			k.flushing = false
			if k.closing {
				k.close()
			}
			k.mu.Unlock()
			return
		}
		k.mu.Unlock()
		_ = k.socket.write(b)
	}
}

// closeWhenSent closes the connection once what was queued is sent, or after closeLimit.
func (k *link) closeWhenSent() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closing {
		return
	}
	k.closing = true
	if !k.flushing {
		k.close()
		return
	}
	_ = k.socket.file.SetWriteDeadline(time.Now().Add(closeLimit))
}

func (k *link) close() {
	k.socket.close()
	close(k.closed)
}

// drop closes the connection to a rank that is gone. The caller holds mu of Liveness.
func (k *link) drop() {
	if !k.dropped {
		k.dropped = true
		k.closeWhenSent()
	}
}

// serve accepts connections until Close.
func (l *Liveness) serve() {
	room := make(chan struct{}, strangers)
	for {
		room <- struct{}{}
		s, err := l.listener.accept()
		if err != nil {
			<-room
			select {
			case <-l.done:
				return
			case <-time.After(100 * time.Millisecond): // no descriptor, for instance
			}
			continue
		}
		go func() {
			k, ok := l.greet(s)
			<-room
			if ok {
				l.read(k)
			}
		}()
	}
}

// greet lets a rank in that has connected, if it shows its token. It reads nothing behind a wrong one.
func (l *Liveness) greet(s *socket) (*link, bool) {
	var token [tokenBytes]byte
	var hello [helloBytes]byte
	_ = s.file.SetReadDeadline(time.Now().Add(strangerLimit))
	if _, err := io.ReadFull(s.file, token[:]); err != nil || !same(token, l.tokens.hello) {
		s.close()
		return nil, false
	}
	if _, err := io.ReadFull(s.file, hello[:]); err != nil {
		s.close()
		return nil, false
	}
	from, to := word(hello[:]), word(hello[4:])
	if from >= len(l.places) || from == l.tree.rank || to != l.tree.rank {
		s.close()
		return nil, false
	}
	k := newLink(l, s, from, false)
	close(k.proved)
	k.send(l.tokens.replyOf(l.tree.rank))
	var first [factBytes]byte
	if _, err := io.ReadFull(s.file, first[:]); err != nil {
		k.closeWhenSent()
		return nil, false
	}
	switch string(first[:]) {
	case string(fact{begin, from, from}.encode()):
	case string(fact{ask, from, from}.encode()):
		l.reply(k)
		return nil, false
	default:
		k.closeWhenSent()
		return nil, false
	}
	_ = s.file.SetReadDeadline(time.Time{})
	return k, l.add(k)
}

// add begins to exchange facts on a connection. It returns false if this rank has closed, or the other
// one is gone: then the other one is told so.
func (l *Liveness) add(k *link) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		k.closeWhenSent()
		return false
	}
	for other := range l.links {
		if other.rank == k.rank && other.made == k.made {
			other.drop() // the rank has connected anew
		}
	}
	living := l.living(k.rank)
	if living {
		k.queue(fact{begin, l.tree.rank, l.tree.rank})
	}
	for _, f := range l.facts {
		k.queue(f)
	}
	if !living {
		k.closeWhenSent()
		return false
	}
	l.links[k] = true
	return true
}

// read takes in facts until the connection ends.
func (l *Liveness) read(k *link) {
	for {
		f, err := k.receive()
		if err == nil && f.kind == begin {
			if !k.isProved() {
				close(k.proved)
				continue
			}
			err = errRubbish
		}
		if err != nil {
			l.end(k, err)
			return
		}
		l.mu.Lock()
		if !k.dropped {
			l.learn(f, k)
		}
		l.mu.Unlock()
	}
}

var errRubbish = errors.New("no message of this library")

// receive reads a fact.
func (k *link) receive() (fact, error) {
	var b [factBytes]byte
	if _, err := io.ReadFull(k.socket.file, b[:]); err != nil {
		return fact{}, err
	}
	f, ok := decode(b, len(k.l.places), len(k.l.tree.ranks))
	if !ok {
		return fact{}, errRubbish
	}
	return f, nil
}

// end notes that a connection is gone, and tells the others why, if that means a death.
func (l *Liveness) end(k *link, err error) {
	k.closeWhenSent()
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.links[k] {
		return
	}
	delete(l.links, k)
	close(k.ended)
	switch {
	case l.closed || l.over || k.dropped || !l.living(k.rank):
	case errors.Is(err, errRubbish):
		l.learn(fact{rubbish, k.rank, l.tree.rank}, nil)
	case !k.isProved():
		l.missed(k.rank, err)
	case unreachable(err):
		l.loses(k.rank)
	default:
		l.learn(fact{died, k.rank, l.tree.rank}, nil)
	}
	l.wakeUp()
}

func (k *link) isProved() bool {
	select {
	case <-k.proved:
		return true
	default:
		return false
	}
}

// loses notes that a rank's host does not answer. On the same node only the rank is concerned. The
// caller holds mu.
func (l *Liveness) loses(rank int) {
	if node := l.tree.node[rank]; node != l.tree.node[l.tree.rank] {
		l.learn(fact{lost, node, l.tree.rank}, nil)
	} else {
		l.learn(fact{died, rank, l.tree.rank}, nil)
	}
}

// missed notes that a rank could not be connected to. The caller holds mu.
func (l *Liveness) missed(rank int, err error) {
	switch {
	case unable(err):
	case unreachable(err):
		l.loses(rank)
		return
	default:
		if l.failures[rank]++; l.failures[rank] >= refusals {
			l.learn(fact{died, rank, l.tree.rank}, nil)
			return
		}
	}
	l.retry = l.after(grace)
}

// keep makes the connections that this rank needs when other ranks are gone.
func (l *Liveness) keep() {
	for {
		select {
		case <-l.done:
			return
		case <-l.wake:
		}
		for want := l.wanted(); len(want) > 0; want = l.wanted() {
			var all sync.WaitGroup
			for _, rank := range want {
				all.Add(1)
				go func() {
					defer all.Done()
					if _, err := l.join(rank); err != nil {
						l.mu.Lock()
						l.missed(rank, err)
						l.mu.Unlock()
					}
				}()
			}
			all.Wait()
		}
	}
}

// wanted returns the ranks to which this one should connect now. The first is its parent. When a rank
// is gone, its children connect to this rank if they live. One that has not come after a while may have
// died together with its parent, so that nobody saw it, or may be stopped.
func (l *Liveness) wanted() (want []int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || l.over || len(l.gone) == 0 || time.Now().Before(l.retry) {
		return nil
	}
	linked := map[int]bool{}
	for k := range l.links {
		linked[k.rank] = true
	}
	parent := l.tree.parent(l.tree.rank, l.living)
	if parent >= 0 && !linked[parent] {
		want = append(want, parent)
	}
	if time.Now().Before(l.adopt) {
		return want
	}
	for r := range l.places {
		if r != l.tree.rank && !linked[r] && l.living(r) && l.tree.parent(r, l.living) == l.tree.rank {
			want = append(want, r)
		}
	}
	return want
}

// addresses returns where a rank listens.
func (l *Liveness) addresses(rank int) []netip.Addr {
	addresses := l.places[rank].Addresses
	if l.tree.node[rank] == l.tree.node[l.tree.rank] {
		addresses = append([]netip.Addr{loopback}, addresses...)
	}
	return addresses
}

// join connects to a rank, at the address that answers first.
func (l *Liveness) join(rank int) (*link, error) {
	place, addresses := l.places[rank], l.addresses(rank)
	type attempt struct {
		s      *socket
		proved bool
		err    error
	}
	attempts := make(chan attempt, len(addresses))
	for _, a := range addresses {
		go func() {
			s, err := dial(netip.AddrPortFrom(a, place.Port), l.limits)
			if err != nil {
				attempts <- attempt{err: err}
				return
			}
			err = l.ask(s, rank)
			if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
				s.close()
				s = nil
			}
			attempts <- attempt{s, err == nil, err}
		}()
	}
	var best attempt
	for i := range addresses {
		a := <-attempts
		switch {
		case a.proved || a.s != nil && best.s == nil:
			if best.s != nil {
				best.s.close()
			}
			best = a
		case a.s != nil:
			a.s.close()
		case best.s == nil && (best.err == nil || unreachable(best.err)):
			best.err = a.err // an address that refuses says more than one that does not answer
		}
		if a.proved {
			left := len(addresses) - i - 1
			go func() {
				for range left {
					if a := <-attempts; a.s != nil {
						a.s.close()
					}
				}
			}()
			break
		}
	}
	if best.s == nil {
		if best.err == nil {
			best.err = status.New(status.Unsupported, "rank %d has no address", rank)
		}
		return nil, best.err
	}
	k := newLink(l, best.s, rank, true)
	if !l.add(k) {
		return nil, errStranger
	}
	go func() {
		// A process that is stopped answers when it goes on.
		if !best.proved {
			if err := l.answer(k.socket, rank); err != nil {
				l.end(k, err)
				return
			}
		}
		l.read(k)
	}()
	return k, nil
}

// ask sends the hello on a new connection, and waits for the reply for a while. It returns
// os.ErrDeadlineExceeded if none came, and any other error if the connection is of no use.
func (l *Liveness) ask(s *socket, rank int) error {
	if err := s.write(l.tokens.helloOf(l.tree.rank, rank)); err != nil {
		return err
	}
	_ = s.file.SetReadDeadline(time.Now().Add(l.limits.dial))
	err := l.answer(s, rank)
	_ = s.file.SetReadDeadline(time.Time{})
	return err
}

// answer reads the reply of a rank.
func (l *Liveness) answer(s *socket, rank int) error {
	var token [tokenBytes]byte
	var from [replyBytes]byte
	if n, err := io.ReadFull(s.file, token[:]); err != nil {
		if n > 0 {
			return errStranger // and not a deadline, after which answer is called again
		}
		return err
	}
	if !same(token, l.tokens.reply) {
		return errStranger
	}
	if _, err := io.ReadFull(s.file, from[:]); err != nil || word(from[:]) != rank {
		return errStranger
	}
	return nil
}

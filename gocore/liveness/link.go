package liveness

import (
	"bytes"
	"cmp"
	"errors"
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
	_ = k.socket.conn.SetWriteDeadline(time.Now().Add(closeLimit))
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
		s, err := accept(l.listener, l.limits)
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

// greet lets a rank in that has connected, if it shows its token.
func (l *Liveness) greet(s *socket) (*link, bool) {
	var from, to int
	_ = s.conn.SetReadDeadline(time.Now().Add(strangerLimit))
	if err := s.shown(l.tokens.hello, &from, &to); err != nil || from >= len(l.places) || from == l.tree.rank || to != l.tree.rank {
		s.close()
		return nil, false
	}
	k := newLink(l, s, from, false)
	close(k.proved)
	k.send(l.tokens.reply.with(l.tree.rank))
	first := make([]byte, factBytes)
	err := s.read(first)
	switch {
	case err == nil && bytes.Equal(first, fact{begin, from, from}.encode()):
		_ = s.conn.SetReadDeadline(time.Time{})
		return k, l.add(k)
	case err == nil && bytes.Equal(first, fact{ask, from, from}.encode()):
		l.reply(k)
	}
	k.closeWhenSent()
	return nil, false
}

// add begins to exchange facts on a connection. It returns false if this rank has closed, or the other
// one is gone: then the other one is told so.
func (l *Liveness) add(k *link) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.open {
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
	if err := k.socket.read(b[:]); err != nil {
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
	case !l.open || l.over || k.dropped || !l.living(k.rank):
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
	if !l.open || l.over || len(l.gone) == 0 || time.Now().Before(l.retry) {
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
func (l *Liveness) addresses(rank int) (list []netip.AddrPort) {
	place := l.places[rank]
	if l.tree.node[rank] == l.tree.node[l.tree.rank] {
		list = append(list, netip.AddrPortFrom(loopback, place.Port))
	}
	for _, a := range place.Addresses {
		list = append(list, netip.AddrPortFrom(a, place.Port))
	}
	return list
}

// join connects to a rank, at the address that answers first.
func (l *Liveness) join(rank int) (*link, error) {
	type attempt struct {
		s   *socket
		err error
	}
	attempts, over := make(chan attempt), make(chan struct{})
	addresses := l.addresses(rank)
	for _, at := range addresses {
		go func() {
			s, err := l.call(at, rank, time.Now().Add(l.limits.dial))
			select {
			case attempts <- attempt{s, err}:
			case <-over:
				s.close()
			}
		}()
	}
	var best attempt
	for range addresses {
		a := <-attempts
		switch {
		case a.s != nil && (best.s == nil || a.err == nil):
			best.s.close()
			best = a
		case best.s == nil && (best.err == nil || unreachable(best.err)):
			best = a // an address that refuses says more than one that does not answer
		default:
			a.s.close()
		}
		if best.s != nil && best.err == nil {
			break
		}
	}
	close(over)
	if best.s == nil {
		return nil, cmp.Or(best.err, error(status.New(status.Unsupported, "rank %d has no address", rank)))
	}
	k := newLink(l, best.s, rank, true)
	if !l.add(k) {
		return nil, errStranger
	}
	go func() {
		err := best.err
		if err != nil { // a process that is stopped answers when it goes on
			err = l.answered(k.socket, rank)
		}
		if err != nil {
			l.end(k, err)
			return
		}
		l.read(k)
	}()
	return k, nil
}

// call connects to an address of a rank, sends the hello, and waits for the reply. If none has come at the deadline, it returns
// the connection with os.ErrDeadlineExceeded. After any other error the connection is of no use.
func (l *Liveness) call(at netip.AddrPort, rank int, deadline time.Time) (*socket, error) {
	s, err := dial(at, l.limits)
	if err != nil {
		return nil, err
	}
	_ = s.conn.SetReadDeadline(deadline)
	if err = s.write(l.tokens.hello.with(l.tree.rank, rank)); err == nil {
		err = l.answered(s, rank)
	}
	_ = s.conn.SetReadDeadline(time.Time{})
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		s.close()
		return nil, err
	}
	return s, err
}

// answered reads the reply of a rank.
func (l *Liveness) answered(s *socket, rank int) error {
	var from int
	err := s.shown(l.tokens.reply, &from)
	if err == nil && from != rank {
		err = errStranger
	}
	return err
}

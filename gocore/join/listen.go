package join

import (
	"context"
	"crypto/hmac"
	"io"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/paddlempi/paddlempi/gocore/status"
)

const (
	// strangerLimit is how long a process that connects may take to show that it knows the secret.
	strangerLimit = 5 * time.Second
	// strangers is how many such processes are served at once. If more come, those that have kept the listener waiting
	// longest are turned away: a job that knows the secret shows it within a moment.
	strangers = 256
)

// tcpListener waits for another job.
type tcpListener struct {
	tcp *net.TCPListener

	mu      sync.Mutex
	open    map[*net.TCPConn]bool // connections of processes that were not let in yet
	waiting []*net.TCPConn        // those that have not shown the secret, the oldest first
	closed  bool

	turn sync.Mutex // held while a job that knows the secret is let in
	full bool       // one was let in; turn guards it
}

// listen listens at an address, host:port. An empty host stands for all interfaces.
func listen(what, address string) (*tcpListener, error) {
	if err := checkAddress(what, address); err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, status.New(status.Argument, "%s: address=%q: this process cannot listen there: %v", what, address, err)
	}
	t := l.(*net.TCPListener)
	note(t)
	return &tcpListener{tcp: t, open: map[*net.TCPConn]bool{}}, nil
}

// checkAddress returns an error unless address is host:port.
func checkAddress(what, address string) error {
	_, port, err := net.SplitHostPort(address)
	if err != nil || port == "" {
		return status.New(status.Argument, "%s: address=%q is no host:port", what, address)
	}
	return nil
}

// Address returns where the listener is.
func (l *tcpListener) Address() string { return l.tcp.Addr().String() }

// Close turns away all that wait.
func (l *tcpListener) Close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	l.closed = true
	forget(l.tcp)
	_ = l.tcp.Close()
	for c := range l.open {
		_ = c.SetDeadline(time.Unix(1, 0)) // its goroutine closes it
	}
}

// Accept waits until a job comes that knows the secret and fits this one, and returns it. Others are turned away. It
// closes the listener. Its error is that of ctx.
func (l *tcpListener) Accept(ctx context.Context, secret []byte, mine card) (*peer, error) {
	stop := context.AfterFunc(ctx, l.Close)
	defer stop()
	var all sync.WaitGroup
	defer all.Wait()
	defer l.Close()
	came, over := make(chan *peer), make(chan struct{})
	defer close(over)
	all.Add(1)
	go func() {
		defer all.Done()
		for {
			c, err := l.tcp.AcceptTCP()
			if err != nil {
				if l.isClosed() {
					return
				}
				select {
				case <-over:
					return
				case <-time.After(100 * time.Millisecond): // no descriptor, for instance
				}
				continue
			}
			if !l.enter(c) {
				_ = c.Close()
				return
			}
			all.Add(1)
			go func() {
				defer all.Done()
				if p := l.greet(c, secret, mine); p != nil {
					select {
					case came <- p:
					case <-over:
						p.Close()
					}
				}
			}()
		}
	}()
	select {
	case p := <-came:
		return p, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (l *tcpListener) isClosed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.closed
}

// enter notes a process that has connected. It returns false if the listener is closed.
func (l *tcpListener) enter(c *net.TCPConn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	note(c)
	if len(l.waiting) >= strangers {
		_ = l.waiting[0].SetDeadline(time.Unix(1, 0))
		l.waiting = l.waiting[1:]
	}
	_ = c.SetDeadline(time.Now().Add(strangerLimit))
	l.waiting, l.open[c] = append(l.waiting, c), true
	return true
}

// proved takes a process off the list of those that make room for others: it knows the secret.
func (l *tcpListener) proved(c *net.TCPConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if i := slices.Index(l.waiting, c); i >= 0 {
		l.waiting = slices.Delete(l.waiting, i, i+1)
	}
}

// greet lets a process in that shows the secret, and fits. It returns nil if it was turned away.
func (l *tcpListener) greet(c *net.TCPConn, secret []byte, mine card) (let *peer) {
	defer func() {
		l.proved(c)
		l.mu.Lock()
		delete(l.open, c)
		l.mu.Unlock()
		if let == nil {
			forget(c)
			_ = c.Close()
		}
	}()
	listener, err := newNonce()
	if err != nil {
		return nil
	}
	if _, err := c.Write(opening(listener)); err != nil {
		return nil
	}
	var hello [helloBytes]byte
	if _, err := io.ReadFull(c, hello[:greetingBytes]); err != nil {
		return nil
	}
	caller, is, theirs := opened(hello[:])
	if !is {
		return nil
	}
	if theirs != version { // what follows may have another form
		_, _ = c.Write([]byte{otherVersion})
		return nil
	}
	if _, err := io.ReadFull(c, hello[greetingBytes:]); err != nil {
		return nil
	}
	if !hmac.Equal(hello[greetingBytes:], proof(secret, "caller", listener, caller)) {
		_, _ = c.Write([]byte{wrongSecret})
		return nil
	}
	l.proved(c)
	// Another job may be ahead, and may fail yet.
	l.turn.Lock()
	defer l.turn.Unlock()
	if l.full {
		_, _ = c.Write([]byte{busy})
		return nil
	}
	if _, err := c.Write(append([]byte{welcome}, proof(secret, "listener", listener, caller)...)); err != nil {
		return nil
	}
	p := newPeer(c, secret, "listener", listener, caller)
	if p.introduce(mine) != nil {
		return nil
	}
	l.full = true
	return p
}

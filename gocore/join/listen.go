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

// strangers is how many processes that have not shown the secret are served at once. If more come, those that have kept the
// listener waiting longest are turned away: a job that knows the secret shows it within a moment.
const strangers = 256

// tcpListener waits for another job.
type tcpListener struct {
	*net.TCPListener

	mu      sync.Mutex
	waiting []*net.TCPConn // processes that have not shown the secret, the oldest first

	turn sync.Mutex // held while a job that knows the secret is let in
	full bool       // one was let in; turn guards it
}

// listen listens at an address, host:port. An empty host stands for all interfaces.
func listen(what, address string) (*tcpListener, error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, status.New(status.Argument, "%s: address=%q: this process cannot listen there: %v", what, address, err)
	}
	note(l.(*net.TCPListener))
	return &tcpListener{TCPListener: l.(*net.TCPListener)}, nil
}

// admit waits until a job comes that knows the secret and fits this one, and returns it. Others are turned away. It closes
// the listener. Its error is that of ctx.
func (l *tcpListener) admit(ctx context.Context, secret []byte, mine card) (*peer, error) {
	ctx, stop := context.WithCancel(ctx)
	came := make(chan *peer)
	var all sync.WaitGroup
	defer all.Wait()
	defer hangUp(l)
	defer stop()
	all.Add(1)
	go func() {
		defer all.Done()
		for ctx.Err() == nil {
			c, err := l.AcceptTCP()
			if err != nil { // the listener was closed, or there is no descriptor, for instance
				select {
				case <-ctx.Done():
				case <-time.After(100 * time.Millisecond):
				}
				continue
			}
			l.enter(c)
			all.Add(1)
			go func() {
				defer all.Done()
				p, err := getToKnow(ctx, c, func() (*peer, error) { return l.greet(c, secret, mine) })
				l.drop(c)
				if err != nil {
					return
				}
				select {
				case came <- p:
				case <-ctx.Done():
					p.Close()
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

// enter notes a process that has connected. Too many of them make it turn the oldest away.
func (l *tcpListener) enter(c *net.TCPConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	note(c)
	if len(l.waiting) >= strangers {
		hangUp(l.waiting[0])
		l.waiting = l.waiting[1:]
	}
	l.waiting = append(l.waiting, c)
}

// drop takes a process off the list of those that make room for others.
func (l *tcpListener) drop(c *net.TCPConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting = slices.DeleteFunc(l.waiting, func(other *net.TCPConn) bool { return other == c })
}

// greet lets a process in that shows the secret, and fits.
func (l *tcpListener) greet(c *net.TCPConn, secret []byte, mine card) (*peer, error) {
	listener := newNonce()
	if _, err := c.Write(opening(listener)); err != nil {
		return nil, err
	}
	caller, err := readOpening(c)
	if err != nil {
		return nil, err
	}
	var shown [proofBytes]byte
	if _, err := io.ReadFull(c, shown[:]); err != nil {
		return nil, err
	}
	if !hmac.Equal(shown[:], proof(secret, "caller", listener, caller)) {
		return nil, turnAway(c, wrongSecret)
	}
	l.drop(c)
	// Another job may be ahead, and may fail yet.
	l.turn.Lock()
	defer l.turn.Unlock()
	if l.full {
		return nil, turnAway(c, busy)
	}
	if _, err := c.Write(append([]byte{welcome}, proof(secret, "listener", listener, caller)...)); err != nil {
		return nil, err
	}
	p := &peer{conn: c, key: proof(secret, "frames", listener, caller), me: "listener", other: "caller"}
	p, err = p.introduce(mine)
	l.full = err == nil
	return p, err
}

// turnAway tells a process why it is not let in.
func turnAway(c *net.TCPConn, verdict byte) error {
	_, _ = c.Write([]byte{verdict})
	return refusal{"it was turned away"}
}

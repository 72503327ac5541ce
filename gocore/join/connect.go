package join

import (
	"context"
	"crypto/hmac"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"time"

	"github.com/paddlempi/paddlempi/gocore/status"
)

const (
	// firstPause is how long a caller waits before it tries again. It doubles, up to lastPause.
	firstPause = 20 * time.Millisecond
	lastPause  = 500 * time.Millisecond
)

// connect connects to the job that listens at an address, host:port. It tries again while nobody listens there, and while
// the listener lets another job in. It returns an error of ctx together with why the last attempt failed.
func connect(ctx context.Context, what, address string, secret []byte, mine card) (*peer, error) {
	if err := checkAddress(what, address); err != nil {
		return nil, err
	}
	pause := firstPause
	for {
		p, err := attempt(ctx, address, secret, mine)
		if err == nil {
			return p, nil
		}
		var refused refusal
		if errors.As(err, &refused) {
			return nil, status.New(status.Argument, "%s: address=%q: %v", what, address, err)
		}
		// Callers that were turned away together come again one by one.
		timer := time.NewTimer(pause/2 + rand.N(pause))
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil, &unanswered{why: ctx.Err(), last: printable(err.Error())}
		case <-timer.C:
		}
		pause = min(2*pause, lastPause)
	}
}

// unanswered is the error of connect when its context is done.
type unanswered struct {
	why  error
	last string // why the last attempt failed
}

func (u *unanswered) Error() string { return fmt.Sprintf("%v; the last attempt: %s", u.why, u.last) }
func (u *unanswered) Unwrap() error { return u.why }

// attempt connects once. A refusal says that another attempt will not help.
func attempt(ctx context.Context, address string, secret []byte, mine card) (let *peer, err error) {
	dialer := net.Dialer{Timeout: strangerLimit}
	conn, err := dialer.DialContext(ctx, "tcp", address)
	var name *net.DNSError
	if errors.As(err, &name) && name.IsNotFound {
		return nil, refusal{"there is no host of that name"}
	}
	if err != nil {
		return nil, err
	}
	c := conn.(*net.TCPConn)
	note(c)
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	defer func() {
		stop()
		if let == nil {
			forget(c)
			_ = c.Close()
		}
	}()
	if err := c.SetDeadline(time.Now().Add(strangerLimit)); err != nil {
		return nil, err
	}
	if ctx.Err() != nil { // its function may have run before
		return nil, ctx.Err()
	}
	var greeting [greetingBytes]byte
	if _, err := io.ReadFull(c, greeting[:]); err != nil {
		return nil, fmt.Errorf("no greeting: %w", err)
	}
	listener, is, theirs := opened(greeting[:])
	switch {
	case !is:
		return nil, refusal{"what listens there is no job of this library"}
	case theirs != version:
		return nil, refusal{fmt.Sprintf("the job there has another version of paddlempi (%d, and this one %d)", theirs, version)}
	}
	caller, err := newNonce()
	if err != nil {
		return nil, err
	}
	if _, err := c.Write(append(opening(caller), proof(secret, "caller", listener, caller)...)); err != nil {
		return nil, err
	}
	var verdict [1 + proofBytes]byte
	if _, err := io.ReadFull(c, verdict[:1]); err != nil {
		return nil, fmt.Errorf("no answer: %w", err)
	}
	switch verdict[0] {
	case welcome:
	case wrongSecret:
		return nil, refusal{"the job there has another secret"}
	case otherVersion:
		return nil, refusal{"the job there has another version of paddlempi"}
	case busy:
		return nil, errors.New("another job was let in")
	default:
		return nil, refusal{"what listens there is no job of this library"}
	}
	if _, err := io.ReadFull(c, verdict[1:]); err != nil {
		return nil, err
	}
	if !hmac.Equal(verdict[1:], proof(secret, "listener", listener, caller)) {
		return nil, refusal{"what listens there does not know the secret"}
	}
	p := newPeer(c, secret, "caller", listener, caller)
	if err := p.introduce(mine); err != nil {
		return nil, err
	}
	return p, nil
}

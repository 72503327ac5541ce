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
)

const (
	// firstPause is how long a caller waits before it tries again. It doubles, up to lastPause.
	firstPause = 20 * time.Millisecond
	lastPause  = 500 * time.Millisecond
)

// connect connects to the job that listens at an address, host:port. It tries again while nobody listens there, and while
// the listener lets another job in. Its error is why it is no use to try again, a refusal, or why the last attempt has failed
// when ctx is done.
func connect(ctx context.Context, address string, secret []byte, mine card) (*peer, error) {
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		p, err := attempt(ctx, address, secret, mine)
		var refused refusal
		if err == nil || errors.As(err, &refused) {
			return p, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(pause/2 + rand.N(pause)): // callers that were turned away together come again one by one
		}
	}
}

// attempt connects once. A refusal says that another attempt will not help.
func attempt(ctx context.Context, address string, secret []byte, mine card) (*peer, error) {
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
	return getToKnow(ctx, c, func() (*peer, error) {
		listener, err := readOpening(c)
		if err != nil {
			return nil, err
		}
		caller := newNonce()
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
		case busy:
			return nil, errors.New("another job was let in")
		default:
			return nil, errNoJob
		}
		if _, err := io.ReadFull(c, verdict[1:]); err != nil {
			return nil, err
		}
		if !hmac.Equal(verdict[1:], proof(secret, "listener", listener, caller)) {
			return nil, refusal{"what listens there does not know the secret"}
		}
		p := &peer{conn: c, key: proof(secret, "frames", listener, caller), me: "caller", other: "listener"}
		return p.introduce(mine)
	})
}

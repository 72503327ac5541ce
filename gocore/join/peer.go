package join

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/paddlempi/paddlempi/gocore/descriptors"
)

// peer is the other job, once both have shown the secret; nil stands for no job. Its methods are for one goroutine, except for
// Gone and Close.
type peer struct {
	card card // what it tells of itself

	conn      *net.TCPConn
	key       []byte      // of the codes of frames
	me, other string      // "listener" and "caller", or the other way round
	out, in   uint64      // numbers of the next frames
	settled   atomic.Bool // there is a world, as this party sees it
}

// code is what proves that a frame is this one, of this sender, and unchanged.
func (p *peer) code(sender string, number uint64, kind byte, body []byte) []byte {
	h := hmac.New(sha256.New, p.key)
	h.Write([]byte(sender))
	h.Write(binary.BigEndian.AppendUint64([]byte{kind}, number))
	h.Write(body)
	return h.Sum(nil)
}

// The kinds of frames.
const (
	frameCard   byte = iota + 1 // a card
	frameRefuse                 // why the jobs cannot be joined; the sender closes the connection
	frameJoin                   // the sender begins to join
	framePort                   // where the listener's MPI accepts
	frameDone                   // the sender has joined
)

// send sends a frame: kind, length, body, code.
func (p *peer) send(kind byte, body []byte) error {
	b := binary.BigEndian.AppendUint32([]byte{kind}, uint32(len(body)))
	b = append(b, body...)
	_, err := p.conn.Write(append(b, p.code(p.me, p.out, kind, body)...))
	p.out++
	return err
}

// expect reads a frame of a kind, which what describes.
func (p *peer) expect(want byte, what string) ([]byte, error) {
	kind, body, err := p.read(p.conn)
	switch {
	case err != nil:
		return nil, err
	case kind == frameRefuse:
		return nil, refusal{printable(string(body))}
	case kind != want:
		return nil, fmt.Errorf("a frame of kind %d, and not %s", kind, what)
	}
	return body, nil
}

// read reads a frame.
func (p *peer) read(from io.Reader) (kind byte, body []byte, err error) {
	var head [5]byte
	if _, err := io.ReadFull(from, head[:]); err != nil {
		return 0, nil, err
	}
	n := binary.BigEndian.Uint32(head[1:])
	if n > mostFrame {
		return 0, nil, fmt.Errorf("a frame of %d bytes", n)
	}
	b := make([]byte, int(n)+proofBytes)
	if _, err := io.ReadFull(from, b); err != nil {
		return 0, nil, err
	}
	body = b[:n]
	if !hmac.Equal(b[n:], p.code(p.other, p.in, head[0], body)) {
		return 0, nil, fmt.Errorf("a frame that a holder of the secret has not made")
	}
	p.in++
	return head[0], body, nil
}

// introduce exchanges the cards of two jobs that know the secret, and returns the other one. Each party sends its own first,
// so that both know why they do not fit. Then each says that it begins to join.
func (p *peer) introduce(mine card) (*peer, error) {
	mine.Host, mine.MPI, mine.Library = printable(mine.Host), printable(mine.MPI), printable(mine.Library)
	text, err := json.Marshal(mine)
	if err != nil {
		return nil, err
	}
	if err := p.send(frameCard, text); err != nil {
		return nil, err
	}
	body, err := p.expect(frameCard, "its card")
	if err != nil {
		return nil, err
	}
	if p.card, err = readCard(body); err != nil {
		return nil, err
	}
	if why := mine.fits(p.card); why != "" {
		_ = p.send(frameRefuse, []byte(why))
		return nil, refusal{why}
	}
	if err := p.send(frameJoin, nil); err != nil {
		return nil, err
	}
	if _, err := p.expect(frameJoin, "that it joins"); err != nil {
		return nil, err
	}
	return p, p.conn.SetDeadline(time.Time{})
}

// TellPort tells the caller where the MPI of the listener accepts.
func (p *peer) TellPort(port string, limit time.Time) error {
	_ = p.conn.SetDeadline(limit)
	return p.send(framePort, []byte(port))
}

// Port waits until the listener has told where its MPI accepts.
func (p *peer) Port(limit time.Time) (port string, err error) {
	_ = p.conn.SetDeadline(limit)
	kind, body, err := p.read(p.conn)
	switch {
	case err != nil:
		return "", err
	case kind != framePort || len(body) == 0 || len(body) > mostPort || bytes.IndexByte(body, 0) >= 0:
		return "", fmt.Errorf("a frame of kind %d with %d bytes, and no port", kind, len(body))
	}
	return string(body), nil
}

// mostPort is the length of the longest port: MPI_MAX_PORT_NAME, without the 0 at its end.
const mostPort = 1023

// Settle tells the other party that this one has joined, and waits until it has, too. Neither closes the connection before
// that.
func (p *peer) Settle(limit time.Time) error {
	p.settled.Store(true)
	_ = p.conn.SetDeadline(limit)
	if err := p.send(frameDone, nil); err != nil {
		return err
	}
	_, err := p.expect(frameDone, "that it has joined")
	return err
}

// Gone tells whether the other party has closed the connection, which it may do once this one settles.
func (p *peer) Gone() (gone bool) {
	if p == nil || p.settled.Load() {
		return false
	}
	descriptors.Of(p.conn, func(fd int) {
		state, err := syscall.GetsockoptInt(fd, syscall.IPPROTO_TCP, syscall.TCP_INFO)
		gone = err == nil && state&0xff != 1 // the first byte is the state; 1 is TCP_ESTABLISHED
	})
	return gone
}

// Close closes the connection.
func (p *peer) Close() {
	if p != nil {
		hangUp(p.conn)
	}
}

// getToKnow lets greet find out who is at the other end of a connection, for strangerLimit and until ctx is done. It hangs up if
// that fails.
func getToKnow(ctx context.Context, c *net.TCPConn, greet func() (*peer, error)) (*peer, error) {
	_ = c.SetDeadline(time.Now().Add(strangerLimit))
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	p, err := greet()
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		hangUp(c)
		return nil, err
	}
	return p, nil
}

// note has forked children close s.
func note(s syscall.Conn) { descriptors.Of(s, descriptors.Note) }

// hangUp closes a connection or a listener that was noted; also twice.
func hangUp(s interface {
	syscall.Conn
	io.Closer
}) {
	descriptors.Of(s, descriptors.Forget)
	_ = s.Close()
}

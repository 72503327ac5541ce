package join

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/descriptors"
)

// peer is the other job, once both have shown the secret. Its methods are for one goroutine, except for Gone and Close.
type peer struct {
	card card // what it tells of itself

	conn    *net.TCPConn
	key     []byte // of the codes of frames
	me      string // "listener" or "caller"
	out, in uint64 // numbers of the next frames
	once    sync.Once
}

func newPeer(conn *net.TCPConn, secret []byte, me string, listener, caller nonce) *peer {
	return &peer{conn: conn, key: proof(secret, "frames", listener, caller), me: me}
}

func (p *peer) other() string {
	if p.me == "listener" {
		return "caller"
	}
	return "listener"
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

// receive reads a frame.
func (p *peer) receive() (kind byte, body []byte, err error) { return p.read(p.conn) }

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
	if !hmac.Equal(b[n:], p.code(p.other(), p.in, head[0], body)) {
		return 0, nil, fmt.Errorf("a frame that a holder of the secret has not made")
	}
	p.in++
	return head[0], body, nil
}

// refusal is an error that the other job has told, or that this one tells it: waiting does not help.
type refusal struct{ text string }

func (r refusal) Error() string { return r.text }

// introduce exchanges the cards. Each party sends its own first, so that both know why they do not fit. Then each says
// that it begins to join.
func (p *peer) introduce(mine card) error {
	mine.Host, mine.MPI, mine.Library = printable(mine.Host), printable(mine.MPI), printable(mine.Library)
	text, err := json.Marshal(mine)
	if err != nil {
		return err
	}
	if err := p.send(frameCard, text); err != nil {
		return err
	}
	kind, body, err := p.receive()
	if err != nil {
		return err
	}
	if kind != frameCard {
		return fmt.Errorf("a frame of kind %d, and not its card", kind)
	}
	if p.card, err = readCard(body); err != nil {
		return err
	}
	if why := mine.fits(p.card); why != "" {
		_ = p.send(frameRefuse, []byte(why))
		return refusal{why}
	}
	if err := p.send(frameJoin, nil); err != nil {
		return err
	}
	switch kind, body, err := p.receive(); {
	case err != nil:
		return err
	case kind == frameRefuse:
		return refusal{printable(string(body))}
	case kind != frameJoin:
		return fmt.Errorf("a frame of kind %d, and not that it joins", kind)
	}
	return p.conn.SetDeadline(time.Time{})
}

// TellPort tells the caller where the MPI of the listener accepts.
func (p *peer) TellPort(port string, limit time.Time) error {
	if err := p.conn.SetDeadline(limit); err != nil {
		return err
	}
	return p.send(framePort, []byte(port))
}

// Port waits until the listener has told where its MPI accepts.
func (p *peer) Port(limit time.Time) (port string, err error) {
	if err := p.conn.SetDeadline(limit); err != nil {
		return "", err
	}
	kind, body, err := p.receive()
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
	if err := p.conn.SetDeadline(limit); err != nil {
		return err
	}
	if err := p.send(frameDone, nil); err != nil {
		return err
	}
	kind, _, err := p.receive()
	if err == nil && kind != frameDone {
		err = fmt.Errorf("a frame of kind %d, and not that it has joined", kind)
	}
	return err
}

// Gone tells whether the other party has closed the connection.
func (p *peer) Gone() (gone bool) {
	const hangup = 0x2000 // POLLRDHUP: package syscall has no poll(2)
	descriptor(p.conn, func(fd int) {
		ask := struct {
			fd              int32
			events, revents int16
		}{int32(fd), hangup, 0}
		var now syscall.Timespec
		n, _, errno := syscall.Syscall6(syscall.SYS_PPOLL, uintptr(unsafe.Pointer(&ask)), 1, uintptr(unsafe.Pointer(&now)), 0, 0, 0)
		gone = errno == 0 && n == 1 // also after an error of the connection
	})
	return gone
}

// Close closes the connection.
func (p *peer) Close() {
	p.once.Do(func() {
		forget(p.conn)
		_ = p.conn.Close()
	})
}

// descriptor calls f with the descriptor of a connection or a listener.
func descriptor(s syscall.Conn, f func(fd int)) {
	if raw, err := s.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { f(int(fd)) })
	}
}

// note has forked children close s; forget is called before it is closed.
func note(s syscall.Conn)   { descriptor(s, descriptors.Note) }
func forget(s syscall.Conn) { descriptor(s, descriptors.Forget) }

package meet

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/descriptors"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// Peer is the other job, once both have shown the secret. Its methods are for one goroutine, except for Gone and Close.
type Peer struct {
	Card Card // what it tells of itself

	conn    *net.TCPConn
	key     []byte // of the codes of frames
	me      string // "listener" or "caller"
	out, in uint64 // numbers of the next frames
	once    sync.Once
	mu      sync.Mutex // guards fd
	fd      int        // the connection once Socket has given it to MPI; -1 before, and after Close
}

func newPeer(conn *net.TCPConn, secret []byte, me string, listener, caller nonce) *Peer {
	return &Peer{conn: conn, key: proof(secret, "frames", listener, caller), me: me, fd: -1}
}

func (p *Peer) other() string {
	if p.me == "listener" {
		return "caller"
	}
	return "listener"
}

// code is what proves that a frame is this one, of this sender, and unchanged.
func (p *Peer) code(sender string, number uint64, kind byte, body []byte) []byte {
	h := hmac.New(sha256.New, p.key)
	h.Write([]byte(sender))
	h.Write(binary.BigEndian.AppendUint64([]byte{kind}, number))
	h.Write(body)
	return h.Sum(nil)
}

// The kinds of frames.
const (
	frameCard   byte = iota + 1 // a Card
	frameRefuse                 // why the jobs cannot be joined; the sender closes the connection
	frameJoin                   // the sender begins to join
)

// send sends a frame: kind, length, body, code.
func (p *Peer) send(kind byte, body []byte) error {
	b := binary.BigEndian.AppendUint32([]byte{kind}, uint32(len(body)))
	b = append(b, body...)
	_, err := p.conn.Write(append(b, p.code(p.me, p.out, kind, body)...))
	p.out++
	return err
}

// receive reads a frame.
func (p *Peer) receive() (kind byte, body []byte, err error) {
	var head [5]byte
	if _, err := io.ReadFull(p.conn, head[:]); err != nil {
		return 0, nil, err
	}
	n := binary.BigEndian.Uint32(head[1:])
	if n > mostFrame {
		return 0, nil, fmt.Errorf("a frame of %d bytes", n)
	}
	b := make([]byte, int(n)+proofBytes)
	if _, err := io.ReadFull(p.conn, b); err != nil {
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
func (p *Peer) introduce(mine Card) error {
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
	if p.Card, err = cardOf(body); err != nil {
		return err
	}
	if why := mine.fits(p.Card); why != "" {
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

// Socket returns the connection for MPI, which reads and writes it until limit. Peer goes on to own it.
func (p *Peer) Socket(limit time.Time) (fd int, err error) {
	raw, err := p.conn.SyscallConn()
	if err != nil {
		return -1, err
	}
	fd = -1
	var failed error
	err = raw.Control(func(from uintptr) {
		if fd, failed = dup(int(from)); failed == nil {
			failed = syscall.SetNonblock(fd, false)
		}
	})
	if err == nil {
		err = failed
	}
	left := syscall.NsecToTimeval(max(time.Until(limit), time.Second).Nanoseconds())
	for _, option := range []int{syscall.SO_RCVTIMEO, syscall.SO_SNDTIMEO} {
		if err == nil {
			err = syscall.SetsockoptTimeval(fd, syscall.SOL_SOCKET, option, &left)
		}
	}
	if err != nil {
		if fd >= 0 {
			syscall.Close(fd)
		}
		return -1, status.New(status.Unsupported, "the connection to the other job cannot be given to MPI: %v", err)
	}
	descriptors.Note(fd)
	p.mu.Lock()
	p.fd = fd
	p.mu.Unlock()
	p.closeConn()
	return fd, nil
}

func dup(fd int) (int, error) {
	n, _, errno := syscall.Syscall(syscall.SYS_FCNTL, uintptr(fd), syscall.F_DUPFD_CLOEXEC, 0)
	if errno != 0 {
		return -1, errno
	}
	return int(n), nil
}

// Settle tells the other party, after Socket, that this one has joined, and waits until it has, too. Neither closes the
// connection before that.
func (p *Peer) Settle(limit time.Time) error {
	if err := syscall.Sendmsg(p.fd, []byte{1}, nil, nil, syscall.MSG_NOSIGNAL); err != nil {
		return err
	}
	for {
		var one [1]byte
		n, err := syscall.Read(p.fd, one[:])
		switch {
		case n == 1:
			return nil
		case n == 0 && err == nil:
			return io.ErrUnexpectedEOF
		case err != syscall.EINTR && err != syscall.EAGAIN:
			return err
		case time.Now().After(limit):
			return os.ErrDeadlineExceeded
		}
	}
}

// Gone tells, after Socket, whether the other party has closed the connection. MPI may use it meanwhile.
func (p *Peer) Gone() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.fd < 0 {
		return false
	}
	const hangup = 0x2000 // POLLRDHUP: package syscall has no poll(2)
	ask := struct {
		fd              int32
		events, revents int16
	}{int32(p.fd), hangup, 0}
	var now syscall.Timespec
	n, _, errno := syscall.Syscall6(syscall.SYS_PPOLL, uintptr(unsafe.Pointer(&ask)), 1, uintptr(unsafe.Pointer(&now)), 0, 0, 0)
	return errno == 0 && n == 1 // also after an error of the connection
}

func (p *Peer) closeConn() {
	p.once.Do(func() {
		forget(p.conn)
		_ = p.conn.Close()
	})
}

// Close closes the connection. MPI does not use it any more.
func (p *Peer) Close() {
	p.closeConn()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.fd >= 0 {
		descriptors.Forget(p.fd)
		syscall.Close(p.fd)
		p.fd = -1
	}
}

// Abandon ends the connection, and keeps the descriptor of Socket: a thread may still be inside MPI with it.
func (p *Peer) Abandon() {
	p.closeConn()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.fd >= 0 {
		_ = syscall.Shutdown(p.fd, syscall.SHUT_RDWR)
	}
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

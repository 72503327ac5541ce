package liveness

import (
	"cmp"
	"context"
	"crypto/subtle"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"syscall"

	"github.com/paddlempi/paddlempi/gocore/descriptors"
)

// socket is a TCP connection.
type socket struct {
	conn *net.TCPConn
}

// tcpUserTimeout is TCP_USER_TIMEOUT (linux/tcp.h), which package syscall lacks.
const tcpUserTimeout = 18

// keepAlive has the kernel find out when the other host no longer answers (tcp(7)).
func keepAlive(s syscall.RawConn, l limits) (err error) {
	closed := s.Control(func(fd uintptr) {
		for _, option := range [][3]int{
			{syscall.SOL_SOCKET, syscall.SO_KEEPALIVE, 1},
			{syscall.IPPROTO_TCP, syscall.TCP_KEEPIDLE, l.probe},
			{syscall.IPPROTO_TCP, syscall.TCP_KEEPINTVL, l.probe},
			{syscall.IPPROTO_TCP, syscall.TCP_KEEPCNT, 3},
			// With this the kernel counts time, and not probes. It looks at the time of each probe, and
			// must not find silence short of a millisecond.
			{syscall.IPPROTO_TCP, tcpUserTimeout, int(l.silence.Milliseconds()) - 100},
		} {
			err = cmp.Or(err, syscall.SetsockoptInt(int(fd), option[0], option[1], option[2]))
		}
	})
	return cmp.Or(closed, err)
}

// withoutOwn keeps package net from settings of its own for what keepAlive sets.
const withoutOwn = -1

// dial connects to an address.
func dial(a netip.AddrPort, l limits) (*socket, error) {
	d := net.Dialer{Timeout: l.dial, KeepAlive: withoutOwn, Control: func(_, _ string, s syscall.RawConn) error { return keepAlive(s, l) }}
	conn, err := d.Dial("tcp", a.String())
	if err != nil {
		return nil, cause(err)
	}
	return wrap(conn.(*net.TCPConn)), nil
}

// cause returns the error that package net has wrapped: users read that of the kernel alone.
func cause(err error) error {
	if errors.Is(err, context.DeadlineExceeded) { // of a Dialer
		return os.ErrDeadlineExceeded
	}
	for inner := errors.Unwrap(err); inner != nil; inner = errors.Unwrap(err) {
		err = inner
	}
	return err
}

// wrap takes over a connection.
func wrap(conn *net.TCPConn) *socket {
	descriptors.Of(conn, descriptors.Note)
	return &socket{conn}
}

// write writes all of b. It raises no SIGPIPE, as conn.Write would.
func (s *socket) write(b []byte) error {
	raw, err := s.conn.SyscallConn()
	for len(b) > 0 && err == nil {
		var failure error
		err = raw.Write(func(fd uintptr) bool {
			var n int
			n, failure = syscall.SendmsgN(int(fd), b, nil, nil, syscall.MSG_NOSIGNAL)
			b = b[max(n, 0):]
			return failure != syscall.EAGAIN && failure != syscall.EINTR
		})
		err = cmp.Or(err, failure)
	}
	return err
}

// read fills b.
func (s *socket) read(b []byte) error {
	_, err := io.ReadFull(s.conn, b)
	return err
}

// shown reads the token of the other end, and the ranks that it says behind that. It reads nothing behind a wrong token. Its
// error is errStranger, unless nothing has come.
func (s *socket) shown(t token, ranks ...*int) error {
	var got token
	if n, err := io.ReadFull(s.conn, got[:]); err != nil && n == 0 {
		return err
	} else if err != nil || subtle.ConstantTimeCompare(got[:], t[:]) != 1 {
		return errStranger
	}
	var word [4]byte
	for _, rank := range ranks {
		if s.read(word[:]) != nil {
			return errStranger
		}
		*rank = int(binary.LittleEndian.Uint32(word[:]))
	}
	return nil
}

// close closes the connection. s may be nil.
func (s *socket) close() {
	if s != nil {
		closeNoted(s.conn)
	}
}

// closeNoted closes a connection or a listener.
func closeNoted(c interface {
	syscall.Conn
	io.Closer
}) {
	descriptors.Of(c, descriptors.Forget)
	_ = c.Close()
}

// listen accepts connections at a port that the kernel chooses, on all interfaces.
func listen() (*net.TCPListener, error) {
	c := net.ListenConfig{KeepAlive: withoutOwn}
	c.SetMultipathTCP(false) // which has no TCP_USER_TIMEOUT
	at, err := c.Listen(context.Background(), "tcp", ":0")
	if err != nil {
		return nil, cause(err)
	}
	listener := at.(*net.TCPListener)
	descriptors.Of(listener, descriptors.Note)
	return listener, nil
}

// accept waits for a connection.
func accept(at *net.TCPListener, l limits) (*socket, error) {
	conn, err := at.AcceptTCP()
	if err != nil {
		return nil, err
	}
	raw, err := conn.SyscallConn()
	if err == nil {
		err = keepAlive(raw, l)
	}
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	return wrap(conn), nil
}

// unreachable tells whether an error says that the other host does not answer.
func unreachable(err error) bool {
	return isOneOf(err, syscall.ETIMEDOUT, syscall.EHOSTUNREACH, syscall.ENETUNREACH, syscall.EHOSTDOWN, syscall.ENETDOWN, os.ErrDeadlineExceeded)
}

// unable tells whether an error says nothing of the other rank: this process cannot make a connection.
func unable(err error) bool {
	return isOneOf(err, syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.EADDRNOTAVAIL, syscall.EPERM, syscall.EACCES, syscall.EAGAIN)
}

func isOneOf(err error, list ...error) bool {
	return slices.ContainsFunc(list, func(one error) bool { return errors.Is(err, one) })
}

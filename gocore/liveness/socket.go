package liveness

import (
	"errors"
	"net/netip"
	"os"
	"syscall"
	"time"

	"github.com/paddlempi/paddlempi/gocore/descriptors"
)

// This file has the sockets. It does without Go's package net, which would link the C library's
// resolver. An os.File of a nonblocking socket waits in the Go runtime's poller, so a goroutine that
// reads holds no thread.

// socket is a TCP connection.
type socket struct {
	file *os.File
	fd   int // for descriptors only
}

// tcpUserTimeout is TCP_USER_TIMEOUT (linux/tcp.h), which package syscall lacks.
const tcpUserTimeout = 18

// newSocket makes a nonblocking socket for an address.
func newSocket(a netip.Addr) (int, error) {
	family := syscall.AF_INET
	if a.Is6() {
		family = syscall.AF_INET6
	}
	return syscall.Socket(family, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, 0)
}

func sockaddr(a netip.AddrPort) syscall.Sockaddr {
	if a.Addr().Is6() {
		return &syscall.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
	}
	return &syscall.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
}

// wrap takes over the descriptor of a connection.
func wrap(fd int) *socket {
	descriptors.Note(fd)
	return &socket{file: os.NewFile(uintptr(fd), "liveness"), fd: fd}
}

// keepAlive has the kernel find out when the other host no longer answers (tcp(7)).
func keepAlive(fd int, l limits) error {
	for _, option := range [][3]int{
		{syscall.SOL_SOCKET, syscall.SO_KEEPALIVE, 1},
		{syscall.IPPROTO_TCP, syscall.TCP_KEEPIDLE, l.probe},
		{syscall.IPPROTO_TCP, syscall.TCP_KEEPINTVL, l.probe},
		{syscall.IPPROTO_TCP, syscall.TCP_KEEPCNT, 3},
		{syscall.IPPROTO_TCP, syscall.TCP_NODELAY, 1},
		// With this the kernel counts time, and not probes. It looks at the time of each probe, and
		// must not find silence short of a millisecond.
		{syscall.IPPROTO_TCP, tcpUserTimeout, int(l.silence.Milliseconds()) - 100},
	} {
		if err := syscall.SetsockoptInt(fd, option[0], option[1], option[2]); err != nil {
			return err
		}
	}
	return nil
}

// dial connects to an address.
func dial(a netip.AddrPort, l limits) (*socket, error) {
	fd, err := newSocket(a.Addr())
	if err != nil {
		return nil, err
	}
	if err = keepAlive(fd, l); err == nil {
		err = syscall.Connect(fd, sockaddr(a))
	}
	if err != nil && err != syscall.EINPROGRESS && err != syscall.EINTR {
		syscall.Close(fd)
		return nil, err
	}
	s := wrap(fd)
	if err = s.file.SetWriteDeadline(time.Now().Add(l.dial)); err == nil {
		err = s.connected()
	}
	if err == nil {
		err = s.file.SetWriteDeadline(time.Time{})
	}
	if err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// connected waits until the connection has come about.
func (s *socket) connected() error {
	raw, err := s.file.SyscallConn()
	if err != nil {
		return err
	}
	var failure error
	err = raw.Write(func(fd uintptr) bool {
		code, err := syscall.GetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_ERROR)
		if err == nil && code != 0 {
			err = syscall.Errno(code)
		}
		if failure = err; failure != nil {
			return true
		}
		_, err = syscall.Getpeername(int(fd))
		return err == nil
	})
	if err == nil {
		err = failure
	}
	return err
}

// write writes all of b. It raises no SIGPIPE.
func (s *socket) write(b []byte) error {
	raw, err := s.file.SyscallConn()
	if err != nil {
		return err
	}
	for len(b) > 0 && err == nil {
		var failure error
		err = raw.Write(func(fd uintptr) bool {
			var n int
			n, failure = syscall.SendmsgN(int(fd), b, nil, nil, syscall.MSG_NOSIGNAL)
			b = b[max(n, 0):]
			return failure != syscall.EAGAIN && failure != syscall.EINTR
		})
		if err == nil {
			err = failure
		}
	}
	return err
}

func (s *socket) close() {
	descriptors.Forget(s.fd)
	_ = s.file.Close()
}

// listener accepts connections at a port, on all interfaces.
type listener struct {
	socket
	port   uint16
	limits limits
}

// backlog is how many connections the kernel keeps until they are accepted. All ranks of a node may
// connect at once when its leader dies.
const backlog = 4096

func listen(l limits) (*listener, error) {
	// A socket for IPv6 takes IPv4 too, unless the machine has no IPv6.
	fd, err := listenAt(netip.IPv6Unspecified())
	if err != nil {
		fd, err = listenAt(netip.IPv4Unspecified())
	}
	if err != nil {
		return nil, err
	}
	here, err := syscall.Getsockname(fd)
	if err != nil {
		syscall.Close(fd)
		return nil, err
	}
	at := &listener{socket: *wrap(fd), limits: l}
	switch a := here.(type) {
	case *syscall.SockaddrInet4:
		at.port = uint16(a.Port)
	case *syscall.SockaddrInet6:
		at.port = uint16(a.Port)
	}
	return at, nil
}

func listenAt(a netip.Addr) (int, error) {
	fd, err := newSocket(a)
	if err != nil {
		return -1, err
	}
	if a.Is6() {
		err = syscall.SetsockoptInt(fd, syscall.IPPROTO_IPV6, syscall.IPV6_V6ONLY, 0)
	}
	if err == nil {
		err = syscall.Bind(fd, sockaddr(netip.AddrPortFrom(a, 0)))
	}
	if err == nil {
		err = syscall.Listen(fd, backlog)
	}
	if err != nil {
		syscall.Close(fd)
	}
	return fd, err
}

// accept waits for a connection.
func (l *listener) accept() (*socket, error) {
	raw, err := l.file.SyscallConn()
	if err != nil {
		return nil, err
	}
	var fd int
	var failure error
	err = raw.Read(func(at uintptr) bool {
		fd, _, failure = syscall.Accept4(int(at), syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK)
		return failure != syscall.EAGAIN && failure != syscall.EINTR && failure != syscall.ECONNABORTED
	})
	if err == nil {
		err = failure
	}
	if err != nil {
		return nil, err
	}
	if err := keepAlive(fd, l.limits); err != nil {
		syscall.Close(fd)
		return nil, err
	}
	return wrap(fd), nil
}

// unreachable tells whether an error says that the other host does not answer.
func unreachable(err error) bool {
	for _, silent := range []error{syscall.ETIMEDOUT, syscall.EHOSTUNREACH, syscall.ENETUNREACH, syscall.EHOSTDOWN, syscall.ENETDOWN, os.ErrDeadlineExceeded} {
		if errors.Is(err, silent) {
			return true
		}
	}
	return false
}

// unable tells whether an error says nothing of the other rank: this process cannot make a connection.
func unable(err error) bool {
	for _, own := range []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.EADDRNOTAVAIL, syscall.EPERM, syscall.EACCES, syscall.EAGAIN} {
		if errors.Is(err, own) {
			return true
		}
	}
	return false
}

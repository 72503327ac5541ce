package admin

import (
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/paddlempi/paddlempi/gocore/descriptors"
	"github.com/paddlempi/paddlempi/gocore/netif"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// listen opens the port of Options. It returns the address that clients dial, too.
func listen(o Options) (*listener, string, error) {
	host, port, err := net.SplitHostPort(o.Address)
	if err != nil { // a host alone
		host, port = strings.Trim(o.Address, "[]"), "0"
	}
	wildcard := false
	if a, err := netip.ParseAddr(host); err == nil {
		wildcard = a.IsUnspecified()
	}
	if host != "" && !wildcard {
		l, err := net.Listen("tcp", net.JoinHostPort(host, port))
		if err != nil {
			return nil, "", status.New(status.Argument, "the parameter server cannot listen at address=%q: %v", o.Address, err)
		}
		return guarded(l, host)
	}
	found, err := netif.Find(netif.Options{OneHost: o.OneHost})
	if err != nil {
		return nil, "", err
	}
	hosts := found.Addresses
	if len(hosts) == 0 {
		hosts = []string{"127.0.0.1"} // the ranks may be containers of one host
	}
	if wildcard {
		l, err := net.Listen("tcp", net.JoinHostPort(host, port))
		if err != nil {
			return nil, "", status.New(status.Argument, "the parameter server cannot listen at address=%q: %v", o.Address, err)
		}
		return guarded(l, hosts[0])
	}
	var failed error
	for _, host := range hosts { // the host's name may resolve to an address that only others have
		l, err := net.Listen("tcp", net.JoinHostPort(host, port))
		if err == nil {
			return guarded(l, host)
		}
		failed = err
	}
	return nil, "", status.New(status.Argument, "the parameter server can listen at none of %v: %v; %s names the interface to use", hosts, failed, netif.Variable)
}

func guarded(l net.Listener, host string) (*listener, string, error) {
	t := l.(*net.TCPListener)
	_, port, _ := net.SplitHostPort(t.Addr().String())
	g := &listener{TCPListener: t, noted: note(t), room: newRoom()}
	return g, net.JoinHostPort(host, port), nil
}

// listener closes connections for which there is no room, and all in forked children.
type listener struct {
	*net.TCPListener
	noted
	room    *room
	traffic traffic // of all its connections
}

func (l *listener) Accept() (net.Conn, error) {
	for {
		c, err := l.AcceptTCP()
		if err != nil {
			return nil, err
		}
		made := &conn{TCPConn: c, noted: note(c), traffic: &l.traffic}
		made.closed = func() { l.room.leave(made) }
		if !l.room.enter(made) {
			_ = made.Close()
			continue
		}
		return made, nil
	}
}

func (l *listener) Close() error {
	l.forget()
	return l.TCPListener.Close()
}

// conn is a connection that ends in forked children.
type conn struct {
	*net.TCPConn
	noted
	traffic *traffic
	heard   atomic.Bool // a byte has come
	closed  func()
	once    sync.Once
}

func (c *conn) Close() error {
	c.forget()
	c.once.Do(c.closed)
	return c.TCPConn.Close()
}

// noted is a descriptor that package descriptors knows of.
type noted struct {
	fd   int
	gone *sync.Once
}

func note(s interface {
	SyscallConn() (syscall.RawConn, error)
}) noted {
	n := noted{fd: -1, gone: new(sync.Once)}
	if raw, err := s.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) {
			n.fd = int(fd)
			descriptors.Note(n.fd)
		})
	}
	return n
}

// forget is called before the descriptor is closed, as often as that is.
func (n noted) forget() { n.gone.Do(func() { descriptors.Forget(n.fd) }) }

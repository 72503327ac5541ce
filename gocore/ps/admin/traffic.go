package admin

import (
	"context"
	"sync/atomic"

	"google.golang.org/grpc"
)

// Traffic is what went over gRPC: calls, and the bytes on their connections. The bytes are those
// that the sockets have taken and given, so headers, pings and TLS are among them.
type Traffic struct {
	Calls   uint64
	In, Out uint64 // bytes
}

// traffic counts.
type traffic struct{ calls, in, out atomic.Uint64 }

func (t *traffic) now() Traffic { return Traffic{t.calls.Load(), t.in.Load(), t.out.Load()} }

// called counts the calls of a client.
func (t *traffic) called(ctx context.Context, method string, request, reply any, c *grpc.ClientConn, invoke grpc.UnaryInvoker, o ...grpc.CallOption) error {
	t.calls.Add(1)
	return invoke(ctx, method, request, reply, c, o...)
}

// answered counts the calls of a server, whose token was right.
func (t *traffic) answered(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	t.calls.Add(1)
	return handle(ctx, request)
}

func (c *conn) Read(b []byte) (int, error) {
	n, err := c.TCPConn.Read(b)
	c.traffic.in.Add(uint64(n))
	if n > 0 {
		c.heard.Store(true)
	}
	return n, err
}

func (c *conn) Write(b []byte) (int, error) {
	n, err := c.TCPConn.Write(b)
	c.traffic.out.Add(uint64(n))
	return n, err
}

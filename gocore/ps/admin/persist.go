package admin

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	grpcstatus "google.golang.org/grpc/status"

	"github.com/paddlempi/paddlempi/gocore/status"
)

// againAfter is how long a client waits before it calls a server again that has turned it away.
const againAfter = 50 * time.Millisecond

// connecting says how soon gRPC connects again, which is what a call waits for that is made again.
var connecting = grpc.ConnectParams{MinConnectTimeout: 20 * time.Second,
	Backoff: backoff.Config{BaseDelay: 2 * againAfter, Multiplier: 1.6, Jitter: 0.5, MaxDelay: time.Second}}

// persist makes a call again, until its deadline, while the server turns this process away: it has
// accepted the connection and has closed it before it sent a byte, as one does that has no room for
// strangers, and does not know yet that this is none. The call was not sent then, so it is made
// once. A server that cannot be reached, or that ends a connection later, is another matter.
func (c *Client) persist(ctx context.Context, method string, request, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, o ...grpc.CallOption) error {
	for {
		var sent peer.Peer // gRPC fills it in when the call has a stream of a connection
		err := invoke(ctx, method, request, reply, conn, append(o, grpc.Peer(&sent))...)
		if grpcstatus.Code(err) != codes.Unavailable || sent.Addr != nil || !c.away.Load() {
			return err
		}
		select {
		case <-time.After(againAfter):
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.Canceled) {
				return toGRPC(ctx.Err())
			}
			return toGRPC(status.New(status.Timeout, "the parameter server at %s has closed each connection before it sent a byte, until the deadline of the call: "+
				"it has as many as it takes, of strangers perhaps, or it has TLS and this process does not", c.address))
		}
	}
}

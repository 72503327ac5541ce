package admin

import (
	"context"
	"encoding/json"
	"net"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	"github.com/paddlempi/paddlempi/gocore/ps/admin/pspb"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// maxTrailer is the most bytes of the header or trailer of an answer; an error travels in a
// trailer.
const maxTrailer = 64 << 10

// maxDepth is how deeply statistics may be nested.
const maxDepth = 32

// Client calls the service of one server. Its methods are Backend's. Every error is a
// *status.Error: the Backend's own, or Timeout, Interrupted (ctx was cancelled), PeerLeft (nobody
// answers), Refused (the token) or Unsupported (another version).
type Client struct {
	address string
	conn    *grpc.ClientConn
	calls   pspb.AdminClient
	tasks   pspb.TasksClient // of a master
	traffic traffic
	away    atomic.Bool // the server has turned the connection away that has ended last
}

// Dial makes a client. The first call connects.
func Dial(address string, token []byte, files TLS) (*Client, error) {
	if err := checkToken(token); err != nil {
		return nil, err
	}
	if _, _, err := net.SplitHostPort(address); err != nil {
		return nil, status.New(status.Argument, "address=%s of a parameter server is no host:port", quoted(address))
	}
	secured, err := files.client()
	if err != nil {
		return nil, err
	}
	c := &Client{address: address}
	c.conn, err = grpc.NewClient("passthrough:///"+address,
		grpc.WithTransportCredentials(secured),
		grpc.WithPerRPCCredentials(credential(append([]byte(nil), token...))),
		grpc.WithContextDialer(c.connect), // also: no proxy of the environment
		grpc.WithChainUnaryInterceptor(c.traffic.called, c.persist),
		grpc.WithConnectParams(connecting),
		grpc.WithDisableServiceConfig(),
		grpc.WithMaxHeaderListSize(maxTrailer),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(MaxAnswer)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: pingAfter, Timeout: pingTimeout}),
	)
	if err != nil {
		return nil, status.New(status.Argument, "address=%s of a parameter server: %v", quoted(address), err)
	}
	c.calls, c.tasks = pspb.NewAdminClient(c.conn), pspb.NewTasksClient(c.conn)
	return c, nil
}

// Traffic returns what this client has called, and what went over its connection.
func (c *Client) Traffic() Traffic { return c.traffic.now() }

// connect dials a server. A forked child closes its copy of the connection.
func (c *Client) connect(ctx context.Context, address string) (net.Conn, error) {
	made, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		c.away.Store(false)
		return nil, err
	}
	t := made.(*net.TCPConn)
	found := &conn{TCPConn: t, noted: note(t), traffic: &c.traffic}
	found.closed = func() { c.away.Store(!found.heard.Load()) }
	return found, nil
}

// Register says that a rank takes part.
func (c *Client) Register(ctx context.Context, from Member) error {
	if err := from.check(); err != nil {
		return err
	}
	_, err := c.calls.Register(ctx, &pspb.RegisterRequest{Rank: int64(from.Rank), Role: from.Role, Pid: int64(from.PID), Host: from.Host})
	return fromGRPC("register", c.address, err)
}

// Declare makes a table on the server, or finds the one of the same description.
func (c *Client) Declare(ctx context.Context, from int, meta Meta) (uint32, error) {
	if err := meta.check(from); err != nil {
		return 0, err
	}
	reply, err := c.calls.Declare(ctx, &pspb.DeclareRequest{From: int64(from), Name: meta.Name, Kind: meta.Kind, Dim: meta.Dim,
		Config: meta.Config, Count: meta.Count, Dims: meta.Dims})
	return reply.GetId(), fromGRPC("declare", c.address, err)
}

// Barrier returns when all active trainers are in the barrier of this name.
func (c *Client) Barrier(ctx context.Context, from int, name string) error {
	if err := checkRank("barrier", "from", from); err != nil {
		return err
	}
	if err := checkName("barrier", "name", name); err != nil {
		return err
	}
	_, err := c.calls.Barrier(ctx, &pspb.BarrierRequest{From: int64(from), Name: name})
	return fromGRPC("barrier", c.address, err)
}

// Complete says that a trainer is done.
func (c *Client) Complete(ctx context.Context, from int) error {
	if err := checkRank("complete", "from", from); err != nil {
		return err
	}
	_, err := c.calls.Complete(ctx, &pspb.CompleteRequest{From: int64(from)})
	return fromGRPC("complete", c.address, err)
}

// Checkpoint takes the server through one phase of a checkpoint.
func (c *Client) Checkpoint(ctx context.Context, from int, phase, dir string, step int64, detail []byte) ([]byte, error) {
	if err := checkCheckpoint(from, phase, dir, step); err != nil {
		return nil, err
	}
	reply, err := c.calls.Checkpoint(ctx, &pspb.CheckpointRequest{From: int64(from), Phase: phase, Dir: dir, Step: step, Detail: detail})
	return reply.GetReport(), fromGRPC("checkpoint", c.address, err)
}

// SetLearningRate sets the learning rate of a table.
func (c *Client) SetLearningRate(ctx context.Context, name string, rate float64) error {
	if err := checkRate(name, rate); err != nil {
		return err
	}
	_, err := c.calls.SetLearningRate(ctx, &pspb.SetLearningRateRequest{Name: name, Rate: rate})
	return fromGRPC("set_learning_rate", c.address, err)
}

// Statistics returns the server's statistics, which are JSON.
func (c *Client) Statistics(ctx context.Context) ([]byte, error) {
	reply, err := c.calls.Statistics(ctx, &pspb.StatisticsRequest{})
	if err != nil {
		return nil, fromGRPC("statistics", c.address, err)
	}
	if !json.Valid(reply.Statistics) || deep(reply.Statistics) {
		return nil, status.New(status.Unsupported, "statistics: what the parameter server at %s sends is no JSON", c.address)
	}
	return reply.Statistics, nil
}

// deep tells whether JSON is nested so deeply that the reader of a language might give up.
func deep(text []byte) bool {
	depth, inside := 0, false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case inside && c == '\\':
			i++
		case c == '"':
			inside = !inside
		case inside:
		case c == '{' || c == '[':
			if depth++; depth > maxDepth {
				return true
			}
		case c == '}' || c == ']':
			depth--
		}
	}
	return false
}

// Close ends the connection. Calls under way end with errors.
func (c *Client) Close() error {
	_ = c.conn.Close() // its only error is that it was closed before
	return nil
}

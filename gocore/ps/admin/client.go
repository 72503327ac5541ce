package admin

import (
	"context"

	"github.com/paddlempi/paddlempi/gocore/status"
)

// Client calls the service of one server. Its methods are Backend's.
type Client struct {
	address string
}

var unwritten = status.New(status.Unsupported, "the client of the parameter server is being written")

// Dial makes a client; it connects with its first call.
func Dial(address string, token []byte, files TLS) (*Client, error) { return nil, unwritten }

func (c *Client) Register(ctx context.Context, from Member) error { return unwritten }

func (c *Client) Declare(ctx context.Context, from int, meta Meta) (uint32, error) {
	return 0, unwritten
}

func (c *Client) Barrier(ctx context.Context, from int, name string) error { return unwritten }

func (c *Client) Complete(ctx context.Context, from int) error { return unwritten }

func (c *Client) Checkpoint(ctx context.Context, from int, phase, dir string, step int64) ([]byte, error) {
	return nil, unwritten
}

func (c *Client) SetLearningRate(ctx context.Context, name string, rate float64) error {
	return unwritten
}

func (c *Client) Statistics(ctx context.Context) ([]byte, error) { return nil, unwritten }

// Close ends the connection.
func (c *Client) Close() error { return nil }

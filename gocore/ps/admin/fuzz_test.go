package admin

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"
	"unicode"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/metadata"
	grpcstatus "google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/paddlempi/paddlempi/gocore/ps/admin/pspb"
	"github.com/paddlempi/paddlempi/gocore/ps/master"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// strict is a Backend that only ever sees what has been checked.
type strict struct{ t *testing.T }

func (b strict) Register(m Member) error { assert.NoError(b.t, m.check()); return nil }
func (b strict) Declare(from int, m Meta) (uint32, error) {
	assert.NoError(b.t, m.check(from))
	return 1, nil
}
func (b strict) Barrier(_ context.Context, from int, name string) error {
	assert.True(b.t, from >= 0 && from <= maxRank && printable(name) && name != "")
	return nil
}
func (b strict) Complete(from int) error { assert.True(b.t, from >= 0 && from <= maxRank); return nil }
func (b strict) Checkpoint(ctx context.Context, from int, phase, dir string, step int64, detail []byte) ([]byte, error) {
	assert.NoError(b.t, checkCheckpoint(from, phase, dir, step))
	return nil, nil
}
func (b strict) SetLearningRate(name string, rate float64) error {
	assert.NoError(b.t, checkRate(name, rate))
	return nil
}
func (b strict) Statistics() []byte { return []byte("{}") }
func (b strict) Open(from int, d master.Data) (int64, error) {
	assert.NoError(b.t, checkData(from, &d))
	return 0, nil
}
func (b strict) Ask(_ context.Context, from int, name string, _ uint64, _ int64) (master.Grant, error) {
	assert.NoError(b.t, checkTasks("", from, name))
	return master.Grant{Verdict: master.Over}, nil
}
func (b strict) Renew(from int, l master.Lease) (bool, error) {
	assert.NoError(b.t, checkTasks("", from, l.Name))
	return true, nil
}
func (b strict) Done(from int, l master.Lease) (bool, error)   { return b.Renew(from, l) }
func (b strict) Return(from int, l master.Lease) (bool, error) { return b.Renew(from, l) }

// FuzzRequest gives the methods messages as they come from a client with the right token.
func FuzzRequest(f *testing.F) {
	for method, m := range []proto.Message{
		&pspb.RegisterRequest{Rank: 1, Role: both, Pid: 7, Host: "h"},
		&pspb.DeclareRequest{From: 1, Name: "w", Kind: Dense, Dim: 8, Config: []byte("{}"), Count: 6, Dims: []int64{2, 3}},
		&pspb.BarrierRequest{From: 1, Name: "b"}, &pspb.CompleteRequest{From: 1},
		&pspb.CheckpointRequest{From: 1, Phase: "p", Dir: "/d", Step: 3}, &pspb.SetLearningRateRequest{Name: "w", Rate: 0.1},
		&pspb.OpenRequest{From: 1, Name: "d", Shards: 9, Digest: "x", LeaseNs: 1e9, Retries: 3}, &pspb.AskRequest{From: 1, Name: "d", Request: 3},
		&pspb.LeaseRequest{From: 1, Name: "d", Shard: 3, Fence: 8, Reason: "r"},
	} {
		b, err := proto.Marshal(m)
		require.NoError(f, err)
		f.Add(uint8(method), b)
	}
	f.Fuzz(func(t *testing.T, method uint8, b []byte) {
		s, tasks, ctx := &service{backend: strict{t}}, &taskService{master: strict{t}}, context.Background()
		var err error
		switch method % 9 {
		case 0:
			var r pspb.RegisterRequest
			if proto.Unmarshal(b, &r) == nil {
				_, err = s.Register(ctx, &r)
			}
		case 1:
			var r pspb.DeclareRequest
			if proto.Unmarshal(b, &r) == nil {
				_, err = s.Declare(ctx, &r)
			}
		case 2:
			var r pspb.BarrierRequest
			if proto.Unmarshal(b, &r) == nil {
				_, err = s.Barrier(ctx, &r)
			}
		case 3:
			var r pspb.CompleteRequest
			if proto.Unmarshal(b, &r) == nil {
				_, err = s.Complete(ctx, &r)
			}
		case 4:
			var r pspb.CheckpointRequest
			if proto.Unmarshal(b, &r) == nil {
				_, err = s.Checkpoint(ctx, &r)
			}
		case 5:
			var r pspb.SetLearningRateRequest
			if proto.Unmarshal(b, &r) == nil {
				_, err = s.SetLearningRate(ctx, &r)
			}
		case 6:
			var r pspb.OpenRequest
			if proto.Unmarshal(b, &r) == nil {
				_, err = tasks.Open(ctx, &r)
			}
		case 7:
			var r pspb.AskRequest
			if proto.Unmarshal(b, &r) == nil {
				_, err = tasks.Ask(ctx, &r)
			}
		case 8:
			var r pspb.LeaseRequest
			if proto.Unmarshal(b, &r) == nil {
				_, err = tasks.Return(ctx, &r)
			}
		}
		if err != nil { // it reaches the client as an error about an argument, fit for a terminal
			got := fromGRPC("m", "h:1", err)
			assert.Equal(t, status.Argument, status.CodeOf(got))
			for _, r := range got.Error() {
				assert.True(t, unicode.IsPrint(r), "%q", got.Error())
			}
		}
	})
}

// FuzzFailure reads the errors of a server.
func FuzzFailure(f *testing.F) {
	for _, e := range []*status.Error{status.New(status.Timeout, "late").WithRanks(1, 2), {Code: 99, Ranks: []int{-1}, Msg: "\x1b[2J"}} {
		b, err := proto.Marshal(grpcstatus.Convert(toGRPC(e)).Proto())
		require.NoError(f, err)
		f.Add(b)
	}
	b, err := proto.Marshal(&spb.Status{Code: 5, Message: "x", Details: []*anypb.Any{{TypeUrl: "type.googleapis.com/paddlempi.ps.v1.Failure", Value: []byte{8}}}})
	require.NoError(f, err)
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		var s spb.Status
		if proto.Unmarshal(b, &s) != nil || s.Code == 0 {
			return
		}
		var e *status.Error
		require.ErrorAs(t, fromGRPC("m", "h:1", grpcstatus.ErrorProto(&s)), &e)
		assert.True(t, e.Code > status.OK && e.Code <= status.PeerDied)
		assert.LessOrEqual(t, len(e.Ranks), maxRanks)
		for _, r := range e.Ranks {
			assert.True(t, r >= 0 && r <= maxRank)
		}
		for _, r := range e.Msg {
			assert.True(t, unicode.IsPrint(r) || r == '\n', "%q", e.Msg)
		}
	})
}

// FuzzToken shows tokens: no other than the right one passes.
func FuzzToken(f *testing.F) {
	f.Add([]byte{}, []byte{}, uint8(0))
	f.Add(token, []byte{}, uint8(1))
	f.Add(token, token[1:], uint8(2))
	f.Add(token[1:], token, uint8(2))
	f.Fuzz(func(t *testing.T, a, b []byte, count uint8) {
		shown := []string{string(a), string(b)}[:min(count, 2)]
		_, err := gate(token, nil)(context.Background(), &tap.Info{Header: metadata.MD{tokenKey: shown}})
		assert.Equal(t, len(shown) == 1 && string(a) == string(token), err == nil)
	})
}

// FuzzJobFile reads the file of a job.
func FuzzJobFile(f *testing.F) {
	e := sample()
	e.Version, e.PID = 1, 7
	text, err := json.Marshal(e)
	require.NoError(f, err)
	f.Add(text)
	f.Add([]byte(`{"version":1,"pid":1,"token":"AAAAAAAAAAAAAAAAAAAAAAAA","servers":[{"rank":0,"address":"h:1"}],"roles":{"0":"trainer"}}`))
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, text []byte) {
		if e, err := parseJobFile(text); err == nil {
			assert.NotEmpty(t, e.Servers)
			for _, s := range e.Servers {
				c, err := Dial(s.Address, e.Token, TLS{})
				require.NoError(t, err)
				require.NoError(t, c.Close())
			}
		}
	})
}

// spoken is a connection that keeps what is written.
type spoken struct {
	net.Conn
	mu  *sync.Mutex
	all *[]byte
}

func (s spoken) Write(b []byte) (int, error) {
	s.mu.Lock()
	*s.all = append(*s.all, b...)
	s.mu.Unlock()
	return s.Conn.Write(b)
}

// conversation returns the bytes that a client sends for a call with a token, through a relay.
func conversation(f *testing.F, address string, token []byte) []byte {
	relay, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(f, err)
	defer relay.Close()
	var mu sync.Mutex
	var all []byte
	go func() {
		from, err := relay.Accept()
		if err != nil {
			return
		}
		to, err := net.Dial("tcp", address)
		if err != nil {
			_ = from.Close()
			return
		}
		go func() { _, _ = io.Copy(from, to); _ = from.Close() }()
		_, _ = io.Copy(spoken{to, &mu, &all}, from)
		_ = to.Close()
	}()
	c, err := Dial(relay.Addr().String(), token, TLS{})
	require.NoError(f, err)
	_ = c.Barrier(within(f), 1, "b")
	require.NoError(f, c.Close())
	mu.Lock()
	defer mu.Unlock()
	return append([]byte(nil), all...)
}

// FuzzConnection sends a server anything. It goes on, and asks the Backend nothing without the
// token: the seeds with the right one are of another server.
func FuzzConnection(f *testing.F) {
	b := &backend{}
	s, err := Serve(Options{OneHost: true, Token: append([]byte("right"), token...)}, b, nil)
	require.NoError(f, err)
	f.Cleanup(s.Stop)
	other, _ := start(f, &backend{}, nil)
	f.Add([]byte{})
	f.Add([]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"))
	f.Add([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff\x01\xff\x00\x00\x00\x01"))
	f.Add(conversation(f, other.Address(), token))
	f.Add(conversation(f, s.Address(), token))
	f.Add(conversation(f, s.Address(), token[1:]))
	good, err := Dial(s.Address(), append([]byte("right"), token...), TLS{})
	require.NoError(f, err)
	f.Cleanup(func() { _ = good.Close() })
	f.Fuzz(func(t *testing.T, sent []byte) {
		c, err := net.Dial("tcp", s.Address())
		require.NoError(t, err)
		defer c.Close()
		require.NoError(t, c.SetDeadline(time.Now().Add(patience)))
		_, _ = c.Write(sent) // the server may have closed it
		_ = c.(*net.TCPConn).CloseWrite()
		_, err = io.Copy(io.Discard, c)
		var late net.Error
		assert.False(t, errors.As(err, &late) && late.Timeout(), "the connection stays open")
		require.Zero(t, b.asked.Load())
		require.NoError(t, good.Complete(within(t), 0))
		b.asked.Store(0)
	})
}

package admin

import (
	"bytes"
	"context"
	"errors"
	"math"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	grpcstatus "google.golang.org/grpc/status"

	"github.com/paddlempi/paddlempi/gocore/ps/admin/pspb"
	"github.com/paddlempi/paddlempi/gocore/ps/master"
	"github.com/paddlempi/paddlempi/gocore/status"
)

const (
	patience = 30 * time.Second
	both     = "trainer,pserver"
)

var token = []byte("0123456789abcdef0123456789abcdef")

// backend notes what it is asked for. Its calls return err, and what the other fields say.
type backend struct {
	mu     sync.Mutex
	calls  []any
	err    error
	report []byte
	panics string
	inside chan context.Context // Barrier and Checkpoint give their context, then wait for the end of it
	asked  atomic.Int64
}

func (b *backend) note(call ...any) error {
	b.asked.Add(1)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.calls = append(b.calls, call)
	if b.panics != "" {
		panic(b.panics)
	}
	return b.err
}

func (b *backend) Register(m Member) error { return b.note("register", m) }
func (b *backend) Declare(from int, m Meta) (uint32, error) {
	return 1<<32 - 1, b.note("declare", from, m)
}
func (b *backend) Barrier(ctx context.Context, from int, name string) error {
	return b.wait(ctx, b.note("barrier", from, name))
}

// wait waits for the end of ctx if there is inside, and returns err or that of ctx.
func (b *backend) wait(ctx context.Context, err error) error {
	if b.inside != nil {
		b.inside <- ctx
		<-ctx.Done()
		return ctx.Err()
	}
	return err
}
func (b *backend) Complete(from int) error { return b.note("complete", from) }
func (b *backend) Checkpoint(ctx context.Context, from int, phase, dir string, step int64, detail []byte) ([]byte, error) {
	return b.report, b.wait(ctx, b.note("checkpoint", from, phase, dir, step, string(detail)))
}
func (b *backend) SetLearningRate(name string, rate float64) error {
	return b.note("rate", name, rate)
}
func (b *backend) Statistics() []byte { _ = b.note("statistics"); return b.report }
func (b *backend) Open(from int, d master.Data) (int64, error) {
	return 1 << 30, b.note("open", from, d)
}
func (b *backend) Ask(ctx context.Context, from int, name string, request uint64, epoch int64) (master.Grant, error) {
	deadline, _ := ctx.Deadline()
	err := b.note("ask", from, name, request, epoch, time.Until(deadline) < mostWait)
	return master.Grant{Verdict: master.Leased, Epoch: 1 << 30, Shard: 1 << 23, Fence: 1<<64 - 1, Lease: time.Minute}, err
}
func (b *backend) Renew(from int, l master.Lease) (bool, error) {
	return true, b.note("renew", from, l)
}
func (b *backend) Done(from int, l master.Lease) (bool, error) { return false, b.note("done", from, l) }
func (b *backend) Return(from int, l master.Lease) (bool, error) {
	return true, b.note("return", from, l)
}

// start starts a server, and a client with its token.
func start(t testing.TB, b Backend, change func(*Options)) (*Server, *Client) {
	t.Helper()
	o := Options{OneHost: true, Token: token}
	if change != nil {
		change(&o)
	}
	tasks, _ := b.(Tasks)
	s, err := Serve(o, b, tasks)
	require.NoError(t, err)
	t.Cleanup(s.Stop)
	return s, dial(t, s, o.Token)
}

func dial(t testing.TB, s *Server, token []byte) *Client {
	t.Helper()
	c, err := Dial(s.Address(), token, TLS{})
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// every calls all methods of a client with right arguments.
func every(ctx context.Context, c *Client) map[string]error {
	_, declared := c.Declare(ctx, 2, dense)
	_, saved := c.Checkpoint(ctx, 2, "write", "/data/cuts", 7, []byte("{}"))
	_, asked := c.Statistics(ctx)
	_, opened := c.Open(ctx, 2, shards)
	_, given := c.Ask(ctx, 2, "d", 9, 4, time.Hour)
	_, renewed := c.Renew(ctx, 2, lease)
	_, done := c.Done(ctx, 2, lease)
	_, returned := c.Return(ctx, 2, lease)
	return map[string]error{
		"open": opened, "ask": given, "renew": renewed, "done": done, "return": returned,
		"register": c.Register(ctx, member), "declare": declared, "barrier": c.Barrier(ctx, 2, "epoch 1"),
		"complete": c.Complete(ctx, 2), "checkpoint": saved, "rate": c.SetLearningRate(ctx, "w", 0.25), "statistics": asked,
	}
}

var (
	shards = master.Data{Name: "d", Shards: 1 << 23, Digest: "abc", Shuffle: true, Seed: 1<<64 - 1, Lease: time.Hour, Retries: 7}
	lease  = master.Lease{Name: "d", Epoch: 4, Shard: 1 << 23, Fence: 1<<64 - 1, Reason: "bad"}
	member = Member{Rank: 2, Role: both, PID: 77, Host: "node-1"}
	sparse = Meta{Name: "users", Kind: Sparse, Dim: 64, Config: []byte(`{"seed":1}`), Count: 1000}
	dense  = Meta{Name: "w", Kind: Dense, Dim: 8192, Config: []byte(`{}`), Count: 6 << 30, Dims: []int64{2, 3, 1 << 30}}
)

func TestCallsArriveAsTheyWereMade(t *testing.T) {
	b := &backend{report: []byte(`{"step":7}`)}
	_, c := start(t, b, nil)
	for method, err := range every(within(t), c) {
		assert.NoError(t, err, method)
	}
	id, err := c.Declare(within(t), 0, sparse)
	require.NoError(t, err)
	assert.EqualValues(t, 1<<32-1, id)
	report, err := c.Checkpoint(within(t), 0, "commit", "/d", 0, nil)
	require.NoError(t, err)
	assert.Equal(t, b.report, report)
	text, err := c.Statistics(within(t))
	require.NoError(t, err)
	assert.Equal(t, b.report, text)
	epoch, err := c.Open(within(t), 0, shards)
	assert.True(t, epoch == 1<<30 && err == nil)
	grant, err := c.Ask(within(t), 0, "d", 1<<64-1, 0, 0)
	assert.True(t, grant == master.Grant{Verdict: master.Leased, Epoch: 1 << 30, Shard: 1 << 23, Fence: 1<<64 - 1, Lease: time.Minute} && err == nil)
	renewed, err := c.Renew(within(t), 0, lease)
	assert.True(t, renewed && err == nil)
	done, err := c.Done(within(t), 0, lease)
	assert.True(t, !done && err == nil)
	returned, err := c.Return(within(t), 0, lease)
	assert.True(t, returned && err == nil)
	assert.ElementsMatch(t, []any{
		[]any{"open", 2, shards}, []any{"ask", 2, "d", uint64(9), int64(4), true}, []any{"renew", 2, lease}, []any{"done", 2, lease}, []any{"return", 2, lease},
		[]any{"open", 0, shards}, []any{"ask", 0, "d", uint64(1<<64 - 1), int64(0), true}, []any{"renew", 0, lease}, []any{"done", 0, lease}, []any{"return", 0, lease},
		[]any{"declare", 2, dense}, []any{"checkpoint", 2, "write", "/data/cuts", int64(7), "{}"}, []any{"statistics"},
		[]any{"register", member}, []any{"barrier", 2, "epoch 1"}, []any{"complete", 2}, []any{"rate", "w", 0.25},
		[]any{"declare", 0, sparse}, []any{"checkpoint", 0, "commit", "/d", int64(0), ""}, []any{"statistics"},
	}, b.calls)
}

func TestErrorsTravelWithCodeTextAndRanks(t *testing.T) {
	b := &backend{report: []byte("{}")}
	_, c := start(t, b, nil)
	for code := status.Argument; code <= status.PeerDied; code++ {
		sent := &status.Error{Code: code, MPIClass: 5, Ranks: []int{3, 0}, Msg: "table ü: rank 3 said\nno"}
		b.err = sent
		for method, err := range every(within(t), c) {
			if method == "statistics" { // has no errors
				assert.NoError(t, err)
				continue
			}
			assert.Equal(t, sent, err, method)
		}
	}
	b.err = errors.New("not of the core")
	assert.Equal(t, status.New(status.Panic, "not of the core"), c.Complete(within(t), 0))

	ranks := make([]int, 1<<17)
	b.err = status.New(status.Argument, "%s", strings.Repeat("é\xff", 1<<20)).WithRanks(ranks...)
	err := c.Complete(within(t), 0)
	var e *status.Error
	require.ErrorAs(t, err, &e)
	assert.Equal(t, status.Argument, e.Code)
	assert.Len(t, e.Ranks, maxRanks)
	assert.Less(t, len(e.Msg), 2*maxText)
	assert.True(t, strings.HasPrefix(e.Msg, "é?é?"))
}

func TestWhatAServerSaysIsChecked(t *testing.T) {
	for code, want := range map[int32]status.Code{0: status.Unsupported, -1: status.Unsupported, 28: status.Unsupported, 8: status.Timeout} {
		s, err := grpcstatus.New(codes.Aborted, "x").WithDetails(&pspb.Failure{Code: code, Ranks: []int32{-1, 4, math.MaxInt32}, Text: "a\x1b[31mb"})
		require.NoError(t, err)
		got := fromGRPC("complete", "h:1", s.Err())
		assert.Equal(t, &status.Error{Code: want, Ranks: []int{4}, Msg: "a?[31mb"}, got)
	}
	b := &backend{report: []byte("{")}
	_, c := start(t, b, nil)
	_, err := c.Statistics(within(t))
	assert.Equal(t, status.Unsupported, status.CodeOf(err))
	assert.ErrorContains(t, err, "is no JSON")
	b.report = []byte(strings.Repeat(`[`, maxDepth+1) + strings.Repeat(`]`, maxDepth+1))
	_, err = c.Statistics(within(t))
	assert.ErrorContains(t, err, "is no JSON")
	b.report = []byte(`{"a\"[[": [` + strings.Repeat(`"[[[]",{"\\":1},`, maxDepth) + `0]}`)
	_, err = c.Statistics(within(t))
	assert.NoError(t, err)
}

func TestAWrongTokenIsRefusedBeforeTheMessageIsRead(t *testing.T) {
	b := &backend{report: []byte("{}")}
	s, _ := start(t, b, nil)
	other := append(bytes.Clone(token[:len(token)-1]), 'x')
	for _, wrong := range [][]byte{other, token[:len(token)-1], append(bytes.Clone(token), 0), bytes.Repeat([]byte{0}, 1024)} {
		for method, err := range every(within(t), dial(t, s, wrong)) {
			assert.Equal(t, status.Refused, status.CodeOf(err), method)
			assert.ErrorContains(t, err, "refuses the token: it belongs to another job")
		}
	}
	// A message beyond the limit would end with another code if it were looked at.
	conn, err := grpc.NewClient(s.Address(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer conn.Close()
	for name, pairs := range map[string][]string{"none": nil, "wrong": {tokenKey, string(other)}, "two": {tokenKey, string(token), tokenKey, string(other)}} {
		ctx := metadata.AppendToOutgoingContext(within(t), pairs...)
		big := &pspb.BarrierRequest{Name: strings.Repeat("x", 4*DefaultLimit)}
		_, err := pspb.NewAdminClient(conn).Barrier(ctx, big)
		assert.Equal(t, codes.Unauthenticated, grpcstatus.Code(err), name)
		_, err = grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{})
		assert.Equal(t, codes.Unauthenticated, grpcstatus.Code(err), name)
		watch, err := grpc_health_v1.NewHealthClient(conn).Watch(ctx, &grpc_health_v1.HealthCheckRequest{})
		require.NoError(t, err)
		_, err = watch.Recv()
		assert.Equal(t, codes.Unauthenticated, grpcstatus.Code(err), name)
		assert.Equal(t, codes.Unauthenticated, grpcstatus.Code(conn.Invoke(ctx, "/no.such/Method", big, &pspb.BarrierReply{})), name)
	}
	assert.Zero(t, b.asked.Load())
}

func TestHealth(t *testing.T) {
	s, _ := start(t, &backend{}, nil)
	conn, err := grpc.NewClient(s.Address(), grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithPerRPCCredentials(credential(token)))
	require.NoError(t, err)
	defer conn.Close()
	for _, service := range []string{"", "paddlempi.ps.v1.Admin"} {
		reply, err := grpc_health_v1.NewHealthClient(conn).Check(within(t), &grpc_health_v1.HealthCheckRequest{Service: service})
		require.NoError(t, err)
		assert.Equal(t, grpc_health_v1.HealthCheckResponse_SERVING, reply.Status)
	}
	// Calls that this version does not know.
	err = fromGRPC("later", s.Address(), conn.Invoke(within(t), "/paddlempi.ps.v1.Admin/Later", &pspb.BarrierRequest{}, &pspb.BarrierReply{}))
	assert.Equal(t, status.Unsupported, status.CodeOf(err))
}

func TestARequestBeyondTheLimit(t *testing.T) {
	b := &backend{}
	_, c := start(t, b, func(o *Options) { o.Limit = leastLimit })
	long := sparse
	long.Config = []byte(`"` + strings.Repeat("x", leastLimit) + `"`)
	_, err := c.Declare(within(t), 0, long)
	assert.Equal(t, status.Argument, status.CodeOf(err))
	assert.Zero(t, b.asked.Load())
	_, err = c.Declare(within(t), 0, sparse)
	assert.NoError(t, err, "the connection goes on")
}

func TestArgumentsAreCheckedOnBothSides(t *testing.T) {
	long := strings.Repeat("n", maxName+1)
	members := map[string]Member{
		"rank=-1 is no rank": {-1, both, 1, "h"}, "rank=16777217": {maxRank + 1, both, 1, "h"},
		"role=king is none of": {0, "king", 1, "h"}, "pid=0": {0, both, 0, "h"}, "pid=4294967296": {0, both, 1 << 32, "h"},
		"host is empty": {0, both, 1, ""}, "host has 256 bytes": {0, both, 1, long}, "host=a?b has characters": {0, both, 1, "a\x1bb"},
	}
	metas := map[string]func(*Meta){
		"name is empty": func(m *Meta) { m.Name = "" }, "name has 256": func(m *Meta) { m.Name = long },
		"name=a?b": func(m *Meta) { m.Name = "a\nb" }, "kind=odd is none of": func(m *Meta) { m.Kind = "odd" },
		"dim=0 is not": func(m *Meta) { m.Dim = 0 }, "dim=16777217": func(m *Meta) { m.Dim = maxDim + 1 },
		"config is no JSON": func(m *Meta) { m.Config = []byte("{") }, "config has 65537": func(m *Meta) { m.Config = make([]byte, maxConfig+1) },
		"count=-1":          func(m *Meta) { m.Count = -1 },
		"dims has 65":       func(m *Meta) { m.Dims = make([]int64, maxDims+1) },
		"dims=[-1] is not":  func(m *Meta) { m.Dims = []int64{-1} },
		"up to 281":         func(m *Meta) { m.Dims = []int64{1 << 40, 1 << 40} },
		"count=6442450944,": func(m *Meta) { m.Dims = []int64{2} },
		"dims=[2 3 1073741824] is for a dense parameter only": func(m *Meta) { m.Kind = Sparse },
	}
	b := &backend{report: []byte("{}")}
	s, c := start(t, b, nil)
	conn, err := grpc.NewClient(s.Address(), grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithPerRPCCredentials(credential(token)))
	require.NoError(t, err)
	defer conn.Close()
	raw := pspb.NewAdminClient(conn) // a client without checks
	ctx := within(t)
	sides := func(want string, ours, theirs error) {
		t.Helper()
		for side, err := range []error{ours, fromGRPC("", "", theirs)} {
			assert.Equal(t, status.Argument, status.CodeOf(err), "%s, side %d", want, side)
			assert.ErrorContains(t, err, want)
		}
	}
	for want, m := range members {
		_, theirs := raw.Register(ctx, &pspb.RegisterRequest{Rank: int64(m.Rank), Role: m.Role, Pid: int64(m.PID), Host: m.Host})
		sides(want, c.Register(ctx, m), theirs)
	}
	for want, change := range metas {
		m := dense
		change(&m)
		_, ours := c.Declare(ctx, 1, m)
		_, theirs := raw.Declare(ctx, &pspb.DeclareRequest{From: 1, Name: m.Name, Kind: m.Kind, Dim: m.Dim, Config: m.Config, Count: m.Count, Dims: m.Dims})
		sides(want, ours, theirs)
	}
	_, ours := c.Declare(ctx, -1, dense)
	_, theirs := raw.Declare(ctx, &pspb.DeclareRequest{From: -1})
	sides("declare: from=-1", ours, theirs)
	_, theirs = raw.Barrier(ctx, &pspb.BarrierRequest{From: -1, Name: "x"})
	sides("barrier: from=-1", c.Barrier(ctx, -1, "x"), theirs)
	_, theirs = raw.Barrier(ctx, &pspb.BarrierRequest{})
	sides("barrier: name is empty", c.Barrier(ctx, 0, ""), theirs)
	_, theirs = raw.Complete(ctx, &pspb.CompleteRequest{From: 1 << 62})
	sides("complete: from=", c.Complete(ctx, 1<<62), theirs)
	for want, r := range map[string]*pspb.CheckpointRequest{
		"from=-1": {From: -1, Phase: "p", Dir: "/"}, "phase is empty": {Dir: "/"}, "dir= is no path": {Phase: "p"}, "step=-1": {Phase: "p", Dir: "/", Step: -1},
		"dir=a?b is no path": {Phase: "p", Dir: "a\x00b"}, "1 to 4095 bytes": {Phase: "p", Dir: strings.Repeat("/", 4096)},
	} {
		_, ours := c.Checkpoint(ctx, int(r.From), r.Phase, r.Dir, r.Step, r.Detail)
		_, theirs := raw.Checkpoint(ctx, r)
		sides(want, ours, theirs)
	}
	for _, rate := range []float64{-0.1, math.Inf(1), math.NaN()} {
		_, theirs := raw.SetLearningRate(ctx, &pspb.SetLearningRateRequest{Name: "w", Rate: rate})
		sides("rate=", c.SetLearningRate(ctx, "w", rate), theirs)
	}
	tasks := pspb.NewTasksClient(conn)
	for want, change := range map[string]func(*master.Data){
		"name is empty": func(d *master.Data) { d.Name = "" }, "-1 shards": func(d *master.Data) { d.Shards = -1 },
		"the digest has 129 bytes": func(d *master.Data) { d.Digest = strings.Repeat("x", 129) }, "lease=1ns": func(d *master.Data) { d.Lease = 1 },
	} {
		d := shards
		change(&d)
		_, ours := c.Open(ctx, 1, d)
		_, theirs := tasks.Open(ctx, &pspb.OpenRequest{From: 1, Name: d.Name, Shards: d.Shards, Digest: d.Digest, LeaseNs: int64(d.Lease), Retries: 7})
		sides(want, ours, theirs)
	}
	_, ours = c.Ask(ctx, -1, "d", 1, 0, 0)
	_, theirs = tasks.Ask(ctx, &pspb.AskRequest{From: -1, Name: "d"})
	sides("tasks: from=-1", ours, theirs)
	_, ours = c.Done(ctx, 0, master.Lease{})
	_, theirs = tasks.Done(ctx, &pspb.LeaseRequest{})
	sides("tasks: name is empty", ours, theirs)
	_, theirs = raw.SetLearningRate(ctx, &pspb.SetLearningRateRequest{})
	sides("set_learning_rate: name is empty", c.SetLearningRate(ctx, "", 1), theirs)
	assert.Zero(t, b.asked.Load())
}

func TestWaitsEnd(t *testing.T) {
	for name, c := range map[string]struct {
		end  func(cancel func(), client *Client, s *Server)
		code status.Code
		text string
	}{
		"by the caller":    {func(cancel func(), _ *Client, _ *Server) { cancel() }, status.Interrupted, "given up"},
		"with the client":  {func(_ func(), client *Client, _ *Server) { _ = client.Close() }, status.Interrupted, "given up"},
		"with the server":  {func(_ func(), _ *Client, s *Server) { s.Stop() }, status.PeerLeft, "does not answer"},
		"by its deadline":  {nil, status.Timeout, "has not answered before the deadline"},
		"twice the server": {func(_ func(), _ *Client, s *Server) { go s.Stop(); s.Stop() }, status.PeerLeft, "does not answer"},
	} {
		wait := func(t *testing.T, call func(ctx context.Context, client *Client) error) {
			b := &backend{inside: make(chan context.Context, 1)}
			s, client := start(t, b, nil)
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			if c.end == nil {
				ctx, cancel = context.WithTimeout(context.Background(), 300*time.Millisecond)
			}
			defer cancel()
			result := make(chan error)
			go func() { result <- call(ctx, client) }()
			seen := <-b.inside
			if c.end != nil {
				c.end(cancel, client, s)
			}
			err := <-result
			assert.Equal(t, c.code, status.CodeOf(err), "%v", err)
			assert.ErrorContains(t, err, c.text)
			select {
			case <-seen.Done():
			case <-time.After(patience):
				t.Fatal("the Backend still waits")
			}
		}
		t.Run(name, func(t *testing.T) {
			wait(t, func(ctx context.Context, client *Client) error { return client.Barrier(ctx, 1, "b") })
		})
		t.Run("a cut "+name, func(t *testing.T) {
			wait(t, func(ctx context.Context, client *Client) error {
				_, err := client.Checkpoint(ctx, 1, "write", "/d", 1, nil)
				return err
			})
		})
	}
}

func TestNobodyAnswers(t *testing.T) {
	s, c := start(t, &backend{}, nil)
	s.Stop()
	err := c.Complete(within(t), 0)
	assert.Equal(t, status.PeerLeft, status.CodeOf(err))
	assert.ErrorContains(t, err, "complete: the parameter server at "+s.Address()+" does not answer")
}

func TestAPanicEndsItsCall(t *testing.T) {
	var heard atomic.Value
	b := &backend{panics: "index out of range"}
	_, c := start(t, b, func(o *Options) { o.Panicked = func(why any) { heard.Store(why) } })
	err := c.Complete(within(t), 0)
	assert.Equal(t, status.Panic, status.CodeOf(err))
	assert.ErrorContains(t, err, "index out of range")
	assert.Equal(t, "index out of range", heard.Load())
}

func TestTrafficIsCounted(t *testing.T) {
	b := &backend{report: []byte("{}")}
	s, c := start(t, b, nil)
	other := dial(t, s, token)
	for method, err := range every(within(t), c) {
		require.NoError(t, err, method)
	}
	require.NoError(t, other.Complete(within(t), 0))
	assert.Error(t, other.Complete(within(t), -1)) // it is not sent
	mine, theirs := c.Traffic(), other.Traffic()
	assert.EqualValues(t, 12, mine.Calls)
	assert.EqualValues(t, 1, theirs.Calls)
	assert.EqualValues(t, 13, s.Traffic().Calls)
	// All that one side has sent arrives at the other one. A write is counted when it has returned,
	// which may be after the answer has arrived.
	assert.Eventually(t, func() bool {
		all := s.Traffic()
		mine, theirs = c.Traffic(), other.Traffic()
		return all.In == mine.Out+theirs.Out && all.Out == mine.In+theirs.In
	}, patience, time.Millisecond)
	// A call's token, name and request take more than a hundred bytes.
	assert.Greater(t, theirs.Out, uint64(100))
	assert.Greater(t, mine.Out, theirs.Out)
	assert.Positive(t, mine.In)

	long, before := sparse, c.Traffic().Out
	long.Config = []byte(`"` + strings.Repeat("x", 50_000) + `"`)
	_, err := c.Declare(within(t), 0, long)
	require.NoError(t, err)
	// The answer may arrive before the last write of the request has returned and is counted.
	assert.Eventually(t, func() bool { return c.Traffic().Out-before > 50_000 }, patience, time.Millisecond)
}

func TestAddresses(t *testing.T) {
	free, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	_, port, _ := net.SplitHostPort(free.Addr().String())
	require.NoError(t, free.Close())
	for given, want := range map[string]string{
		"": "127.0.0.1:", "127.0.0.1": "127.0.0.1:", ":" + port: "127.0.0.1:" + port, "localhost": "localhost:",
		"0.0.0.0": "127.0.0.1:", "0.0.0.0:0": "127.0.0.1:",
	} {
		s, c := start(t, &backend{}, func(o *Options) { o.Address = given })
		assert.True(t, strings.HasPrefix(s.Address(), want), "%q: %s", given, s.Address())
		assert.NoError(t, c.Complete(within(t), 0), given)
		s.Stop()
	}
	s, c := start(t, &backend{}, func(o *Options) { o.OneHost = false })
	assert.NoError(t, c.Complete(within(t), 0), s.Address())
}

func TestOptionsAreChecked(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	address := taken.Addr().String()
	_, port, _ := net.SplitHostPort(address)
	for want, o := range map[string]Options{
		"token of the parameter server has 15 bytes":           {Token: token[:15]},
		"limit=5 for requests is not from 4096":                {Token: token, Limit: 5},
		"limit=1073741824 for requests":                        {Token: token, Limit: 1 << 30},
		`address="` + address + `"`:                            {Token: token, Address: address},
		"can listen at none of [127.0.0.1]":                    {Token: token, Address: ":" + port, OneHost: true},
		`address="0.0.0.0:99999"`:                              {Token: token, Address: "0.0.0.0:99999"},
		"needs a certificate: cert is empty":                   {Token: token, TLS: TLS{CA: "/none"}},
		`needs both a certificate and its key: cert="/c"`:      {Token: token, TLS: TLS{Cert: "/c"}},
		`cert="/c" with key="/k": open /c: no such file or di`: {Token: token, TLS: TLS{Cert: "/c", Key: "/k"}},
	} {
		_, err := Serve(o, &backend{}, nil)
		assert.Equal(t, status.Argument, status.CodeOf(err), want)
		assert.ErrorContains(t, err, want)
	}
	for want, dial := range map[string]func() (*Client, error){
		"has 3 bytes":         func() (*Client, error) { return Dial("h:1", []byte("abc"), TLS{}) },
		"address=h of":        func() (*Client, error) { return Dial("h", token, TLS{}) },
		`ca="/none": open`:    func() (*Client, error) { return Dial("h:1", token, TLS{CA: "/none"}) },
		"both a certificate ": func() (*Client, error) { return Dial("h:1", token, TLS{Key: "/k"}) },
	} {
		_, err := dial()
		assert.Equal(t, status.Argument, status.CodeOf(err), want)
		assert.ErrorContains(t, err, want)
	}
}

func TestTokensDiffer(t *testing.T) {
	a, err := NewToken()
	require.NoError(t, err)
	b, err := NewToken()
	require.NoError(t, err)
	assert.Len(t, a, tokenBytes)
	assert.NotEqual(t, a, b)
}

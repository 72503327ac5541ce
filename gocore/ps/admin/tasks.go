package admin

import (
	"context"
	"strings"
	"time"

	"google.golang.org/grpc"

	"github.com/paddlempi/paddlempi/gocore/ps/admin/pspb"
	"github.com/paddlempi/paddlempi/gocore/ps/master"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// This file has both sides of the master's service.

// mostDigest is the most bytes of the digest of a data set.
const mostDigest = 128

// mostWait is the most time that Ask waits for a shard: the caller asks again.
const mostWait = 10 * time.Second

// taskService checks what clients say, and asks the master.
type taskService struct {
	pspb.UnimplementedTasksServer
	master Tasks
}

func checkData(from int, d *master.Data) error {
	if err := checkTasks("tasks", from, d.Name); err != nil {
		return err
	}
	if len(d.Digest) > mostDigest {
		return status.New(status.Argument, "tasks %q: the digest has %d bytes, more than %d", d.Name, len(d.Digest), mostDigest)
	}
	return d.Check()
}

func (s *taskService) Open(_ context.Context, r *pspb.OpenRequest) (*pspb.OpenReply, error) {
	d := master.Data{Name: r.Name, Shards: r.Shards, Digest: r.Digest, Shuffle: r.Shuffle, Seed: r.Seed, Lease: time.Duration(r.LeaseNs), Retries: int(r.Retries)}
	if err := checkData(int(r.From), &d); err != nil {
		return nil, toGRPC(err)
	}
	epoch, err := s.master.Open(int(r.From), d)
	return &pspb.OpenReply{Epoch: epoch}, toGRPC(err)
}

func (s *taskService) Ask(ctx context.Context, r *pspb.AskRequest) (*pspb.AskReply, error) {
	if err := checkTasks("tasks", int(r.From), r.Name); err != nil {
		return nil, toGRPC(err)
	}
	ctx, cancel := sooner(ctx)
	defer cancel()
	waits, stop := context.WithTimeout(ctx, max(0, min(mostWait, time.Duration(r.WaitNs))))
	defer stop()
	g, err := s.master.Ask(waits, int(r.From), r.Name, r.Request, r.Epoch)
	return &pspb.AskReply{Verdict: int32(g.Verdict), Epoch: g.Epoch, Shard: g.Shard, Fence: g.Fence, LeaseNs: int64(g.Lease)}, toGRPC(err)
}

// answer answers what a trainer says of a lease.
func answer(r *pspb.LeaseRequest, call func(from int, lease master.Lease) (bool, error)) (*pspb.LeaseReply, error) {
	if err := checkTasks("tasks", int(r.From), r.Name); err != nil {
		return nil, toGRPC(err)
	}
	counts, err := call(int(r.From), master.Lease{Name: r.Name, Epoch: r.Epoch, Shard: r.Shard, Fence: r.Fence, Reason: r.Reason})
	return &pspb.LeaseReply{Counts: counts}, toGRPC(err)
}

func (s *taskService) Renew(_ context.Context, r *pspb.LeaseRequest) (*pspb.LeaseReply, error) {
	return answer(r, s.master.Renew)
}

func (s *taskService) Done(_ context.Context, r *pspb.LeaseRequest) (*pspb.LeaseReply, error) {
	return answer(r, s.master.Done)
}

func (s *taskService) Return(_ context.Context, r *pspb.LeaseRequest) (*pspb.LeaseReply, error) {
	return answer(r, s.master.Return)
}

// Open makes the queue of a data set on the master, or finds the one of the same description, and
// returns its epoch.
func (c *Client) Open(ctx context.Context, from int, d master.Data) (epoch int64, err error) {
	if err := checkData(from, &d); err != nil {
		return 0, err
	}
	reply, err := c.tasks.Open(ctx, &pspb.OpenRequest{From: int64(from), Name: d.Name, Shards: d.Shards, Digest: d.Digest, Shuffle: d.Shuffle,
		Seed: d.Seed, LeaseNs: int64(d.Lease), Retries: int64(d.Retries)})
	return reply.GetEpoch(), fromGRPC("tasks", c.address, err)
}

// Ask asks the master for a shard of an epoch. It waits for so long, and for 10 s at the most,
// while there is none.
func (c *Client) Ask(ctx context.Context, from int, name string, request uint64, epoch int64, wait time.Duration) (master.Grant, error) {
	if err := checkTasks("tasks", from, name); err != nil {
		return master.Grant{}, err
	}
	r, err := c.tasks.Ask(ctx, &pspb.AskRequest{From: int64(from), Name: name, Request: request, Epoch: epoch, WaitNs: int64(wait)})
	g := master.Grant{Verdict: master.Verdict(r.GetVerdict()), Epoch: r.GetEpoch(), Shard: r.GetShard(), Fence: r.GetFence(), Lease: time.Duration(r.GetLeaseNs())}
	if err = fromGRPC("tasks", c.address, err); err == nil && (g.Verdict < master.Leased || g.Verdict > master.Over) {
		err = status.New(status.Unsupported, "tasks: the master at %s answers with verdict %d: another version of paddlempi?", c.address, g.Verdict)
	}
	return g, err
}

// say tells the master of a lease by one of its calls, and returns whether that counts.
func (c *Client) say(ctx context.Context, from int, l master.Lease, call func(context.Context, *pspb.LeaseRequest, ...grpc.CallOption) (*pspb.LeaseReply, error)) (counts bool, err error) {
	if err := checkTasks("tasks", from, l.Name); err != nil {
		return false, err
	}
	reason := strings.ToValidUTF8(l.Reason[:min(len(l.Reason), master.MostReason)], "?")
	reply, err := call(ctx, &pspb.LeaseRequest{From: int64(from), Name: l.Name, Epoch: l.Epoch, Shard: l.Shard, Fence: l.Fence, Reason: reason})
	return reply.GetCounts(), fromGRPC("tasks", c.address, err)
}

// Renew says that a trainer makes progress with a shard, and returns whether its lease counts.
func (c *Client) Renew(ctx context.Context, from int, l master.Lease) (counts bool, err error) {
	return c.say(ctx, from, l, c.tasks.Renew)
}

// Done says that a trainer has done a shard, and returns whether that counts.
func (c *Client) Done(ctx context.Context, from int, l master.Lease) (counts bool, err error) {
	return c.say(ctx, from, l, c.tasks.Done)
}

// Return gives a shard back, and returns whether that counts.
func (c *Client) Return(ctx context.Context, from int, l master.Lease) (counts bool, err error) {
	return c.say(ctx, from, l, c.tasks.Return)
}

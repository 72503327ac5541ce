package group

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/paddlempi/paddlempi/gocore/arrive"
	"github.com/paddlempi/paddlempi/gocore/coll"
	"github.com/paddlempi/paddlempi/gocore/coll/ipc"
	"github.com/paddlempi/paddlempi/gocore/mpi"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// Group is a process group as one of its members sees it. All methods are safe for
// concurrent use; collectives from several threads run in the order of the calls.
type Group struct {
	ID    int64
	Rank  int // of this process in the group
	Size  int
	Ranks []int // world rank of each member

	env     *Env
	key     uint64 // names the group on all members alike; 0 for the world and for groups of one
	local   bool   // all members share this node's memory
	coll    mpi.Comm
	side    mpi.Comm // messages, and the arrivals of a group that spans nodes
	arrival arrive.Arrival
	timeout atomic.Int64 // of an operation that names none, in nanoseconds

	mu        sync.Mutex
	busy      bool // a collective is under way: inline, or the first of queue
	queue     []*collective
	broken    error // why the group is unusable
	destroyed bool
	held      atomic.Int32  // len(waiting)
	waiting   []*half       // of messages, whose tensor is not ready, or that of one before; mu guards it
	announced atomic.Uint64 // newest sequence number this rank announced

	// Owned by whoever made busy true, by the holder of mu while busy is false.
	seq    uint64 // newest collective announced
	met    uint64 // newest collective at which everyone was seen; seq or seq-1
	inline coll.Program
	mapped *ipc.Peers // device memory of the other members; nil until it was wanted
}

// SetTimeout sets the deadline of operations that name none.
func (g *Group) SetTimeout(d time.Duration) { g.timeout.Store(int64(d)) }

// Timeout returns it.
func (g *Group) Timeout() time.Duration { return time.Duration(g.timeout.Load()) }

// Local tells whether all members share a node.
func (g *Group) Local() bool { return g.local }

// Submit carries out the operation described: at once, or as work whose handle is
// returned when the descriptor says asynchronous. Buffers that d points to need to
// stay only during the call; the memory of the tensors until the operation is over,
// and for ever after an error that breaks the group, for MPI may still use it then.
func (g *Group) Submit(d *op.Desc) (*work.Handle, work.Result, error) {
	trait, ok := op.TraitOf(d.Code)
	if !ok {
		return nil, work.Result{}, status.New(status.Argument, "there is no operation %d", d.Code)
	}
	if !trait.Collective {
		return g.message(d)
	}
	c := calls.Get().(*call)
	defer c.recycle()
	if err := g.check(d, &trait, c); err != nil {
		return nil, work.Result{}, g.decline(c, d.Code, err)
	}
	if d.Flags&op.FlagAsync == 0 {
		if err := g.awaitDevice(c); err != nil {
			return nil, work.Result{}, g.decline(c, d.Code, err)
		}
		if done, err := g.runInline(c); done {
			c.drop()
			return nil, work.Result{}, err
		}
	}
	t, err := g.newCollective(c)
	if err != nil {
		return nil, work.Result{}, g.decline(c, d.Code, err)
	}
	if d.Flags&op.FlagNotify != 0 {
		t.handle.Notify()
	}
	if err := g.enqueue(t); err != nil {
		t.discard()
		return nil, work.Result{}, err
	}
	if d.Flags&op.FlagAsync != 0 {
		g.env.Engine.Tick()
		g.env.Engine.StartProgress()
		return t.handle, work.Result{}, nil
	}
	r, err := g.await(t)
	return nil, r, t.handle.Follow(uint64(c.stream), err)
}

// decline ends a call that was not announced, and tells the others of it; it returns err.
func (g *Group) decline(c *call, code op.Code, err error) error {
	c.drop()
	g.refuse(code)
	return err
}

// Refuse publishes that this rank found its own call of code wrong before it came
// here. Every other member's call raises and names this rank; the group stays usable.
func (g *Group) Refuse(code op.Code) error {
	g.refuse(code)
	return g.usable(code)
}

func (g *Group) refuse(code op.Code) {
	if trait, ok := op.TraitOf(code); !ok || !trait.Collective || g.Size == 1 {
		return
	}
	t := &collective{g: g, handle: g.env.Engine.NewHandle(), refused: true}
	t.call.args.Code = code
	t.call.sig[0] = uint64(code)
	t.call.deadline = time.Now().Add(g.Timeout())
	if g.enqueue(t) == nil {
		g.env.Engine.Tick()
		g.env.Engine.StartProgress()
	}
}

// usable returns why the group cannot run code, nil if it can.
func (g *Group) usable(code op.Code) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.usableLocked(code)
}

func (g *Group) usableLocked(code op.Code) error {
	switch {
	case g.destroyed:
		return status.New(status.GroupDestroyed, "%s: the group of ranks %s was destroyed; make a new one with new_group", code, brief(g.Ranks))
	case g.broken != nil:
		return status.New(status.GroupBroken, "%s: the group of ranks %s is broken by an earlier failure (%v); make a new group, or end the job",
			code, brief(g.Ranks), g.broken)
	}
	return nil
}

// fail makes the group unusable because of err. What is queued fails with it.
func (g *Group) fail(err error) {
	g.mu.Lock()
	if g.broken == nil {
		g.broken = err
	}
	if !g.busy {
		g.closeNext(g.broken)
	}
	queue := g.queue
	g.queue = nil
	g.mu.Unlock()
	for _, t := range queue {
		t.end(status.New(status.GroupBroken, "%s: given up because an operation before it failed: %v", t.call.args.Code, err))
		t.discard()
	}
}

// closeNext tells the others that this member will not come to another collective,
// because of err. Whoever waits for it, or comes later, raises at once.
func (g *Group) closeNext(err error) {
	if g.met == g.seq {
		g.arrival.GiveUp(g.seq+1, status.CodeOf(err))
	}
}

// Broken returns why the group is unusable, nil if it is not.
func (g *Group) Broken() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.broken
}

// Destroy frees the group on this rank, after what is under way. Members that were
// not told fail when they next use it.
func (g *Group) Destroy() error {
	g.mu.Lock()
	if g.destroyed {
		g.mu.Unlock()
		return status.New(status.GroupDestroyed, "destroy_process_group: the group of ranks %s was destroyed before", brief(g.Ranks))
	}
	g.destroyed = true
	g.mu.Unlock()
	err := g.env.Engine.Wait(g.Idle, time.Now().Add(g.Timeout()), g.env.Interrupt)
	g.env.forget(g)
	if status.CodeOf(err) == status.Interrupted {
		return err
	}
	if !g.Idle() || g.Broken() != nil {
		return nil // requests may still be under way: the communicators stay
	}
	g.mu.Lock()
	g.closeNext(status.New(status.GroupDestroyed, "destroyed"))
	g.mu.Unlock()
	if g.mapped != nil {
		g.mapped.Close()
	}
	if err := g.arrival.Close(); err != nil {
		return status.New(status.MPI, "destroy_process_group: %v", err)
	}
	if g.Size == 1 {
		if g.coll != 0 {
			return g.env.Lib.Free(g.coll)
		}
		return nil
	}
	if err := g.env.Lib.Free(g.side); err != nil {
		return err
	}
	return g.env.Lib.Free(g.coll)
}

// Settled tells whether MPI has let go of everything that collectives of the group gave
// it. No more are submitted.
func (g *Group) Settled() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return !g.busy && len(g.queue) == 0 && (g.destroyed && g.broken == nil || g.arrival.Settled())
}

// Idle tells whether no collective is under way or queued.
func (g *Group) Idle() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return !g.busy && len(g.queue) == 0
}

func (g *Group) String() string { return fmt.Sprintf("group of ranks %s", brief(g.Ranks)) }

// peer and source translate between ranks of the group and of its communicators:
// a group of one sends to itself by its world rank.
func (g *Group) peer(rank int32) int32 {
	if g.Size == 1 && rank == 0 {
		return int32(g.Ranks[0])
	}
	return rank
}

func (g *Group) source(rank int32) int32 {
	if g.Size == 1 {
		return 0
	}
	return rank
}

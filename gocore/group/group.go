package group

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/paddlempi/paddlempi/gocore/arrive"
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
	key     uint64   // names the group on all members alike; 0 for the world and for groups of one
	local   bool     // all members share this node's memory
	coll    mpi.Comm // 0 for a group of one
	side    mpi.Comm // messages, and the arrivals of a group that spans nodes; of a group of one 0 until its first message
	arrival arrive.Arrival
	wire    *arrive.Wire // arrival, if the group spans nodes
	inquiry inquiry      // about a collective that others do not come to; if the group spans nodes
	timeout atomic.Int64 // of an operation that names none, in nanoseconds

	mu        sync.Mutex
	busy      bool // a collective is under way: inline, or the first of queue
	queue     []*collective
	broken    error        // why the group is unusable
	destroyed bool         // it takes no more calls
	freed     bool         // nothing of it is left: see free
	held      atomic.Int32 // len(waiting)
	waiting   []*half      // of messages, whose tensor is not ready, or that of one before; mu guards it

	ended    atomic.Pointer[status.Error] // why the waits of this group are over; nil while they are not
	messages atomic.Int32                 // messages and probes under way, also those that nobody waits for
	async    atomic.Int32                 // operations whose callers did not wait and were not told yet

	// Owned by whoever made busy true, by the holder of mu while busy is false.
	seq    uint64     // newest collective announced
	met    uint64     // newest collective at which everyone was seen; seq or seq-1
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
// stay only during the call; the memory of the tensors until the operation is over. After
// some errors MPI may use it longer: then a handle comes with the error, which is
// settled when MPI does not.
//
// nested says that the call comes from a handler that interrupted a wait of its own thread.
func (g *Group) Submit(d *op.Desc, nested bool) (*work.Handle, work.Result, error) {
	trait, ok := op.TraitOf(d.Code)
	if !ok {
		return nil, work.Result{}, status.New(status.Argument, "there is no operation %d", d.Code)
	}
	if !trait.Collective {
		return g.message(d)
	}
	c := calls.Get().(*call)
	defer c.recycle()
	c.nested, c.async = nested, d.Flags&op.FlagAsync != 0
	if err := g.check(d, &trait, c); err != nil {
		return nil, work.Result{}, g.decline(c, d.Code, err)
	}
	if err := c.reserve(); err != nil {
		return nil, work.Result{}, g.decline(c, d.Code, err)
	}
	if !c.async {
		if err := g.awaitDevice(c); err != nil {
			return nil, work.Result{}, g.decline(c, d.Code, err)
		}
		if done, lingering, err := g.runInline(c); done {
			c.drop()
			return lingering, work.Result{}, err
		}
	}
	t := g.newCollective(c)
	t.handle.Watch(d.Cookie, d.State)
	if d.Flags&op.FlagNotify != 0 {
		t.handle.Notify()
	}
	if err := g.enqueue(t); err != nil {
		t.discard()
		return nil, work.Result{}, err
	}
	if c.async {
		g.env.Engine.Tick()
		g.env.Engine.StartProgress()
		return t.handle, work.Result{}, nil
	}
	return g.await(t)
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
	t.call.args.Code, t.call.async = code, true
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
	g.env.brokeAfter(g.Timeout())
	g.mu.Lock()
	if g.broken == nil {
		g.broken = err
	}
	if !g.busy {
		g.closeNext(status.CodeOf(g.broken))
	}
	queue := g.queue
	g.queue = nil
	g.mu.Unlock()
	g.drop(queue, status.New(status.GroupBroken, "an operation before it failed: %v", err))
}

// Broken returns why the group is unusable, nil if it is not.
func (g *Group) Broken() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.broken
}

func (g *Group) String() string { return fmt.Sprintf("group of ranks %s", brief(g.Ranks)) }

package collective

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/paddlempi/paddlempi/gocore/arrive"
	"github.com/paddlempi/paddlempi/gocore/coll"
	"github.com/paddlempi/paddlempi/gocore/coll/ipc"
	"github.com/paddlempi/paddlempi/gocore/messages"
	"github.com/paddlempi/paddlempi/gocore/neighbours"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/trace"
	"github.com/paddlempi/paddlempi/gocore/tune"
	"github.com/paddlempi/paddlempi/gocore/world"
)

// Group is a process group as its collectives see it: its members, by what they arrive, and the collectives of this member in
// their order. All methods are safe for concurrent use.
// Collectives from several threads run in the order of the calls.
type Group struct {
	Member

	// What the group is made of. It is set before Init.
	ID       int64
	Key      uint64       // identifies the group; the same on all members; 0 for the world and for groups of one
	Local    bool         // all members are on this node and share memory
	Nodes    int          // on which the members are, if the group has a wire
	Rails    int          // members on the smallest node, if the group may work in levels; else 0
	Levels   *coll.Levels // nil if it may not
	Here     *Group       // the members on this node, if levels is set and there are several
	Silent   bool         // its collectives are parts of those of another group, which records and reports them
	MPI      coll.MPI     // what the algorithms of coll that call MPI need of it
	Messages *messages.Messages
	Arrival  arrive.Arrival
	Wire     *arrive.Wire  // equal to arrival if that is by wire, else nil
	Payloads coll.Payloads // of the arrival; nil in a group of one
	Node     *coll.Node    // set if the group is local and has several members
	Forced   coll.Forced   // algorithms that are preferred to the registry's order
	Blocks   *coll.Blocks  // for these, if the members share memory; else nil
	Bounce   *coll.Bounce  // for tensors in ordinary memory, if the members share memory; else nil
	Tuner    *tune.Tuner   // what is known of the ways of a group with a wire; else nil. Init makes it
	Lends    bool          // tensors of halos that lie in the heap, if the members share memory

	choices  coll.Choices        // what the registry says of the calls that were made
	spin     int                 // pauses for which a synchronous call looks whether the others have come
	ring     *trace.Ring         // the flight recorder's
	calls    checkedCalls        // short calls that may be repeated
	Patterns neighbours.Patterns // of the exchanges with neighbours
	Inquiry  inquiry             // which members have come to the current collective; used with a wire
	timeout  atomic.Int64        // of an operation that has no timeout of its own, in nanoseconds
	turns    turns

	async     atomic.Int32                   // asynchronous collectives whose end was not reported yet
	algorithm atomic.Pointer[coll.Algorithm] // of the last collective; nil before the first
	told      atomic.Bool                    // the members on other nodes were told that this one takes no part any more
	blocking  atomic.Uint64                  // the collective for which a thread is inside blocking MPI calls; 0: none
	stuck     stuck                          // what the watcher, which alone uses it, knows of that collective

	// These fields belong to the collective that is under way, and to the holder of turns.mu while turns.busy is false.
	mapped uint64     // newest collective that was done in mapped memory
	peers  *ipc.Peers // device memory of the other members; nil before its first use
}

// Member is this process as a member of a group: it has the fields of world.Members, whose methods are those of Group.Members.
type Member world.Members

// Members returns the members of the group.
func (g *Group) Members() *world.Members { return (*world.Members)(&g.Member) }

// Init makes a group ready whose members and means are set.
func (g *Group) Init(timeout time.Duration) {
	g.Inquiry.g, g.turns.g, g.spin, g.ring = g, g, arrivalSpin, g.Env.Recorder.Ring()
	if g.Env.Node.Crowded() {
		g.spin = crowdedSpin
	}
	g.timeout.Store(int64(timeout))
	if g.Wire != nil {
		g.Tuner = tune.New(modes(g.Forced), g.Env.TableOf(g.Size), g.Env.Groups.Tuning.Latency)
	}
	if g.Here != nil {
		g.Levels.Phases = phases{g}
	}
}

// SetTimeout sets the timeout of operations that have none of their own.
func (g *Group) SetTimeout(d time.Duration) { g.timeout.Store(int64(d)) }

// Timeout returns the timeout of operations that have none of their own.
func (g *Group) Timeout() time.Duration { return time.Duration(g.timeout.Load()) }

// Algorithm returns the name of the algorithm that the last collective of this member took, or "".
func (g *Group) Algorithm() string {
	if alg := g.algorithm.Load(); alg != nil {
		return alg.Name
	}
	return ""
}

// Served returns which algorithms serve the collectives of a group over nodes; nil for another group.
func (g *Group) Served() []coll.Served {
	if g.Wire == nil {
		return nil
	}
	return coll.AlgorithmsBySize(coll.Sig{Size: g.Size, Nodes: g.Nodes, Rails: g.Rails, Forced: g.Forced}, g.Payloads.Rooms())
}

// Usable returns why the group cannot carry out an operation, nil if it can. The error names the operation.
func (g *Group) Usable(code op.Code) error {
	g.turns.mu.Lock()
	defer g.turns.mu.Unlock()
	return g.turns.usable(code)
}

// noteBroken ends messages without Go, and lets the departure know that the group broke, and how long its calls wait. The deadline of a silent group is
// that of the group that it is a part of, which breaks with it.
func (g *Group) noteBroken() {
	g.Messages.CloseQuick()
	if !g.Silent {
		g.Env.Departure.BrokeAfter(g.Timeout())
	}
}

// Fail breaks the group because of err. The queued collectives fail as well.
func (g *Group) Fail(err error) {
	g.noteBroken()
	g.turns.mu.Lock()
	if g.turns.broken == nil {
		g.turns.broken = err
	}
	if !g.turns.busy {
		g.turns.closeNext(status.CodeOf(g.turns.broken))
	}
	queue := g.turns.queue
	g.turns.queue = nil
	g.turns.mu.Unlock()
	g.failHere(err)
	g.tellOthers()
	drop(queue, status.New(status.GroupBroken, "an operation before it failed: %v", err))
}

// Broken returns why the group is broken, nil if it is not.
func (g *Group) Broken() error {
	g.turns.mu.Lock()
	defer g.turns.mu.Unlock()
	return g.turns.broken
}

func (g *Group) String() string { return fmt.Sprintf("group of ranks %s", status.Brief(g.Ranks)) }

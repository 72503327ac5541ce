package group

import (
	"encoding/binary"
	"hash/fnv"
	"slices"
	"time"

	"github.com/paddlempi/paddlempi/gocore/arrive"
	"github.com/paddlempi/paddlempi/gocore/coll"
	"github.com/paddlempi/paddlempi/gocore/collective"
	"github.com/paddlempi/paddlempi/gocore/comm"
	"github.com/paddlempi/paddlempi/gocore/health"
	"github.com/paddlempi/paddlempi/gocore/heap"
	"github.com/paddlempi/paddlempi/gocore/messages"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/trace"
	"github.com/paddlempi/paddlempi/gocore/transport"
	"github.com/paddlempi/paddlempi/gocore/world"
)

// Group is a process group as one of its members sees it. All methods are safe for concurrent use.
type Group struct {
	collective.Group
	collComm transport.Comm // for collectives; nil in a group of one, unless that is the world
}

// World makes the group of all ranks of e. It is collective over them.
func World(e *world.Env, id int64, timeout time.Duration) (*Group, error) {
	over, err := e.Base.Dup(nil)
	if err != nil {
		return nil, err
	}
	ranks := transport.EveryRank(e.Topo.Size)
	var g *Group
	build := func(comm transport.Comm) (err error) {
		g, err = assemble(e, id, 0, ranks, comm, e.Groups.Forced, timeout)
		return err
	}
	err = comm.First(e, ranks, timeout, over, build)
	return g, err
}

// New makes a group of the given world ranks of e, in their order; this rank is one of them. It is
// collective over the members only. The members first meet by messages, because
// MPI_Comm_create_group (MPI-4.1 section 7.4.2) has no deadline; the error names the ranks that
// never came. The group's two communicators are made at once, not at first use. Otherwise two ranks
// could use two groups in different orders for the first time, and each would wait in the creation
// of another communicator.
func New(e *world.Env, id int64, ranks []int, timeout time.Duration) (*Group, error) {
	defer e.Use()()
	if err := e.EndingError("new_group", ranks); err != nil {
		return nil, err
	}
	if len(ranks) == 1 {
		return assemble(e, id, 0, ranks, nil, 0, timeout)
	}
	c, err := comm.Meet(e, "new_group", "called new_group with the same ranks; every member must call it, in the same order", ranks, timeout)
	if err != nil {
		return nil, err
	}
	var g *Group
	err = c.Run(func(over transport.Comm) error {
		forced, err := world.AgreeOnForced("new_group", over)
		if err != nil {
			c.Common = true
			return err
		}
		g, err = assemble(e, id, c.Key, ranks, over, forced, timeout)
		return err
	}, func(why error) {
		g.Fail(why) // the others may have made it
		e.Forget(g) // its communicators stay: to free them takes all members
	})
	if err != nil {
		return nil, err
	}
	return g, nil
}

// assemble makes everything of a group but its first communicator.
func assemble(e *world.Env, id int64, key uint64, ranks []int, comm transport.Comm, forced coll.Forced, timeout time.Duration) (*Group, error) {
	g := &Group{collComm: comm, Group: collective.Group{Member: collective.Member{Env: e, Rank: slices.Index(ranks, e.Topo.Rank), Size: len(ranks), Ranks: ranks}, ID: id, Key: key, MPI: coll.On(e.Base, comm), Forced: forced}}
	remaining.free()
	if err := join(&g.Group, comm); err != nil {
		return nil, err
	}
	g.Init(timeout)
	var asked health.Respondent
	if g.Wire != nil {
		asked = &g.Inquiry
	}
	e.Remember(g, trace.Group{ID: id, Key: key, Rank: g.Rank, Ranks: ranks}, asked, collective.RevocationOf(&g.Group))
	return g, nil
}

// join makes the group's arrival, and what carries its messages. It is collective over comm.
func join(g *collective.Group, comm transport.Comm) error {
	var own transport.Comm // carries messages; of a group of one, the first message makes it
	if g.Size == 1 {
		g.Local, g.Arrival = true, new(arrive.Alone)
	} else {
		err := arriveOver(g, comm)
		if err == nil && g.Local {
			own, err = g.Env.Node.Connect(g.Ranks, g.Key)
		}
		if err == nil && own == nil {
			own, err = comm.Dup(nil)
		}
		if err != nil {
			return err
		}
	}
	g.Messages = messages.New(g.Members(), g.ID, g.Key, own, g)
	return nil
}

// arriveOver makes the arrival. It is collective over comm.
func arriveOver(g *collective.Group, comm transport.Comm) error {
	if g.Env.Topo.OneNode(g.Ranks) {
		slots, _, err := g.Env.Node.MakeControlSlots(comm, transport.EveryRank(g.Size), coll.BounceWords(g.Size))
		if err != nil {
			return err
		}
		if slots != nil {
			g.Local, g.Arrival, g.Payloads = true, slots, slots
			g.Node = &coll.Node{Slots: slots, Heaps: g.Members()}
			if shared, _ := g.Env.Node.Heaps(); shared {
				g.Blocks = &coll.Blocks{Slots: slots}
				g.Bounce = &coll.Bounce{Rank: g.Rank, Size: g.Size, Crowded: g.Env.Node.Crowded(), YieldEvery: slots.Yields(), Told: slots.Behind(), Heap: heap.OfProcess,
					Heaps: g.Members(), Presence: slots}
				g.Lends = !g.Env.Node.Crowded() // there a second wait costs more than a copy
			}
			return nil
		}
	}
	board, err := makeLevels(g, comm)
	if err != nil {
		return err
	}
	nodes := arrive.OfOneEach(g.Size)
	if g.Levels != nil && g.Forced&coll.WithoutLevels == 0 {
		nodes = g.Levels.Nodes
	} else {
		board = nil
	}
	if g.Wire, err = arrive.NewWire(comm, coll.ArrivalTag, nodes, board); err != nil {
		return err
	}
	g.Arrival, g.Payloads = g.Wire, g.Wire
	return nil
}

// MonitoredBarrier returns when all members have called it. It uses messages and has no part in the
// order of the collectives. If some members do not come within timeout, the others get an error
// that names them, and the group stays usable.
func (g *Group) MonitoredBarrier(timeout time.Duration) error {
	defer g.Env.Use()()
	if err := g.Usable(op.Barrier); err != nil || g.Size == 1 {
		return err
	}
	h := fnv.New64a()
	h.Write(binary.LittleEndian.AppendUint64([]byte("monitored_barrier"), g.Key))
	return g.Env.Meet("monitored_barrier", "called monitored_barrier on this group; the group stays usable", h.Sum64(), g.Ranks, timeout)
}

// Carrier returns what carries the messages of the group's windows, and their tag: the communicator of its collectives, whose
// other messages have other tags. A window of a group so needs no communicator of its own, of which an MPI has some 1,000 only.
// It is nil in a group of one.
func (g *Group) Carrier() (on transport.Endpoint, tag int32) {
	if g.Size == 1 {
		return nil, 0
	}
	return g.collComm, coll.WindowTag
}

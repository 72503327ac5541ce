package group

import (
	"slices"

	"github.com/paddlempi/paddlempi/gocore/arrive"
	"github.com/paddlempi/paddlempi/gocore/coll"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/transport"
	"github.com/paddlempi/paddlempi/gocore/work"
	"github.com/paddlempi/paddlempi/gocore/world"
)

// A group over nodes may work in levels (coll.Levels). Its members on this node are a group of their own then, which
// only the collectives of the whole group use, one at a time. It has no communicator: its collectives need no MPI.

// makeLevels makes what the members on this node share, if the members of every node can share memory. The board is nil
// for a member that is alone on its node. It is collective over comm.
func (g *Group) makeLevels(comm transport.Comm) (*arrive.Board, error) {
	nodes := g.Env.Topo.ByNode(g.Ranks)
	if g.nodes = len(nodes); g.nodes == 1 || g.nodes == g.Size {
		return nil, nil
	}
	here := nodes[slices.IndexFunc(nodes, func(members []int) bool { return slices.Contains(members, g.Rank) })]
	slots, _, err := g.Env.Node.MakeControlSlots(comm, here, arrive.BoardSize(len(here), g.Size))
	if err != nil {
		return nil, err
	}
	l := &coll.Levels{LocalRank: slices.Index(here, g.Rank), LocalSize: len(here), Nodes: nodes}
	can := []int64{1}
	if shared, _ := g.Env.Node.Heaps(); l.LocalSize > 1 && (slots == nil || !shared) {
		can[0] = 0
	}
	if err := comm.Min(can); err != nil {
		return nil, err
	}
	if can[0] == 0 {
		if slots != nil {
			_ = slots.Close()
		}
		return nil, nil
	}
	g.rails = len(here)
	for _, members := range nodes {
		g.rails = min(g.rails, len(members))
	}
	if l.LocalRank < g.rails {
		for _, members := range nodes {
			l.Rail = append(l.Rail, members[l.LocalRank])
		}
	}
	g.levels = l
	if slots == nil {
		return nil, nil
	}
	h := &Group{Members: world.Members{Env: g.Env, Rank: l.LocalRank, Size: len(here), Ranks: g.World(here)}, ID: g.ID, key: g.key, mpi: coll.On(g.Env.Base, nil),
		local: true, arrival: slots, payloads: slots, silent: true}
	h.node = &coll.Node{Slots: slots, Heaps: &h.Members}
	h.inquiry.g, h.spin = h, g.spin
	h.timeout.Store(int64(work.Longest)) // the collective of the whole group has the deadline
	g.here = h
	l.Phases = phases{g}
	return arrive.NewBoard(slots.Behind(), here, g.Rank, g.Size), nil
}

// phases implements coll.Phases.
type phases struct{ g *Group }

// Start implements coll.Phases. What it begins is over when nobody on this node works on it any more.
func (p phases) Start(d *op.Desc) (over func() (bool, error), err error) {
	g := p.g
	h, _, err := g.here.Submit(d, false)
	if err != nil {
		return nil, g.onThisNode(err)
	}
	return func() (bool, error) {
		if !h.Settled() {
			return false, nil
		}
		_, err := h.Result()
		code := status.CodeOf(err)
		if code != status.GroupBroken && code != status.Timeout && code != status.PeerLeft { // its own deadline does not pass
			return true, g.onThisNode(err)
		}
		// A member has left the work, and perhaps the job, because the whole group is broken: all had come to the collective.
		// Who was the first comes by message.
		if len(g.arrival.Closers(g.turn)) == 0 {
			g.inquiry.whoWasFirst()
		}
		if len(g.arrival.Closers(g.turn)) > 0 {
			return true, g.current.closedError()
		}
		return true, g.onThisNode(err)
	}, nil
}

// Fail implements coll.Phases.
func (p phases) Fail(err error) { p.g.failHere(err) }

// onThisNode returns the error of a collective of the members on this node.
func (g *Group) onThisNode(err error) error {
	if err == nil {
		return nil
	}
	e := status.New(status.CodeOf(err), "among the ranks on this node: %v", err)
	if from, ok := err.(*status.Error); ok {
		e.Ranks = from.Ranks
	}
	return e
}

// End ends every wait of the group because of why.
func (g *Group) End(why *status.Error) {
	g.Members.End(why)
	if g.here != nil {
		g.here.Members.End(why)
	}
}

// failHere tells the other members on this node that the group is broken because of err.
func (g *Group) failHere(err error) {
	if g.here == nil {
		return
	}
	g.here.Fail(err)
	g.here.Members.End(status.New(status.CodeOf(err), "the group is broken: %v", err))
}

// freeHere gives back what the members on this node share. No collective of theirs is under way.
func (g *Group) freeHere() {
	if g.here != nil {
		_ = g.here.arrival.Close()
	}
	if g.levels != nil {
		g.levels.Free()
	}
}

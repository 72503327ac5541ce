package group

import (
	"slices"

	"github.com/paddlempi/paddlempi/gocore/arrive"
	"github.com/paddlempi/paddlempi/gocore/coll"
	"github.com/paddlempi/paddlempi/gocore/collective"
	"github.com/paddlempi/paddlempi/gocore/transport"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// A group over nodes may work in levels (coll.Levels). Its members on this node are a group of their own then, which
// only the collectives of the whole group use, one at a time. It has no communicator: its collectives need no MPI.

// makeLevels makes what the members on this node share, if the members of every node can share memory. The board is nil
// for a member that is alone on its node. It is collective over comm.
func makeLevels(g *collective.Group, comm transport.Comm) (*arrive.Board, error) {
	nodes := g.Env.Topo.ByNode(g.Ranks)
	if g.Nodes = len(nodes); g.Nodes == 1 || g.Nodes == g.Size {
		return nil, nil
	}
	here := nodes[slices.IndexFunc(nodes, func(members []int) bool { return slices.Contains(members, g.Rank) })]
	slots, _, err := g.Env.Node.MakeControlSlots(comm, here, arrive.BoardSize(len(here), nodes))
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
	g.Rails = len(slices.MinFunc(nodes, func(a, b []int) int { return len(a) - len(b) }))
	if l.LocalRank < g.Rails {
		for _, members := range nodes {
			l.Rail = append(l.Rail, members[l.LocalRank])
		}
	}
	g.Levels = l
	if slots == nil {
		return nil, nil
	}
	h := &collective.Group{Member: collective.Member{Env: g.Env, Rank: l.LocalRank, Size: len(here), Ranks: g.Members().World(here)}, ID: g.ID, Key: g.Key, MPI: coll.On(g.Env.Base, nil),
		Local: true, Arrival: slots, Payloads: slots, Silent: true}
	h.Node = &coll.Node{Slots: slots, Heaps: h.Members()}
	h.Init(work.Longest) // the collective of the whole group has the deadline
	g.Here = h
	return arrive.NewBoard(slots.Behind(), here, g.Rank, nodes), nil
}

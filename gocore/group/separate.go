package group

import (
	"fmt"
	"slices"
	"time"

	"github.com/paddlempi/paddlempi/gocore/heap"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/transport"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// This file has what another room of the core needs that moves bytes between the members of a group by
// itself, outside the group's operations (ps/link).

// Me returns the rank of this process in the group, and how many members that has.
func (g *Group) Me() (rank, size int) { return g.Rank, g.Size }

// WorldRank returns the world rank of a member.
func (g *Group) WorldRank(member int) int { return g.Ranks[member] }

// HeapOf returns the heap of another member; nil if it cannot be mapped here. It is in use between Use
// and done only.
func (g *Group) HeapOf(member int) *heap.View { return g.Env.Node.Heap(g.Ranks[member]) }

// Engine returns what drives requests of the transport.
func (g *Group) Engine() *work.Engine { return g.Env.Engine }

// Crowded tells whether this node has more ranks than cores.
func (g *Group) Crowded() bool { return g.Env.Node.Crowded() }

// Use says that a thread, or a request of MPI, uses the group until done is called. The end of the world
// waits for that a while, and else does not finalize MPI. The user calls Trouble after Use and then now
// and then, and ends when there is some.
func (g *Group) Use() (done func()) {
	return g.Env.Use()
}

// Trouble returns why a wait for a member, which what describes, has to end: the member died or left, or the
// group ends. Of this rank itself only the latter is looked at. It returns nil while the wait may go on.
func (g *Group) Trouble(what string, member int) error {
	if err := g.EndingError(what); err != nil {
		return err
	}
	r := g.Ranks[member]
	switch {
	case member == g.Rank:
	case g.Env.Roster.Died(r):
		return g.DiedError(what, []int{member}, "it will not answer")
	case g.Env.Roster.LeftInOrder(r):
		return status.New(status.PeerLeft, "%s: rank %d has ended and will not answer", g.Of(what), r).WithRanks(r)
	}
	return nil
}

// Separate makes a communicator of the members that carries nothing else. It is collective, and the
// members call it in the same order as new_group. meanwhile is called on each of them, and may exchange
// words: tell gives this member's, of the same number on all, and returns those of all, by rank. All
// members call tell equally often. In a group of one rank the communicator is nil.
func (g *Group) Separate(what string, timeout time.Duration, meanwhile func(tell func(words []int64) ([][]int64, error)) error) (transport.Comm, error) {
	e := g.Env
	defer g.Use()()
	if err := g.EndingError(what); err != nil {
		return nil, err
	}
	if g.Size == 1 {
		return nil, meanwhile(func(words []int64) ([][]int64, error) { return [][]int64{slices.Clone(words)}, nil })
	}
	key := e.Key(g.Ranks)
	need := fmt.Sprintf("called %s; every member must call it, in the same order as new_group", what)
	if err := e.Meet(what, need, key, g.Ranks, timeout); err != nil {
		e.Unmake(g.Ranks)
		return nil, err
	}
	var comm transport.Comm
	err := create(e, what, g.Ranks, func() (err error) {
		if comm, err = e.Base.Create(g.Ranks, key); err != nil {
			return err
		}
		return meanwhile(func(words []int64) ([][]int64, error) { return comm.Gather(words, nil) })
	}, func() {})
	if err != nil {
		if status.CodeOf(err) != status.PeerDied && comm != nil { // else create may still use it, and all members free it
			_ = comm.Free()
		}
		return nil, err
	}
	return comm, nil
}

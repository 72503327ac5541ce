package world

import (
	"fmt"
	"slices"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/heap"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// Members are the members of a group, as one of them sees it, and the waits of that one for the others. All methods are
// safe for concurrent use. What describes the operation of an error.
type Members struct {
	Env   *Env
	Rank  int // rank of this process in the group
	Size  int
	Ranks []int // Ranks[i] is the world rank of member i

	ended atomic.Pointer[status.Error] // why no operation of the group must wait any longer; nil while they may
}

// End ends every wait of the group because of why.
func (m *Members) End(why *status.Error) { m.ended.Store(why) }

// Ending returns why no operation of the group may wait any longer, nil while they may.
func (m *Members) Ending() error {
	if why := m.ended.Load(); why != nil {
		return why
	}
	return m.Env.Ending()
}

// EndingError is Ending as an error of one operation.
func (m *Members) EndingError(what string) error {
	why := m.Ending()
	switch {
	case why == nil:
		return nil
	case m.Env.Reformed():
		return status.New(status.GroupDestroyed, "%s: the world was reformed, and this group is of the one before; make a new one with new_group", m.Of(what))
	}
	return status.New(status.CodeOf(why), "%s: %v", m.Of(what), why)
}

// Wait drives the engine until done returns true. It returns an error of Engine.Wait, or the reason
// why the group ends.
func (m *Members) Wait(done func() bool, deadline time.Time) error {
	return m.Env.wait(m.Env.Engine.Wait, done, m.Ending, deadline)
}

// WaitRung is Wait where whoever does what done waits for rings a bell: see Engine.WaitRung.
func (m *Members) WaitRung(done func() bool, deadline time.Time) error {
	return m.Env.wait(m.Env.Engine.WaitRung, done, m.Ending, deadline)
}

// Of describes an operation of the group.
func (m *Members) Of(what string) string {
	return fmt.Sprintf("%s on the group of ranks %s", what, status.Brief(m.Ranks))
}

// World returns the world ranks of members.
func (m *Members) World(members []int) []int {
	var ranks []int
	for _, i := range members {
		ranks = append(ranks, m.Ranks[i])
	}
	return ranks
}

// Dead returns the members that are dead. It looks at once.
func (m *Members) Dead() (members []int) {
	for _, r := range m.Env.Roster.Dead(m.Ranks) {
		members = append(members, slices.Index(m.Ranks, r))
	}
	return members
}

// AnyDied tells whether a member is dead, as Roster.Died does.
func (m *Members) AnyDied() bool { return m.Env.Roster.AnyDied(m.Ranks) }

// DiedError is the error of an operation because of dead members. after says what became of the operation and its
// group.
func (m *Members) DiedError(what string, members []int, after string) error {
	return m.Env.Roster.DiedError(m.Of(what), m.World(members), after)
}

// AwaitName waits, on the thread of a caller, as long as err should not be told (News).
func (m *Members) AwaitName(err error) {
	var n News
	_ = m.Env.Engine.Wait(func() bool { return !n.Waits(m, err) }, time.Time{}, nil)
}

// Named returns err, or the error of the operation if err tells of a death.
func (m *Members) Named(what string, err error) error {
	if err == nil || status.CodeOf(err) != status.ProcFailed {
		return err
	}
	return m.DeathError(what, m.Dead(), fmt.Sprintf("the group is broken (%v)", err), err)
}

// DeathError is the error of an operation because of err, with which MPI tells of a death. If dead is empty, it is not
// known who has died. after says what became of the operation.
func (m *Members) DeathError(what string, dead []int, after string, err error) error {
	if len(dead) > 0 {
		return m.DiedError(what, dead, after)
	}
	text := status.New(status.ProcFailed, "%s: a rank has died, and MPI does not say which; %s", m.Of(what), after)
	text.MPIClass = status.Plain(err).MPIClass
	return text
}

// Reach returns where bytes of a member's heap are in this process.
func (m *Members) Reach(member int, l heap.Location, bytes int64) (unsafe.Pointer, error) {
	v, err := m.view(member)
	if err != nil {
		return nil, err
	}
	return v.At(l, bytes)
}

// Read copies what a member's heap has at l, which the member may give back at any time.
func (m *Members) Read(member int, l heap.Location, to []byte) error {
	v, err := m.view(member)
	if err != nil {
		return err
	}
	return v.Read(l, to)
}

// Acquire is Reach for memory that stays mapped until the reference is released.
func (m *Members) Acquire(member int, l heap.Location, bytes int64) (heap.Ref, error) {
	v, err := m.view(member)
	if err != nil {
		return heap.Ref{}, err
	}
	return v.Acquire(l, bytes)
}

// view returns the view of a member's heap.
func (m *Members) view(member int) (*heap.View, error) {
	v := m.HeapOf(member)
	if v == nil {
		return nil, status.New(status.Unsupported, "the heap of rank %d is not open here", m.Ranks[member])
	}
	return v, nil
}

// What follows is for a room of the core that moves bytes between the members by itself (ps/link).

// Me returns the rank of this process in the group, and how many members that has.
func (m *Members) Me() (rank, size int) { return m.Rank, m.Size }

// WorldRank returns the world rank of a member.
func (m *Members) WorldRank(member int) int { return m.Ranks[member] }

// HeapOf returns the heap of another member; nil if it cannot be mapped here. It is in use between Use
// and done only.
func (m *Members) HeapOf(member int) *heap.View { return m.Env.Node.Views[m.Ranks[member]] }

// Engine returns what drives requests of the transport.
func (m *Members) Engine() *work.Engine { return m.Env.Engine }

// Crowded tells whether this node has more ranks than cores.
func (m *Members) Crowded() bool { return m.Env.Node.Crowded() }

// Use says that a thread, or a request of MPI, uses the group until done is called. The end of the world
// waits for that a while, and else does not finalize MPI. The user calls Trouble after Use and then now
// and then, and ends when there is some.
func (m *Members) Use() (done func()) {
	return m.Env.Use()
}

// Trouble returns why a wait for a member, which what describes, has to end: the member died or left, or the
// group ends. Of this rank itself only the latter is looked at. It returns nil while the wait may go on.
func (m *Members) Trouble(what string, member int) error {
	if err := m.EndingError(what); err != nil {
		return err
	}
	r := m.Ranks[member]
	switch {
	case member == m.Rank:
	case m.Env.Roster.Died(r):
		return m.DiedError(what, []int{member}, "it will not answer")
	case m.Env.Roster.LeftInOrder(r):
		return status.New(status.PeerLeft, "%s: rank %d has ended and will not answer", m.Of(what), r).WithRanks(r)
	}
	return nil
}

package world

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/paddlempi/paddlempi/gocore/coll"
	"github.com/paddlempi/paddlempi/gocore/health"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/trace"
)

// Group is what Env asks of a group of its world.
type Group interface {
	// Expire gives up the queued collectives whose deadline has passed.
	Expire(now time.Time)
	// Stuck returns the collective in which a thread is inside MPI and cannot return; nil if there is none.
	Stuck(now time.Time) *health.Stuck
	// Blocking tells whether a thread is inside a blocking call of MPI.
	Blocking() bool

	// The steps in which a group ends, in their order: see Drain.

	// RefuseCalls makes the group take no more calls. It returns false if it took none before.
	RefuseCalls() bool
	// StartsNothing tells whether every operation of the group has begun.
	StartsNothing() bool
	// UnderWay tells whether the group has an operation that is not over.
	UnderWay() bool
	// Patience is how long the end of the group waits for operations under way.
	Patience() time.Duration
	// Close tells the other members on this node that this one comes to no further collective, because of reason.
	Close(reason status.Code)
	// Farewell is Close for the members of other nodes. No thread is inside a call of the group.
	Farewell(reason status.Code)
	// Settled tells whether no arrival is under way that was given up. It takes it further.
	Settled() bool
	// DropMessages takes messages that have come for this member and that nobody will receive, one after the other, so that
	// their senders are done. It tells whether one is under way.
	DropMessages() bool
	// Free gives back everything that the group is made of.
	Free(reason status.Code) error
}

// Revocable is a group as the revocation of its world sees it.
type Revocable interface {
	// Quiet tells whether no thread of a caller is at work in a collective. What the engine takes further may be under way.
	Quiet() bool
	// Go says that this member looks at nothing any more that the members share.
	Go()
	// Bury ends what dead members, by world rank, have left undone in the memory of this rank. The others have gone.
	Bury(dead []int)
}

// made is what is known of a group.
type made struct {
	as  trace.Group
	end Revocable
}

// Groups are the groups of a world that this rank has made, and what holds for all of them.
type Groups struct {
	// Survives says that no collective of this rank's groups may block in MPI, where the death of a
	// member cannot be told to the caller. It is set before the first collective.
	Survives bool
	Forced   coll.Forced     // algorithms that the group of all ranks prefers
	Watcher  *health.Watcher // ends the process if a member dies while a thread is inside MPI
	Tuning   Tuning          // with what the group of all ranks begins to tune; it is set before the first group
	Overlap  Overlap         // of collectives over nodes

	queued atomic.Int32  // collectives that are in the queue of their group
	hellos atomic.Uint64 // meetings to which this rank has come

	mu   sync.Mutex
	made map[string]int // how many groups were made of a list of ranks
	live map[Group]made // groups that were made and not freed
}

// all returns the groups that are not freed.
func (s *Groups) all() []Group {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.live))
}

// revocable returns the groups that are not freed, for the revocation.
func (s *Groups) revocable() (list []Revocable) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.live {
		list = append(list, m.end)
	}
	return list
}

// stuck returns a collective in which a thread is inside MPI and cannot return; nil if there is none.
func (s *Groups) stuck(now time.Time) (found *health.Stuck) {
	for _, g := range s.all() {
		found = cmp.Or(found, g.Stuck(now))
	}
	return found
}

// Remember enters a group that was made. Its key identifies it on all members. If its members share no memory, they ask each
// other, and asked answers; else it is nil.
func (e *Env) Remember(g Group, as trace.Group, asked health.Respondent, end Revocable) {
	e.Groups.mu.Lock()
	e.Groups.live[g] = made{as, end}
	e.Recorder.Ring().Join(as)
	e.Groups.mu.Unlock()
	if asked != nil {
		e.Roster.Questions.Join(as.Key, as.Rank, asked)
	}
}

// Forget removes a group that was freed, or that its members never use.
func (e *Env) Forget(g Group) {
	e.Groups.mu.Lock()
	was, there := e.Groups.live[g]
	if there {
		delete(e.Groups.live, g)
		e.Recorder.Ring().Leave(was.as.ID)
	}
	e.Groups.mu.Unlock()
	e.Roster.Questions.Forget(was.as.Key)
}

// Key identifies a group before it exists. It is made of the ranks and of how many groups of the
// same ranks were made before. The members count these alike, because they make them in the same
// order.
func (s *Groups) Key(ranks []int) uint64 {
	name := fmt.Sprint(ranks)
	s.mu.Lock()
	n := s.made[name]
	s.made[name]++
	s.mu.Unlock()
	h := fnv.New64a()
	for _, word := range append(slices.Clone(ranks), n) {
		h.Write(binary.LittleEndian.AppendUint64(nil, uint64(word)))
	}
	return h.Sum64()
}

// Unmake takes back the key of an attempt that failed. The next attempt on this rank then has the same key. A
// member that did not come to this attempt has that key at its next attempt, too.
func (s *Groups) Unmake(ranks []int) {
	s.mu.Lock()
	s.made[fmt.Sprint(ranks)]--
	s.mu.Unlock()
}

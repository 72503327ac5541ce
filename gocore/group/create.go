package group

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"runtime"
	"time"

	"github.com/paddlempi/paddlempi/gocore/arrive"
	"github.com/paddlempi/paddlempi/gocore/coll"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/transport"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// World makes the group of all ranks. It is collective over the world.
func (e *Env) World(id int64, timeout time.Duration) (*Group, error) {
	comm, err := e.base.Dup(nil)
	if err != nil {
		return nil, err
	}
	return e.finish(id, 0, e.everyRank(), comm, e.forced, timeout)
}

// New makes a group of the given world ranks, in their order; this rank is one of them. It is
// collective over the members only. The members first meet by messages, because
// MPI_Comm_create_group (MPI-4.1 section 7.4.2) has no deadline; the error names the ranks that
// never came. The group's two communicators are made at once, not at first use. Otherwise two ranks
// could use two groups in different orders for the first time, and each would wait in the creation
// of another communicator.
func (e *Env) New(id int64, ranks []int, timeout time.Duration) (*Group, error) {
	e.makers.Add(1)
	defer e.makers.Add(-1)
	if err := e.endingError("new_group", ranks); err != nil {
		return nil, err
	}
	if len(ranks) == 1 {
		return e.finish(id, 0, ranks, nil, 0, timeout)
	}
	key := e.key(ranks)
	if missing, err := e.meet("new_group", key, ranks, timeout); err != nil {
		e.unmake(ranks)
		return nil, e.meetError("new_group", "called new_group with the same ranks; every member must call it, in the same order", err, ranks, missing, timeout)
	}
	return e.together("new_group", ranks, func() (*Group, error) {
		comm, err := e.base.Create(ranks, key)
		if err != nil {
			return nil, err
		}
		forced, err := e.agreeOnForced("new_group", comm)
		if err != nil {
			_ = comm.Free()
			return nil, err
		}
		return e.finish(id, key, ranks, comm, forced, timeout)
	})
}

// together returns what build returns, which calls MPI with all members of a new group, for the call that
// what names. These calls of MPI block, so build runs on a thread of its own: if a member dies, it may never
// return, and the caller gets an error. It counts among the makers then, so MPI is not finalized.
func (e *Env) together(what string, ranks []int, build func() (*Group, error)) (*Group, error) {
	type result struct {
		group *Group
		err   error
	}
	made, given := make(chan result), make(chan struct{})
	e.makers.Add(1)
	go func() {
		defer e.makers.Add(-1)
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		work.ExactSleeps() // else a group takes MPICH 300 ms when ranks share cores
		g, err := build()
		select {
		case made <- result{g, err}:
		case <-given:
			if g != nil {
				e.forget(g) // its communicators stay: to free them takes all members
			}
		}
	}()
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	var since time.Time // when a death was seen first
	for {
		select {
		case r := <-made:
			if status.CodeOf(r.err) == status.ProcFailed { // MPI may know of the death earlier than this rank
				_ = e.Engine.Wait(func() bool { return len(e.dead(ranks)) > 0 }, time.Now().Add(e.nameLimit()), nil)
			}
			if dead := e.dead(ranks); r.err != nil && len(dead) > 0 { // MPI may tell anything of a call with a dead rank
				return nil, e.unmadeError(what, ranks, dead)
			}
			return r.group, r.err
		case now := <-tick.C:
			if since.IsZero() && e.anyDied(ranks) {
				since = now
			}
			if !since.IsZero() && now.Sub(since) > deathGrace {
				close(given)
				return nil, e.unmadeError(what, ranks, e.dead(ranks))
			}
		}
	}
}

func (e *Env) unmadeError(what string, ranks, dead []int) error {
	return e.diedError(fmt.Sprintf("%s(ranks=%v)", what, brief(ranks)), dead, "the group was not made")
}

// finish makes everything of a group but its first communicator.
func (e *Env) finish(id int64, key uint64, ranks []int, comm transport.Comm, forced coll.Forced, timeout time.Duration) (*Group, error) {
	g := &Group{env: e, ID: id, key: key, Ranks: ranks, Size: len(ranks), Rank: indexOf(ranks, e.Topo.Rank), collComm: comm, mpi: coll.On(e.base, comm), forced: forced}
	g.timeout.Store(int64(timeout))
	if g.Size == 1 {
		g.local = true
		g.arrival = new(arrive.Alone)
		e.remember(g)
		return g, nil
	}
	var err error
	if g.msgComm, err = comm.Dup(nil); err != nil {
		return nil, err
	}
	if e.Topo.OneNode(ranks) {
		lines, _, err := e.makeLines(comm, ranks)
		if err != nil {
			return nil, err
		}
		if lines != nil {
			g.local, g.arrival = true, lines
			g.node = &coll.Node{Lines: lines, Reach: g.reach, Read: g.read}
			e.remember(g)
			return g, nil
		}
	}
	if g.wire, err = arrive.NewWire(g.msgComm); err != nil {
		return nil, err
	}
	g.arrival = g.wire
	e.remember(g)
	return g, nil
}

// messageComm returns the communicator of the messages. A group of one rank gets it at its first
// message, because few programs send messages to themselves.
func (g *Group) messageComm() (transport.Comm, error) {
	if g.Size > 1 {
		return g.msgComm, nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	var err error
	if g.msgComm == nil {
		g.msgComm, err = g.env.base.Create(g.Ranks, 0)
	}
	return g.msgComm, err
}

// key identifies a group before it exists. It is made of the ranks and of how many groups of the
// same ranks were made before. The members count these alike, because they make them in the same
// order.
func (e *Env) key(ranks []int) uint64 {
	h := fnv.New64a()
	var b [8]byte
	for _, r := range ranks {
		binary.LittleEndian.PutUint64(b[:], uint64(r))
		h.Write(b[:])
	}
	name := fmt.Sprint(ranks)
	e.mu.Lock()
	n := e.made[name]
	e.made[name]++
	e.mu.Unlock()
	binary.LittleEndian.PutUint64(b[:], uint64(n))
	h.Write(b[:])
	return h.Sum64()
}

// unmake takes back an attempt that failed. The next attempt on this rank then has the same key. A
// member that did not come to this attempt has that key at its next attempt, too.
func (e *Env) unmake(ranks []int) {
	e.mu.Lock()
	e.made[fmt.Sprint(ranks)]--
	e.mu.Unlock()
}

// brief formats a list of ranks, shortened if it is long.
func brief(ranks []int) string {
	const show = 16
	if len(ranks) <= show {
		return fmt.Sprint(ranks)
	}
	return fmt.Sprintf("%v and %d more", ranks[:show], len(ranks)-show)
}

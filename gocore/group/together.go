package group

import (
	"slices"
	"time"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/coll"
	"github.com/paddlempi/paddlempi/gocore/coll/shm"
	"github.com/paddlempi/paddlempi/gocore/heap"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// This file carries out collectives whose tensors are in memory that all members map (package shm).
// A member that waits works, for the others too. A member that gives up closes the chunks that no
// member has claimed, and waits for those that are claimed, because their owners write into its
// tensors.

const (
	// claimedLimit is how long a member that gives up waits inside its call for chunks that others
	// work on. Afterwards its tensors are kept until the others are done.
	claimedLimit = 100 * time.Millisecond
	// lookEvery is the number of looks at the chunks between two looks at the members.
	lookEvery = 64
)

// reach returns where bytes of a member's heap are in this process.
func (g *Group) reach(member int, l heap.Location, bytes int64) (unsafe.Pointer, error) {
	v := g.env.views[g.Ranks[member]]
	if v == nil {
		return nil, status.New(status.Unsupported, "the heap of rank %d is not open here", g.Ranks[member])
	}
	return v.At(l, bytes)
}

// workTogether carries out c on this thread. All members have arrived. If other members may still
// write into the tensors after an error, it returns the handle of the task that waits for them.
func (g *Group) workTogether(c *call, alg *coll.Algorithm) (lingering *work.Handle, err error) {
	o, err := alg.Shared(&c.args)
	if err != nil {
		return nil, err
	}
	if g.mayWork(c) {
		o.Work(shm.All)
	}
	state := o.State(inlineSpin)
	if state == shm.Pending {
		state, err = g.awaitTogether(c, o)
	}
	if err == nil {
		err = g.togetherError(c, o, state)
	}
	if state == shm.Done {
		g.mapped = c.args.Seq
	}
	if over := state != shm.Pending && state != shm.Closing; over {
		o.Free()
		return nil, err
	}
	t := g.newCollective(c)
	t.carryShared(o)
	t.abandon(err)
	g.env.Engine.Add(t)
	g.env.Engine.StartProgress()
	return t.handle, err
}

// awaitTogether waits until the members have done all chunks. Without an error the operation is over.
func (g *Group) awaitTogether(c *call, o *shm.Op) (shm.State, error) {
	deadline := time.Now().Add(c.timeout)
	state, looks := shm.Pending, 0
	var lost error
	err := g.wait(func() bool {
		if g.mayWork(c) {
			o.Work(shm.All)
		}
		if state = o.State(20); state != shm.Pending {
			return true
		}
		if looks++; looks%lookEvery == 0 {
			lost = g.lostError(c, o)
		}
		return lost != nil
	}, deadline)
	switch {
	case state != shm.Pending && state != shm.Closing:
		return state, nil
	case state == shm.Closing:
		err = g.togetherError(c, o, state)
	case lost != nil:
		err = lost
	case err == work.ErrDeadline:
		err = g.togetherTimeout(c, o)
	case g.ending() != nil:
		err = g.endingError(describe(c.sig))
	}
	g.node.Lines.Explain(status.CodeOf(err))
	_ = g.env.Engine.Wait(func() bool {
		state = o.Close()
		return state == shm.Done || state == shm.Closed
	}, time.Now().Add(claimedLimit), nil)
	if state == shm.Done {
		// All chunks were claimed, so nothing could be given up, and they are done now.
		if status.CodeOf(err) == status.Interrupted {
			c.interrupted = err
		}
		return state, nil
	}
	return state, err
}

// togetherError returns why an operation in its final state has failed; nil if it has not.
func (g *Group) togetherError(c *call, o *shm.Op, state shm.State) error {
	switch state {
	case shm.Closed, shm.Closing:
		// A member that has given anything up has broken the group, so it was this operation.
		closers, lost, late := map[int]status.Code{}, false, false
		dead := g.dead()
		for i := range g.Ranks {
			if why := g.node.Lines.Why(i); why != 0 && i != g.Rank {
				closers[i] = why
				lost, late = lost || why == status.PeerLeft, late || why == status.Timeout
			}
		}
		for _, i := range o.Closers() {
			lost = lost || slices.Contains(dead, i)
		}
		if lost && len(dead) > 0 {
			return g.diedError(c, dead)
		}
		if late && state == shm.Closing {
			return g.togetherTimeout(c, o)
		}
		return g.closedBy(c, closers)
	case shm.Blind:
		return noAlgorithm{status.New(status.NoMemory, "%s on the group of ranks %s: no rank could map the tensors of all others (ulimit -v?); nothing was done and the group is usable",
			describe(c.sig), brief(g.Ranks))}
	}
	return nil
}

// togetherTimeout is timeoutError for a call whose chunks are not done. It names a member that works on
// a chunk.
func (g *Group) togetherTimeout(c *call, o *shm.Op) error {
	worker := o.Worker()
	if worker < 0 || worker == g.Rank {
		return g.timeoutError(c)
	}
	slow := g.Ranks[worker]
	return status.New(status.Timeout, "%s on the group of ranks %s timed out after %v: all members had come, the transfer did not end: rank %d has not done its part (is it stopped?); the group is broken",
		describe(c.sig), brief(g.Ranks), c.timeout, slow).WithRanks(slow)
}

// lostError returns an error if a member that works on a chunk is dead. Its chunk was changed in part,
// so the operation fails on all members. It also returns an error if this member cannot work, nobody
// else does, and a member is dead: that one may be the only one that could.
func (g *Group) lostError(c *call, o *shm.Op) error {
	if worker := o.Worker(); worker >= 0 {
		if worker == g.Rank || !g.env.died(g.Ranks[worker]) {
			return nil
		}
		o.Bury(worker)
		return g.diedError(c, []int{worker})
	}
	if o.IsBlind() {
		if dead := g.dead(); len(dead) > 0 {
			return g.diedError(c, dead)
		}
	}
	return nil
}

func (g *Group) diedError(c *call, members []int) error {
	dead := g.worldRanks(members)
	return status.New(status.PeerLeft, "%s on the group of ranks %s: rank(s) %s died in it; the group is broken",
		describe(c.sig), brief(g.Ranks), brief(dead)).WithRanks(dead...)
}

// share makes the steps of a task whose tensors are in mapped memory.
func (t *collective) share(alg *coll.Algorithm) error {
	o, err := alg.Shared(&t.call.args)
	if err == nil {
		t.carryShared(o)
	}
	return err
}

// carryShared makes o the program of t. The program ends when no member works on o any more.
func (t *collective) carryShared(o *shm.Op) {
	t.shared = o
	looks := 0
	p := &t.call.prog
	p.Reset(t.call.args.Lib)
	p.AtEnd(o.Free)
	p.Until(func() (bool, error) {
		if t.stage != lingering && !t.g.env.Engine.Looking() && t.g.mayWork(&t.call) {
			o.Work(shm.All)
		}
		state := o.State(0)
		if t.stage == lingering {
			state = o.Close()
		}
		if looks++; looks%lookEvery == 0 && (state == shm.Pending || state == shm.Closing) {
			if err := t.g.lostError(&t.call, o); err != nil && t.stage != lingering {
				t.abandon(err)
			}
			return false, nil
		}
		if state == shm.Closing && t.stage != lingering {
			t.abandon(t.g.togetherError(&t.call, o, state))
		}
		if state == shm.Pending || state == shm.Closing {
			return false, nil
		}
		if state == shm.Done && !t.gone {
			t.g.mapped = t.call.args.Seq
		}
		return true, t.g.togetherError(&t.call, o, state)
	})
}

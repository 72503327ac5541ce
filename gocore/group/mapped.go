package group

import (
	"slices"
	"time"

	"github.com/paddlempi/paddlempi/gocore/coll"
	"github.com/paddlempi/paddlempi/gocore/coll/shm"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/work"
	"github.com/paddlempi/paddlempi/gocore/world"
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

// workMapped carries out c on this thread. All members have arrived. If other members may still
// write into the tensors after an error, it returns the handle of the task that waits for them.
func (c *collective) workMapped(alg *coll.Algorithm) (lingering *work.Handle, err error) {
	g := c.g
	o, err := alg.Share(&c.args)
	if breaks(err) {
		err = c.readable(err)
		if o = c.standAside(err); o != nil {
			return c.lingering(o, err), err
		}
	}
	if err != nil {
		return nil, err
	}
	c.workOn(o, shm.All)
	state := o.State(arrivalSpin)
	if state == shm.Pending {
		state, err = c.awaitChunks(o)
	}
	if err == nil {
		err = c.chunksError(o, state)
	}
	if state == shm.Done {
		g.mapped = c.args.Seq
	}
	if over := state != shm.Pending && state != shm.Closing; over {
		o.Free()
		return nil, err
	}
	return c.lingering(o, err), err
}

// lingering gives c up because of err. The returned handle is settled when no member works on o, its
// work, any more.
func (c *collective) lingering(o *shm.Op, err error) *work.Handle {
	t := c.newTask()
	t.carryShared(o)
	t.linger(err)
	return t.handle
}

// workOn claims and does at most that many chunks of o, the work of c, if this member may. It returns
// how many it did.
func (c *collective) workOn(o *shm.Op, most int) int {
	if !c.mayWork() {
		return 0
	}
	return o.Work(most)
}

// linger gives t up because of err. The engine drives it until no member works on it any more.
func (t *task) linger(err error) {
	if t.stage != lingering {
		t.abandon(err)
	}
	t.g.Env.Engine.Add(t)
	t.g.Env.Engine.StartProgress()
}

// awaitChunks waits until the members have done all chunks. Without an error the operation is over.
func (c *collective) awaitChunks(o *shm.Op) (shm.State, error) {
	g := c.g
	deadline := time.Now().Add(c.timeout)
	state, looks := shm.Pending, 0
	var lost error
	var slow world.Slowness
	err := g.Wait(func() bool {
		c.workOn(o, shm.All)
		if state = o.State(20); state != shm.Pending {
			return true
		}
		if looks++; looks%lookEvery == 0 {
			lost = c.lostError(o)
			c.reportIfSlow(&slow, true, o.Worker)
		}
		return lost != nil
	}, deadline)
	switch {
	case state != shm.Pending && state != shm.Closing:
		return state, nil
	case state == shm.Closing:
		err = c.chunksError(o, state)
	case lost != nil:
		err = lost
	case err == work.ErrDeadline:
		err = c.chunksTimeout(o)
	case g.Ending() != nil:
		err = g.EndingError(world.Describe(c.sig))
	}
	g.node.Slots.Explain(status.CodeOf(err))
	_ = g.Env.Engine.Wait(func() bool {
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

// chunksError returns why an operation in its final state has failed; nil if it has not.
func (c *collective) chunksError(o *shm.Op, state shm.State) error {
	g := c.g
	switch state {
	case shm.Closed, shm.Closing:
		if o.Damaged() {
			return c.damagedChunks()
		}
		// A member that has given anything up has broken the group, so it was this operation.
		closers, lost, late := map[int]status.Code{}, false, false
		dead := g.Dead()
		for i := range g.Ranks {
			if why := g.node.Slots.Why(i); why != 0 && i != g.Rank {
				closers[i] = why
				lost, late = lost || why == status.PeerDied, late || why == status.Timeout
			}
		}
		for _, i := range o.Closers() {
			lost = lost || slices.Contains(dead, i)
		}
		if lost && len(dead) > 0 {
			return c.lost(dead)
		}
		if late && state == shm.Closing {
			return c.chunksTimeout(o)
		}
		return c.closedBy(closers)
	case shm.Blind:
		return harmless{status.New(status.NoMemory, "%s: no rank could map the tensors of all others (ulimit -v?); nothing was done and the group is usable",
			c.of())}
	}
	return nil
}

// chunksTimeout is timeoutError for a call whose chunks are not done. It names a member that works on
// a chunk.
func (c *collective) chunksTimeout(o *shm.Op) error {
	g := c.g
	worker := o.Worker()
	if worker < 0 || worker == g.Rank {
		return c.timeoutError()
	}
	slow := g.Ranks[worker]
	return status.New(status.Timeout, "%s timed out after %v: all members had come, the transfer did not end: rank %d has not done its part (is it stopped?); the group is broken",
		c.of(), c.timeout, slow).WithRanks(slow)
}

// lostError returns an error if a member that works on a chunk is dead. Its chunk was changed in part,
// so the operation fails on all members. It also returns an error if this member cannot work, nobody
// else does, and a member is dead: that one may be the only one that could, or it has not finished
// with the collective before and never will.
func (c *collective) lostError(o *shm.Op) error {
	g := c.g
	if worker := o.Worker(); worker >= 0 {
		if worker == g.Rank || !g.Env.Roster.Died(g.Ranks[worker]) {
			return nil
		}
		o.FailPeer(worker)
		return c.lost([]int{worker})
	}
	if (o.IsBlind() || !c.mayWork()) && g.AnyDied() {
		return c.lost(g.Dead())
	}
	return nil
}

// lost is the error that members died in c, or before they did their part of it.
func (c *collective) lost(members []int) error {
	return c.g.DiedError(c.numbered()+c.inPhase(), members, "its result is lost, and the group is broken")
}

// share makes the steps of a task whose tensors are in mapped memory. After an error t may linger,
// because other members work in its tensors.
func (t *task) share(alg *coll.Algorithm) error {
	o, err := alg.Share(&t.collective.args)
	if breaks(err) {
		err = t.collective.readable(err)
		if o = t.collective.standAside(err); o != nil {
			t.carryShared(o)
			t.abandon(err)
		}
		return err
	}
	if err == nil {
		t.carryShared(o)
	}
	return err
}

// work claims and does chunks of o. The progress thread does them one by one, so that a caller that comes
// to wait can go on.
func (t *task) work(o *shm.Op) {
	e := t.g.Env.Engine
	if e.Looking() {
		return
	}
	most := shm.All
	if e.Helping() {
		most = 1
	}
	for !e.Relieved() && t.collective.workOn(o, most) == most {
	}
}

// carryShared makes o the program of t. The program ends when no member works on o any more.
func (t *task) carryShared(o *shm.Op) {
	t.shared = o
	looks := 0
	p := &t.collective.prog
	p.Reset(t.collective.args.Lib)
	p.AtEnd(o.Free)
	p.Until(func() (bool, error) {
		if t.stage != lingering {
			t.work(o)
		}
		state := o.State(0)
		if t.stage == lingering {
			state = o.Close()
		}
		if looks++; looks%lookEvery == 0 && (state == shm.Pending || state == shm.Closing) {
			if err := t.collective.lostError(o); err != nil && t.stage != lingering {
				t.abandon(err)
			}
			return false, nil
		}
		if state == shm.Closing && t.stage != lingering {
			t.abandon(t.collective.chunksError(o, state))
		}
		if state == shm.Pending || state == shm.Closing {
			return false, nil
		}
		if state == shm.Done && !t.gone {
			t.g.mapped = t.collective.args.Seq
		}
		return true, t.collective.chunksError(o, state)
	})
}

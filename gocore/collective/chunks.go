package collective

import (
	"slices"
	"time"

	"github.com/paddlempi/paddlempi/gocore/coll"
	"github.com/paddlempi/paddlempi/gocore/coll/shm"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// This file carries out collectives whose tensors are in memory that all members map (package shm).
// A member that waits works, for the others too. A member that gives up closes the chunks that no
// member has claimed, and waits for those that are claimed, because their owners write into its
// tensors.

// claimedLimit is how long a member that gives up waits inside its call for chunks that others
// work on. Afterwards its tensors are kept until the others are done.
const claimedLimit = 100 * time.Millisecond

// share begins the work of c in chunks. After an error c may linger, because other members work in its tensors.
func (c *collective) share(alg *coll.Algorithm) wants {
	switch err := c.shareOut(alg); {
	case c.shared == nil:
		return c.end(err)
	case err != nil:
		return c.abandon(err)
	}
	return aStep
}

// shareOut makes the work of c. After an error it may be work that others are at already.
func (c *collective) shareOut(alg *coll.Algorithm) (err error) {
	if c.shared, err = alg.Share(&c.args); breaks(err) {
		err = c.readable(err)
		c.shared = c.standAside(err)
	}
	return err
}

// stepChunks does what this member can of the work of c, and looks whether all of it is done.
func (c *collective) stepChunks(spin int) (done bool, err error) {
	o := c.shared
	var state shm.State
	if c.stage == lingering || c.stopping != nil {
		state = o.Close()
	} else {
		c.workOn(o)
		if state = o.State(spin); state == shm.Closing {
			c.stop(c.chunksError(o, state))
		}
	}
	switch {
	case state == shm.Pending || state == shm.Closing:
		if c.stopping != nil && time.Now().After(c.stopBy) {
			err = c.stopping
			c.stopping = nil
			c.abandon(err)
		} else if c.stage == lingering {
			c.looks++
			if c.looks%lookEvery == 0 {
				_ = c.lostError(o) // closes what the dead had claimed
			}
		}
		return false, nil
	case state == shm.Done && !c.gone:
		c.g.mapped = c.args.Seq
	}
	if c.stopping == nil {
		return true, c.chunksError(o, state)
	}
	if state == shm.Done { // all chunks were claimed, so nothing could be given up
		return true, nil
	}
	return true, c.stopping
}

// workOn claims and does chunks of o, the work of c, if this member may. The progress thread does them one by one, so that a
// caller that comes to wait can go on.
func (c *collective) workOn(o *shm.Op) {
	e, most := c.g.Env.Engine, shm.All
	switch {
	case !c.mayWork():
		return
	case c.handle == nil:
		o.Work(most)
		return
	case e.Looking():
		return
	case e.Helping():
		most = 1
	}
	for !e.Relieved() && o.Work(most) == most {
	}
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
		dead := g.Members().Dead()
		for i := range g.Ranks {
			if why := g.Node.Slots.Why(i); why != 0 && i != g.Rank {
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
	return c.notDoneBy(worker)
}

// notDoneBy is timeoutError for a call that waits for the part of a member.
func (c *collective) notDoneBy(member int) error {
	slow := c.g.Ranks[member]
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
	if (o.IsBlind() || !c.mayWork()) && g.Members().AnyDied() {
		return c.lost(g.Members().Dead())
	}
	return nil
}

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

// mostAtOnce is how many chunks a caller does between two looks whether the group ends.
const mostAtOnce = 16

// chunks is the work of a collective that the members share out.
type chunks struct {
	op       *shm.Op   // nil: there is none
	stopping error     // why this member waits no longer than until stopBy for chunks that others work on
	stopBy   time.Time // see stopping
}

// shareOut makes the work. After an error it may be work that others are at already: err may then be that of this member alone,
// unless it is a mismatch, and none of the others may write into this member's tensors after its caller has the error. So the
// chunks that no member has claimed are closed, and the work is over when those are done that are claimed.
func (k *chunks) shareOut(f *failure, alg *coll.Algorithm) (err error) {
	if k.op, err = alg.Share(&f.args); err == nil || status.CodeOf(err) == status.Mismatch {
		return err
	}
	k.op, err = nil, f.readable(err)
	f.g.Node.Slots.Explain(status.CodeOf(err))
	o, failed := f.args.Bystander()
	if failed != nil {
		return err
	}
	if state := o.Leave(); state == shm.Closing || state == shm.Pending {
		k.op = o
	} else {
		o.Free()
	}
	return err
}

// stepChunks does what this member can of the work of c, and looks whether all of it is done.
func (c *collective) stepChunks(spin int) (done bool, err error) {
	o := c.chunks.op
	var state shm.State
	if c.stage == lingering || c.chunks.stopping != nil {
		state = o.Close()
	} else {
		workOn(o, &c.request, c.handle != nil)
		if state = o.State(spin); state == shm.Closing {
			c.stop(c.failure().chunksError(o, state))
		}
	}
	switch {
	case state == shm.Pending || state == shm.Closing:
		if (c.stage == lingering || c.chunks.stopping != nil) && c.looks.Due(c.g.Env.Engine) {
			c.failure().buryWorker(o)
		}
		if c.chunks.stopping != nil && time.Now().After(c.chunks.stopBy) {
			err = c.chunks.stopping
			c.chunks.stopping = nil
			c.abandon(err)
		}
		return false, nil
	case state == shm.Done && !c.gone:
		c.g.mapped = c.args.Seq
	}
	if c.chunks.stopping == nil {
		return true, c.failure().chunksError(o, state)
	}
	if state == shm.Done { // all chunks were claimed, so nothing could be given up
		return true, nil
	}
	return true, c.chunks.stopping
}

// workOn claims and does chunks of o, the work of r, if this member may. The progress thread does them one by one, so that a
// caller that comes to wait can go on.
func workOn(o *shm.Op, r *request, byEngine bool) {
	e, most := r.g.Env.Engine, shm.All
	switch {
	case !mayWork(r):
		return
	case !byEngine:
		most = mostAtOnce
	case e.Looking():
		return
	case e.Helping():
		most = 1
	}
	for !e.Relieved() && o.Work(most) == most && r.g.Members().Ending() == nil {
	}
}

// chunksError returns why an operation in its final state has failed; nil if it has not.
func (f *failure) chunksError(o *shm.Op, state shm.State) error {
	g := f.g
	switch state {
	case shm.Closed, shm.Closing:
		if o.Damaged() {
			// All members write to all of these words, so it cannot be said which one did.
			return status.New(status.GroupBroken, "%s: the words of its chunks, in memory that all these ranks map, hold what no rank writes there: the process of one of them is damaged; its result is lost, and the group is broken",
				g.Members().Of(f.numbered()))
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
			return f.lost(dead)
		}
		if late && state == shm.Closing {
			return f.late(o.Worker())
		}
		return f.closedBy(closers)
	case shm.Blind:
		return harmless{status.New(status.NoMemory, "%s: no rank could map the tensors of all others (ulimit -v?); nothing was done and the group is usable",
			f.of())}
	}
	return nil
}

// buryWorker closes what a dead member had claimed of o, which was given up.
func (f *failure) buryWorker(o *shm.Op) {
	if worker := o.Worker(); worker >= 0 && worker != f.g.Rank && len(f.g.Env.Roster.Dead(f.g.Ranks[worker:worker+1])) > 0 {
		o.FailPeer(worker)
	}
}

// lostError returns an error if a member that works on a chunk is dead. Its chunk was changed in part,
// so the operation fails on all members. It also returns an error if this member cannot work, nobody
// else does, and a member is dead: that one may be the only one that could, or it has not finished
// with the collective before and never will.
func (f *failure) lostError(o *shm.Op) error {
	g := f.g
	if worker := o.Worker(); worker >= 0 {
		if worker == g.Rank || !g.Env.Roster.Died(g.Ranks[worker]) {
			return nil
		}
		o.FailPeer(worker)
		return f.lost([]int{worker})
	}
	if (o.IsBlind() || !mayWork(f.request)) && g.Members().AnyDied() {
		return f.lost(g.Members().Dead())
	}
	return nil
}

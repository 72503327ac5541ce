package collective

import (
	"time"

	"github.com/paddlempi/paddlempi/gocore/coll"
	"github.com/paddlempi/paddlempi/gocore/health"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// This file says when a collective that is under way has to be given up, and what is done then.

// mustStop returns why c, which waits, must not go on; nil if it may. It looks at the clock and the members now and then.
func (c *collective) mustStop() error {
	g := c.g
	switch {
	case c.handle == nil && c.asked != nil && g.Members().Ending() == nil:
		err := c.asked
		c.asked = nil
		return err
	case c.handle != nil && !c.refused && c.handle.Done():
		_, err := c.handle.Result() // the caller was interrupted
		return err
	case g.Members().Ending() != nil:
		return g.Members().EndingError(health.Describe(c.sig))
	}
	if !c.looks.Due(g.Env.Engine) {
		return nil
	}
	now := time.Now()
	if c.deadline.IsZero() {
		c.dueAt(now.Add(c.timeout))
	}
	if now.After(c.deadline) {
		if c.stage == running && c.lends() {
			return c.failure().unreadError()
		}
		return c.failure().late(c.worker())
	}
	g.Inquiry.look(now)
	c.reportIfSlow(now)
	return c.lossError(now)
}

// worker returns the member for whose part of c this one waits, which may be this one; -1 if there is none.
func (c *collective) worker() int {
	switch {
	case c.stage != running:
	case c.chunks.op != nil:
		return c.chunks.op.Worker()
	case c.form == coll.InRounds:
		return awaited(c.g)
	}
	return -1
}

// lossError returns an error if a member that c needs has died, has left, or has given c up.
func (c *collective) lossError(now time.Time) error {
	g := c.g
	switch {
	case c.stage == running && c.chunks.op != nil:
		return c.failure().lostError(c.chunks.op)
	case c.stage == running && c.form == coll.InRounds && c.handle == nil:
		return c.failure().outOfRounds()
	case c.stage == running || g.Wire != nil: // a wire is an operation of MPI
		if dead := c.mourning.Over(g.Members(), now); dead != nil {
			return c.failure().lost(dead)
		}
	}
	if c.stage != announced {
		if c.prog.Settles() {
			return nil
		}
		return c.failure().givenUp()
	}
	if err := c.failure().leftError(); err != nil || g.Node == nil {
		return err
	}
	return c.failure().givenUp()
}

// stop gives c, which runs, up because of err.
func (c *collective) stop(err error) wants {
	switch {
	case c.handle == nil && c.chunks.op != nil:
		c.g.Node.Slots.Explain(status.CodeOf(err))
		c.chunks.stopping, c.chunks.stopBy = err, time.Now().Add(claimedLimit)
	case c.handle == nil && c.form == coll.InRounds:
		return c.end(err) // nobody works in the tensors of another member
	default:
		return c.abandon(err)
	}
	return members
}

// abandon tells the caller that c has failed with err, although its memory may still be used. c lingers until it is not:
// the engine takes it further.
func (c *collective) abandon(err error) wants {
	g := c.g
	c.stage = lingering
	if c.handle == nil {
		c.takeHandle()
	}
	if c.chunks.op != nil {
		g.Node.Slots.Explain(g.cause(err))
		c.chunks.op.Leave()
	} else {
		g.resign(c.args.Seq, err)
		c.prog.Leave()
	}
	g.Env.Recorder.End(c.trace, err)
	c.countOff(c.handle.GiveUp(err))
	g.Fail(err)
	return requests
}

// refuseInstead ends c for its caller because of err, before it is announced, and makes it a refusal: the group stays usable.
// It is the turn of c.
func (c *collective) refuseInstead(err error) {
	if c.handle == nil {
		c.takeHandle()
	}
	c.g.turns.mu.Lock()
	c.g.turns.refuse(c)
	c.g.turns.mu.Unlock()
	c.report(err)
	c.dueAt(time.Now().Add(c.g.Timeout()))
}

// await waits for a synchronous operation that the engine takes further. An interrupt makes the caller give up; the deadline is
// watched by step. If the collective is still in the queue, it stays there as a refusal, because the other members expect an
// announcement. If MPI may use the memory after an error, await returns the handle.
func (c *collective) await() (lingering *work.Handle, r work.Result, err error) {
	h, stream := c.handle, uint64(c.stream)
	r, err = h.Wait(-1, c.g.Env.Interrupt)
	if !h.Done() {
		if c.g.turns.refuseQueued(c) {
			c.report(err)
		} else if h.GiveUp(err) {
			c.g.Fail(err)
			c.g.Env.Engine.StartProgress() // c fails in the arrival, or lingers until MPI is done with its memory
		} else {
			r, err = h.Result() // c ended at the same moment
		}
	}
	if err = h.Follow(stream, err); err != nil && !h.Settled() {
		lingering = h
	}
	return lingering, r, err
}

// A member that cannot go on with a collective breaks the group. The other members must learn it, and
// that this member was the first. On one node they see it in the control slots. Across nodes this member
// answers questions, and does so before it is asked, because its process may end next.

// resign says that this member takes no part in collective seq because of err, whether all members have
// come to it or not. It says nothing new if seq was given up before.
func (g *Group) resign(seq uint64, err error) {
	switch {
	case g.Wire != nil:
		g.Wire.GiveUp(seq, g.cause(err))
	case g.Node == nil || len(g.Arrival.Closers(seq)) > 0:
	case !g.Arrival.GiveUp(seq, g.cause(err)):
		g.Node.Slots.Stop(seq, g.cause(err))
	}
}

// tellOthers tells the members of a group that spans nodes that this one takes no part any more, if it was the
// first. From here on questions are answered whatever this rank does.
func (g *Group) tellOthers() {
	if g.Wire == nil {
		return
	}
	g.Env.Engine.CalledMPI()
	gaveUp := g.Wire.GaveUp()
	if gaveUp == nil || gaveUp.By != g.Rank || g.told.Swap(true) {
		return
	}
	for i, r := range g.Ranks {
		if i != g.Rank && !g.Env.Roster.Died(r) {
			g.Env.Roster.Questions.Answer(r, g.Key, gaveUp.Seq)
		}
	}
}

// cause returns what the other members are told when this one gives up because of err: what has broken
// the group first. The queued collectives fail with another code, which would hide it.
func (g *Group) cause(err error) status.Code {
	if broken := g.Broken(); broken != nil {
		err = broken
	}
	return status.CodeOf(err)
}

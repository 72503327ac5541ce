package collective

import (
	"slices"
	"time"

	"github.com/paddlempi/paddlempi/gocore/coll"
	"github.com/paddlempi/paddlempi/gocore/health"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// This file says when a collective that is under way has to be given up, and what is done then.

// lookEvery is the number of looks between two looks at the clock and at the members.
const lookEvery = 32

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
	if c.looks++; c.looks%lookEvery != 0 {
		return nil
	}
	now := time.Now()
	if c.deadline.IsZero() {
		c.deadline = now.Add(c.timeout)
	}
	if now.After(c.deadline) {
		return c.lateError()
	}
	g.inquiry.look(now)
	c.reportIfSlow(now)
	return c.lossError(now)
}

// lateError is the error of a deadline that has passed.
func (c *collective) lateError() error {
	switch {
	case c.stage == announced:
	case c.shared != nil:
		return c.chunksTimeout(c.shared)
	case c.lends():
		return c.unreadError()
	case c.form == coll.InRounds:
		return c.roundsTimeout()
	}
	return c.timeoutError()
}

// lossError returns an error if a member that c needs has died, has left, or has given c up.
func (c *collective) lossError(now time.Time) error {
	g := c.g
	switch {
	case c.stage == running && c.shared != nil:
		return c.lostError(c.shared)
	case c.stage == running && c.form == coll.InRounds && c.handle == nil:
		return c.outOfRounds()
	case c.stage == running || g.Wire != nil: // a wire is an operation of MPI
		if dead := c.Over(g.Members(), now); dead != nil {
			return c.lost(dead)
		}
	}
	if c.stage == announced {
		return c.absentError()
	}
	if !c.prog.Settles() && len(g.Arrival.Closers(c.args.Seq)) > 0 {
		return c.closedError()
	}
	return nil
}

// lost is the error that members died in c, or before they did their part of it.
func (c *collective) lost(members []int) error {
	return c.g.Members().DiedError(c.numbered()+c.inPhase(), members, "its result is lost, and the group is broken")
}

// stop gives c, which runs, up because of err.
func (c *collective) stop(err error) wants {
	switch {
	case c.handle == nil && c.shared != nil:
		c.g.Node.Slots.Explain(status.CodeOf(err))
		c.stopping, c.stopBy = err, time.Now().Add(claimedLimit)
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
	if c.shared != nil {
		g.Node.Slots.Explain(g.cause(err))
		c.shared.Leave()
	} else {
		g.resign(c.args.Seq, err)
		c.prog.Leave()
	}
	g.Env.Recorder.End(c.trace, err)
	c.countOff(c.handle.GiveUp(err))
	g.Fail(err)
	return requests
}

// refuse makes c one that only takes part in the arrival. c has not begun, and the caller holds Group.mu.
func (c *collective) refuse() {
	c.refused = true
	c.discard()
	c.g.Env.Engine.StartProgress()
}

// refuseInstead ends c for its caller because of err, before it is announced, and makes it a refusal: the group stays usable.
// It is the turn of c.
func (c *collective) refuseInstead(err error) {
	if c.handle == nil {
		c.takeHandle()
	}
	c.g.mu.Lock()
	c.refuse()
	c.g.mu.Unlock()
	c.report(err)
	c.deadline = time.Now().Add(c.g.Timeout())
}

// refuseQueued makes c a refusal if it is still in the queue and was not announced. c is not removed, because the other members
// announce a collective in its place.
func (c *collective) refuseQueued() bool {
	g := c.g
	g.mu.Lock()
	defer g.mu.Unlock()
	if !slices.Contains(g.queue, c) || c.refused || c.ahead {
		return false
	}
	c.refuse()
	return true
}

// await waits for a synchronous operation that the engine takes further. An interrupt makes the caller give up; the deadline is
// watched by step. If the collective is still in the queue, it stays there as a refusal, because the other members expect an
// announcement. If MPI may use the memory after an error, await returns the handle.
func (c *collective) await() (lingering *work.Handle, r work.Result, err error) {
	h, stream := c.handle, uint64(c.stream)
	r, err = h.Wait(-1, c.g.Env.Interrupt)
	if !h.Done() {
		if c.refuseQueued() {
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

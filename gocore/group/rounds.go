package group

import (
	"slices"
	"time"

	"github.com/paddlempi/paddlempi/gocore/coll"
	"github.com/paddlempi/paddlempi/gocore/coll/bounce"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/work"
	"github.com/paddlempi/paddlempi/gocore/world"
)

// This file carries out collectives whose tensors go through blocks that all members map (package bounce), on the thread of
// their caller. Nobody works in the tensors of another member. So a member that gives up ends its call at once, and says in the control slots
// that it takes no part; the others see that within a look.

const (
	// roundsSpin is how many pauses a call waits for another member before it waits adaptively: some 20 us.
	roundsSpin = 1000
	// roundsSteps is how many steps a call does between two looks at the clock, its deadline and the members: some ms.
	roundsSteps = 256
)

// runRounds carries out c on this thread. All members have arrived.
func (c *collective) runRounds(alg *coll.Algorithm) error {
	g := c.g
	if err := c.pack(); err != nil {
		return err
	}
	if err := alg.Begin(&c.args, &c.prog); err != nil {
		return err
	}
	spin := roundsSpin
	if g.Env.Node.Crowded() {
		spin = 0
	}
	var deadline, asked time.Time
	for {
		state, err := c.args.RunRounds(roundsSteps, spin)
		if state == bounce.Done || err != nil {
			return err
		}
		now := time.Now()
		if deadline.IsZero() {
			deadline, asked = now.Add(c.timeout), now
		}
		switch {
		case state == bounce.Pending:
			err = c.awaitRounds(deadline)
		case now.Sub(asked) >= work.InterruptEvery: // a long tensor may keep this member from ever waiting
			asked = now
			err = c.whyStop(deadline)
		}
		if err != nil {
			return err
		}
	}
}

// whyStop returns why this member must not go on with the rounds of c, nil if it may.
func (c *collective) whyStop(deadline time.Time) error {
	g := c.g
	if time.Now().After(deadline) {
		return c.roundsTimeout()
	}
	if err := g.EndingError(world.Describe(c.sig)); err != nil {
		return err
	}
	if err := c.outOfRounds(); err != nil || g.Env.Interrupt == nil {
		return err
	}
	return g.Env.Interrupt()
}

// awaitRounds waits until this member can go on with the rounds of c. Each wait begins with short pauses, because another member works on
// what this one waits for.
func (c *collective) awaitRounds(deadline time.Time) error {
	g := c.g
	var out error
	var slow world.Slowness
	looks := 0
	err := g.Wait(func() bool {
		state, _ := c.args.RunRounds(1, 0)
		if looks++; looks%lookEvery == 0 {
			out = c.outOfRounds()
			c.reportIfSlow(&slow, true, g.late)
		}
		return state != bounce.Pending || out != nil
	}, deadline)
	switch {
	case err == nil || out != nil:
		return out
	case err == work.ErrDeadline:
		return c.roundsTimeout()
	case g.Ending() != nil:
		return g.EndingError(world.Describe(c.sig))
	}
	return err
}

// outOfRounds returns an error if a member for which this one waits has died, or a member has given c up. Two members may wait
// for each other, and one of them for the dead one, too.
func (c *collective) outOfRounds() error {
	g := c.g
	for who := range g.Ranks {
		if who != g.Rank && g.bounce.Awaits(who) && g.Env.Roster.Died(g.Ranks[who]) && g.bounce.Awaits(who) { // what it did before it died counts
			return c.lost([]int{who})
		}
	}
	if len(g.arrival.Closers(c.args.Seq)) > 0 {
		return c.closedError()
	}
	return nil
}

// late returns the member for which the rounds under way wait, -1 if there is none: one that is stalled, if one is and has not
// ended its part. Two members may wait for each other, and one of them for the stalled one, too.
func (g *Group) late() int {
	who := g.bounce.Awaited()
	if who < 0 {
		return who
	}
	stalled := g.Env.Recorder.Stalled(g.Ranks)
	for i, rank := range g.Ranks {
		if i != g.Rank && !g.bounce.HasEnded(i) && slices.Contains(stalled, rank) {
			return i
		}
	}
	return who
}

// roundsTimeout is timeoutError for a call whose rounds are not over. It names the member for which all wait.
func (c *collective) roundsTimeout() error {
	g := c.g
	who := g.late()
	if who < 0 {
		return c.timeoutError()
	}
	slow := g.Ranks[who]
	return status.New(status.Timeout, "%s timed out after %v: all members had come, the transfer did not end: rank %d has not done its part (is it stopped?); the group is broken",
		c.of(), c.timeout, slow).WithRanks(slow)
}

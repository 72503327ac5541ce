package collective

import (
	"slices"

	"github.com/paddlempi/paddlempi/gocore/coll"
	"github.com/paddlempi/paddlempi/gocore/coll/bounce"
)

// This file carries out collectives whose tensors go through blocks that all members map (package bounce), on the thread of
// their caller. Nobody works in the tensors of another member. So a member that gives up ends its call at once, and says in the control slots
// that it takes no part; the others see that within a look.

const (
	// roundsSpin is how many pauses a call waits for another member before it waits adaptively: some 20 us.
	roundsSpin = 1000
	// roundsSteps is how many steps a call does between two looks at its deadline and the members: some ms.
	roundsSteps = 256
)

// stepRounds takes the rounds of a further, which are done on the thread of its caller.
func stepRounds(a *coll.Args, spin int) (done bool, want wants, err error) {
	if spin = min(spin, roundsSpin); spin < roundsSpin {
		spin = 0
	}
	state, err := a.RunRounds(roundsSteps, spin)
	switch {
	case state == bounce.Done || err != nil:
		return true, nothing, err
	case state == bounce.Pending:
		return false, members, nil
	}
	return false, aStep, nil
}

// outOfRounds returns an error if a member for which this one waits has died, or a member has given the collective up. Two members may wait
// for each other, and one of them for the dead one, too.
func (f *failure) outOfRounds() error {
	g := f.g
	for who := range g.Ranks {
		if who != g.Rank && g.Bounce.Awaits(who) && g.Env.Roster.Died(g.Ranks[who]) && g.Bounce.Awaits(who) { // what it did before it died counts
			return f.lost([]int{who})
		}
	}
	return f.givenUp()
}

// awaited returns the member for which the rounds under way wait, -1 if there is none: one that is stalled, if one is and has not
// ended its part. Two members may wait for each other, and one of them for the stalled one, too.
func awaited(g *Group) int {
	who := g.Bounce.Awaited()
	if who < 0 {
		return who
	}
	stalled := g.Env.Recorder.Stalled(g.Ranks)
	for i, rank := range g.Ranks {
		if i != g.Rank && !g.Bounce.HasEnded(i) && slices.Contains(stalled, rank) {
			return i
		}
	}
	return who
}

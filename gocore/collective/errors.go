package collective

import (
	"fmt"
	"slices"

	"github.com/paddlempi/paddlempi/gocore/status"
)

// timeoutError names the operation, its timeout and the ranks that never came. If all had come, it names those of other
// nodes that do not answer.
func (c *collective) timeoutError() error {
	g := c.g
	who, arrived := "all members had come, the transfer did not end"+c.inPhase(), g.arrived == c.args.Seq
	missing, known := g.Arrival.Missing()
	switch {
	case !known && arrived:
		missing = g.inquiry.askAgain()
	case !known:
		missing = g.inquiry.ask()
	}
	ranks := g.Members().World(missing)
	switch {
	case len(ranks) > 0 && arrived:
		who += fmt.Sprintf(", and rank(s) %s do not answer", status.Brief(ranks))
	case len(ranks) > 0:
		who = fmt.Sprintf("rank(s) %s never came", status.Brief(ranks))
	}
	return status.New(status.Timeout, "%s timed out after %v: %s; the group is broken",
		c.of(), c.timeout, who).WithRanks(ranks...)
}

// closedError says which members gave c up before all had arrived, and why. A member that was
// waiting for c gets the same error as the member that gave up. A member that comes late learns
// that c was given up.
func (c *collective) closedError() error { return c.closedBy(c.g.Arrival.Closers(c.args.Seq)) }

// closedBy is closedError for the given closers and their reasons.
func (c *collective) closedBy(closers map[int]status.Code) error {
	g := c.g
	var who, ended []int
	reason := status.GroupBroken
	for i := range g.Ranks { // in the order of ranks, because closers may have different reasons
		why, ok := closers[i]
		if !ok {
			continue
		}
		who = append(who, i)
		if len(who) == 1 || why == status.PeerDied || why == status.Timeout && reason != status.PeerDied {
			reason = why
		}
		if why == status.PeerLeft {
			ended = append(ended, i)
		}
	}
	by := g.Members().World(who)
	missing, known := g.Arrival.Missing()
	late := slices.Contains(missing, g.Rank)
	switch {
	case reason == status.Timeout && known && len(missing) == 0:
		return status.New(status.Timeout, "%s timed out after %v, on rank(s) %s first: all members had come, the transfer did not end; the group is broken",
			c.of(), c.timeout, status.Brief(by)).WithRanks(by...)
	case reason == status.Timeout && known && !late:
		return status.New(status.Timeout, "%s timed out after %v, on rank(s) %s first: rank(s) %s never came; the group is broken",
			c.of(), c.timeout, status.Brief(by), status.Brief(g.Members().World(missing))).WithRanks(g.Members().World(missing)...)
	case reason == status.PeerLeft && !known:
		return c.leftBefore(ended)
	case reason == status.PeerLeft || reason == status.PeerDied:
		// The closers may know of a death for longer than this member, so it looks at once.
		if dead := g.Members().Dead(); reason == status.PeerDied && len(dead) > 0 {
			return g.Members().DiedError(c.numbered(), dead, "the group is broken")
		}
		if err := c.leftError(); err != nil {
			return err
		}
	}
	if err := c.blamed(who); err != nil {
		return err
	}
	why := map[status.Code]string{
		status.Timeout:        "gave up waiting for this rank, which comes after the deadline",
		status.Interrupted:    "was interrupted",
		status.PeerLeft:       "gave up because a member has ended",
		status.PeerDied:       "gave up because a member has died",
		status.GroupDestroyed: "destroyed the group",
	}[reason]
	if reason == status.Timeout && !known {
		why = "gave up waiting when the deadline had passed there"
	}
	if why == "" {
		why = "had an operation on the group fail"
	}
	return status.New(status.GroupBroken, "%s: rank(s) %s %s; the group is broken",
		c.of(), status.Brief(by), why).WithRanks(by...)
}

// absentError returns an error if a member will not come to c.
func (c *collective) absentError() error {
	g := c.g
	if err := c.leftError(); err != nil {
		return err
	}
	if g.Node != nil && len(g.Arrival.Closers(c.args.Seq)) > 0 {
		return c.closedError()
	}
	return nil
}

// leftError names the members that left without coming to c; nil if shared memory shows none.
func (c *collective) leftError() error {
	g := c.g
	missing, known := g.Arrival.Missing()
	if !known {
		return nil // across nodes the members answer questions: see closedError
	}
	var left []int
	for _, i := range missing {
		if i != g.Rank && g.Env.Roster.Left(g.Ranks[i], 0) {
			left = append(left, i)
		}
	}
	if len(left) == 0 {
		return nil
	}
	if dead := g.Members().Dead(); len(dead) > 0 {
		return g.Members().DiedError(c.numbered(), dead, "the group is broken")
	}
	return c.leftBefore(left)
}

func (c *collective) leftBefore(members []int) error {
	left := c.g.Members().World(members)
	return status.New(status.PeerLeft, "%s: rank(s) %s have ended and will not come; the group is broken",
		c.of(), status.Brief(left)).WithRanks(left...)
}

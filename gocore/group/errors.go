package group

import (
	"fmt"
	"slices"
	"sort"
	"strings"

	"github.com/paddlempi/paddlempi/gocore/arrive"
	"github.com/paddlempi/paddlempi/gocore/coll"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/world"
)

// agreed tells whether a collective at which all members have arrived may run. The answer is the
// same on every member.
func (c *call) agreed(state arrive.State, res arrive.Result) bool {
	diff := res.Diff
	if c.args.Trait().Shares == op.Pairwise && res.All&coll.Even == 0 {
		diff &^= 1 << 1 // uneven parts: the lengths are exchanged later
	}
	return (state == arrive.Agreed || state == arrive.Differ && diff == 0) && res.Any&arrive.Refused == 0
}

// agreementError returns nil if the members agree. Otherwise it returns an error that names the
// members that refused, or the calls of all members.
func (c *call) agreementError(state arrive.State, res arrive.Result) error {
	g := c.g
	if c.agreed(state, res) {
		return nil
	}
	entries := g.arrival.Entries()
	if res.Any&arrive.Refused != 0 {
		var who []int
		for i, e := range entries {
			if e.Flags&arrive.Refused != 0 {
				who = append(who, g.Ranks[i])
			}
		}
		return status.New(status.Refused, "%s: rank(s) %s refused their part (their own error says why); nothing was sent and the group is usable",
			c.args.Code, status.Brief(who)).WithRanks(who...)
	}
	return c.mismatch(entries)
}

// mismatch is the error that says which ranks called what.
func (c *call) mismatch(entries []arrive.Entry) error {
	type party struct {
		what  string
		ranks []int
	}
	var parties []party
	sigs := map[arrive.Signature]int{}
	for i, e := range entries {
		at, ok := sigs[e.Signature]
		if !ok {
			at = len(parties)
			sigs[e.Signature] = at
			parties = append(parties, party{what: world.Describe(e.Signature)})
		}
		parties[at].ranks = append(parties[at].ranks, c.g.Ranks[i])
	}
	// The error names the ranks outside the largest party.
	sort.SliceStable(parties, func(a, b int) bool { return len(parties[a].ranks) > len(parties[b].ranks) })
	var odd []int
	var text []string
	for i, p := range parties {
		if i > 0 {
			odd = append(odd, p.ranks...)
		}
		if i < 8 {
			text = append(text, fmt.Sprintf("rank(s) %s: %s", status.Brief(p.ranks), p.what))
		}
	}
	if len(parties) == 2 && len(parties[0].ranks) == len(parties[1].ranks) {
		odd = append(append([]int(nil), parties[0].ranks...), odd...)
		slices.Sort(odd)
	}
	return status.New(status.Mismatch, "%s: the ranks do not call the same thing: %s; nothing was sent and the group is usable",
		c.args.Code, strings.Join(text, "; ")).WithRanks(odd...)
}

// timeoutError names the operation, its timeout and the ranks that never came.
func (c *call) timeoutError() error {
	g := c.g
	missing, known := g.arrival.Missing()
	if !known {
		missing = g.ask()
	}
	ranks := g.World(missing)
	who := "all members had come, the transfer did not end"
	if len(ranks) > 0 {
		who = fmt.Sprintf("rank(s) %s never came", status.Brief(ranks))
	}
	return status.New(status.Timeout, "%s timed out after %v: %s; the group is broken",
		c.of(), c.timeout, who).WithRanks(ranks...)
}

// closedError says which members gave c up before all had arrived, and why. A member that was
// waiting for c gets the same error as the member that gave up. A member that comes late learns
// that c was given up.
func (c *call) closedError() error { return c.closedBy(c.g.arrival.Closers(c.args.Seq)) }

// closedBy is closedError for the given closers and their reasons.
func (c *call) closedBy(closers map[int]status.Code) error {
	g := c.g
	var who, ended []int
	reason := status.GroupBroken
	for i := range g.Ranks { // in order: members may have closed it for different reasons
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
	by := g.World(who)
	missing, known := g.arrival.Missing()
	late := slices.Contains(missing, g.Rank)
	switch {
	case reason == status.Timeout && known && len(missing) == 0:
		return status.New(status.Timeout, "%s timed out after %v, on rank(s) %s first: all members had come, the transfer did not end; the group is broken",
			c.of(), c.timeout, status.Brief(by)).WithRanks(by...)
	case reason == status.Timeout && known && !late:
		return status.New(status.Timeout, "%s timed out after %v, on rank(s) %s first: rank(s) %s never came; the group is broken",
			c.of(), c.timeout, status.Brief(by), status.Brief(g.World(missing))).WithRanks(g.World(missing)...)
	case reason == status.PeerLeft && !known:
		return c.leftBefore(ended)
	case reason == status.PeerLeft || reason == status.PeerDied:
		// The closers may know of a death for longer than this member, so it looks at once.
		if dead := g.Dead(); reason == status.PeerDied && len(dead) > 0 {
			return g.DiedError(c.numbered(), dead, "the group is broken")
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
func (c *call) absentError() error {
	g := c.g
	if err := c.leftError(); err != nil {
		return err
	}
	if g.node != nil && len(g.arrival.Closers(c.args.Seq)) > 0 {
		return c.closedError()
	}
	return nil
}

// leftError names members that left before they came to c, if shared memory shows any.
func (c *call) leftError() error {
	g := c.g
	missing, known := g.arrival.Missing()
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
	if dead := g.Dead(); len(dead) > 0 {
		return g.DiedError(c.numbered(), dead, "the group is broken")
	}
	return c.leftBefore(left)
}

func (c *call) leftBefore(members []int) error {
	left := c.g.World(members)
	return status.New(status.PeerLeft, "%s: rank(s) %s have ended and will not come; the group is broken",
		c.of(), status.Brief(left)).WithRanks(left...)
}

// of describes the collective and its group.
func (c *call) of() string { return c.g.Of(world.Describe(c.sig)) }

// numbered describes the collective c of g with its number.
func (c *call) numbered() string {
	return fmt.Sprintf("%s, number %d", world.Describe(c.sig), c.args.Seq)
}

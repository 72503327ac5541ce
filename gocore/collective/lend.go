package collective

import (
	"github.com/paddlempi/paddlempi/gocore/coll"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// readLooks is how often a call looks by itself whether its tensor was read: some 50 us.
const readLooks = 1000

// lends tells whether c, whose algorithm was chosen, ends when the others have read its tensor. Where messages
// carry it, nobody reads what was lent.
func (c *collective) lends() bool {
	return c.form == coll.AtOnce && c.args.Neighbours != nil && c.offer.Lent()
}

// isRead tells whether no other member reads the tensor of c any more, which it has lent. It looks up to spin times.
func (c *collective) isRead(spin int) bool {
	for range min(spin, readLooks) {
		if c.g.Node.Slots.Finished(c.args.Seq) {
			return true
		}
	}
	for i := range c.g.Ranks {
		if c.reads(i) {
			return false
		}
	}
	return true
}

// reads tells whether a member may still read the tensor of c.
func (c *collective) reads(i int) bool {
	g := c.g
	return i != g.Rank && !g.Node.Slots.HasFinished(i, c.args.Seq) && !g.Node.Slots.Left(i) && !g.Env.Roster.Died(g.Ranks[i])
}

// haveRead says that this member reads nothing any more that others have lent for c, or will not begin. It is the turn of c.
func (c *collective) haveRead() {
	if g := c.g; c.args.Neighbours != nil && g.Node != nil && c.args.Seq != 0 && c.args.Seq == g.turn {
		g.Node.Slots.Finish(c.args.Seq)
	}
}

// unreadError is timeoutError of a call that waits for those that read its tensor.
func (c *collective) unreadError() error {
	var slow []int
	for i, r := range c.g.Ranks {
		if c.reads(i) {
			slow = append(slow, r)
		}
	}
	return status.New(status.Timeout, "%s timed out after %v: all members had come, and rank(s) %s have not read this rank's tensor (are they stopped?); the group is broken",
		c.of(), c.timeout, status.Brief(slow)).WithRanks(slow...)
}

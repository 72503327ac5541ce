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

// isRead tells whether no other member reads the tensor of r any more, which it has lent. It looks up to spin times.
func isRead(r *request, spin int) bool {
	for range min(spin, readLooks) {
		if r.g.Node.Slots.Finished(r.args.Seq) {
			return true
		}
	}
	for i := range r.g.Ranks {
		if reads(r, i) {
			return false
		}
	}
	return true
}

// reads tells whether a member may still read the tensor of r.
func reads(r *request, i int) bool {
	g := r.g
	return i != g.Rank && !g.Node.Slots.HasFinished(i, r.args.Seq) && !g.Node.Slots.Left(i) && !g.Env.Roster.Died(g.Ranks[i])
}

// haveRead says that this member reads nothing any more that others have lent for r, or will not begin. It is the turn of r.
func haveRead(r *request) {
	if g := r.g; r.args.Neighbours != nil && g.Node != nil && r.args.Seq != 0 && r.args.Seq == g.turns.turn {
		g.Node.Slots.Finish(r.args.Seq)
	}
}

// unreadError is timeoutError of a call that waits for those that read its tensor.
func (f *failure) unreadError() error {
	var slow []int
	for i, r := range f.g.Ranks {
		if reads(f.request, i) {
			slow = append(slow, r)
		}
	}
	return status.New(status.Timeout, "%s timed out after %v: all members had come, and rank(s) %s have not read this rank's tensor (are they stopped?); the group is broken",
		f.of(), f.timeout, status.Brief(slow)).WithRanks(slow...)
}

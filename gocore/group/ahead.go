package group

import (
	"github.com/paddlempi/paddlempi/gocore/arrive"
	"github.com/paddlempi/paddlempi/gocore/buffer"
	"github.com/paddlempi/paddlempi/gocore/coll"
)

// A group on one node announces asynchronous collectives when they are submitted, ahead of their
// turn. The other members know then where the tensors are, and can do the work of this rank while it
// computes. The collectives still take place in order: a member takes part in one when it has
// finished with all before it.

// announceAhead announces queued collectives, in order, as far as it may. The caller holds mu.
func (g *Group) announceAhead() {
	if g.node == nil || g.current == nil || g.broken != nil {
		return
	}
	for i, t := range g.queue {
		if t.ahead {
			continue
		}
		if !t.mayBeAhead(g.queue[:i]) || !g.node.Slots.MayAnnounce(g.seq+1) {
			return
		}
		payload, err := t.collective.payload()
		if err != nil {
			return // it fails in its turn
		}
		g.seq++
		t.collective.args.Seq, t.ahead = g.seq, true
		t.collective.trace.Begun(g.seq)
		g.node.Slots.AnnounceAhead(g.seq, &t.collective.sig, t.flags(), payload)
	}
}

// mayBeAhead tells whether t may be announced before the turns of current and of before. A
// synchronous call may still be refused: then its group stays usable. An input that travels in the
// announcement must not be the result of a collective before it.
func (t *task) mayBeAhead(before []*task) bool {
	if t.refused || !t.collective.async {
		return t.refused
	}
	if !t.collective.offer.CarriesInput() {
		return true // no input travels
	}
	if t.copied || t.collective.args.Neighbours != nil || !t.isAfter(t.g.current) {
		return false
	}
	for _, u := range before {
		if !t.isAfter(u) {
			return false
		}
	}
	return true
}

// isAfter tells whether the input of t cannot lie in the result of u.
func (t *task) isAfter(u *task) bool {
	switch {
	case u.refused || !u.collective.args.WritesRecv():
		return true
	case u.copied || u.collective.args.Neighbours != nil:
		return false // the parts are not where the result goes
	}
	elem := int64(t.collective.args.DType.Size())
	theirs := int64(u.collective.args.DType.Size())
	for _, in := range coll.Input(&t.collective.args) {
		for _, out := range u.collective.args.Recv {
			if buffer.Overlap(in.Data, in.Count*elem, out.Data, out.Count*theirs) {
				return false
			}
		}
	}
	return true
}

// mayWork tells whether this member may work in the tensors of all members. If a member has announced
// c ahead, its tensors may still be those of a collective before c. That one is over for all members
// if it was done in mapped memory too, or if all members have finished with it.
func (c *collective) mayWork() bool {
	before := c.args.Seq - 1
	return c.args.Any&arrive.Ahead == 0 || c.g.mapped == before || c.g.node.Slots.Finished(before)
}

// withdraw ends t, whose turn does not come, with err. If t was announced ahead, this member tells the
// others that it takes no part. They may have begun: then they must not write into the tensors after
// the caller knows of err, so chunks that nobody has claimed are closed.
func (t *task) withdraw(err error) {
	g, seq := t.g, t.collective.args.Seq
	t.gone = true
	if t.ahead {
		reason := g.cause(err)
		if !g.arrival.GiveUp(seq, reason) {
			g.node.Slots.Stop(seq, reason)
			if t.leaveShared(err) {
				return
			}
		}
	}
	t.end(err)
	t.discard()
}

// leaveShared leaves the work of t in mapped memory, if that is how the other members carry t out.
func (t *task) leaveShared(err error) bool {
	g := t.g
	state, res := g.node.Slots.Look(t.collective.args.Seq)
	if t.refused || !t.collective.agreed(state, res) { // choose would look at the arrival, which another thread may own
		return false
	}
	alg, chosen := t.collective.choose(state, res)
	if chosen != nil || t.collective.form != coll.InChunks || t.share(alg) != nil && t.stage != lingering {
		return false
	}
	t.linger(err)
	return true
}

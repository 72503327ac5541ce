package collective

import (
	"slices"

	"github.com/paddlempi/paddlempi/gocore/arrive"
	"github.com/paddlempi/paddlempi/gocore/buffer"
	"github.com/paddlempi/paddlempi/gocore/coll"
)

// A group on one node announces asynchronous collectives when they are submitted, ahead of their
// turn. The other members know then where the tensors are, and can do the work of this rank while it
// computes. The collectives still take place in order: a member takes part in one when it has
// finished with all before it.

// announceAhead announces queued collectives, in order, as far as it may. The caller holds mu.
func (t *turns) announceAhead() {
	if t.g.Node == nil || t.current == nil || t.broken != nil {
		return
	}
	for i, c := range t.queue {
		if c.ahead {
			continue
		}
		if !mayBeAhead(c, t.current) || !mayBeAhead(c, t.queue[:i]...) || !t.g.Node.Slots.MayAnnounce(t.seq+1) {
			return
		}
		payload, err := c.payload()
		if err != nil {
			return // it fails in its turn
		}
		t.seq++
		c.args.Seq, c.ahead = t.seq, true
		c.trace.Begun(t.seq)
		t.g.Node.Slots.AnnounceAhead(t.seq, &c.sig, c.announces(), payload)
	}
}

// mayBeAhead tells whether c may be announced before the turns of others. A
// synchronous call may still be refused: then its group stays usable. An input that travels in the
// announcement must not be the result of a collective before it.
func mayBeAhead(c *collective, others ...*collective) bool {
	if c.refused || !c.async {
		return c.refused
	}
	if !c.offer.CarriesInput() {
		return true // no input travels
	}
	return !c.copied && c.args.Neighbours == nil && !slices.ContainsFunc(others, func(u *collective) bool { return !isAfter(c, u) })
}

// isAfter tells whether the input of c cannot lie in the result of u.
func isAfter(c, u *collective) bool {
	switch {
	case u.refused || !u.args.WritesRecv():
		return true
	case u.copied || u.args.Neighbours != nil:
		return false // the parts are not where the result goes
	}
	elem := int64(c.args.DType.Size())
	theirs := int64(u.args.DType.Size())
	for _, in := range coll.Input(&c.args) {
		for _, out := range u.args.Recv {
			if buffer.Overlap(in.Data, in.Count*elem, out.Data, out.Count*theirs) {
				return false
			}
		}
	}
	return true
}

// mayWork tells whether this member may work in the tensors of all members. If a member has announced
// r ahead, its tensors may still be those of a collective before it. That one is over for all members
// if it was done in mapped memory too, or if all members have finished with it.
func mayWork(r *request) bool {
	before := r.args.Seq - 1
	return r.args.Any&arrive.Ahead == 0 || r.g.mapped == before || r.g.Node.Slots.Finished(before)
}

// withdraw ends c, whose turn does not come, with err. If c was announced ahead, this member tells the
// others that it takes no part. They may have begun: then they must not write into the tensors after
// the caller knows of err, so chunks that nobody has claimed are closed.
func (c *collective) withdraw(err error) {
	g, seq := c.g, c.args.Seq
	c.gone = true
	if c.ahead {
		reason := g.cause(err)
		if !g.Arrival.GiveUp(seq, reason) {
			g.Node.Slots.Stop(seq, reason)
			if c.leaveShared(err) {
				return
			}
		}
	}
	c.report(err)
	c.discard()
}

// leaveShared leaves the work of c in mapped memory, if that is how the other members carry c out.
func (c *collective) leaveShared(err error) bool {
	g := c.g
	state, res := g.Node.Slots.Look(c.args.Seq)
	if c.refused || !agree(&c.args, state, res) { // choose would look at the arrival, which another thread may own
		return false
	}
	alg, failed := c.choose(state, res)
	if failed != nil || c.form != coll.InChunks {
		return false
	}
	if _ = c.chunks.shareOut(c.failure(), alg); c.chunks.op == nil {
		return false
	}
	c.abandon(err)
	g.Env.Engine.Add(c)
	g.Env.Engine.StartProgress()
	return true
}

package collective

import "github.com/paddlempi/paddlempi/gocore/status"

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

package collective

import (
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// phases implements coll.Phases: it carries out the phases on this node of the collectives of g.
type phases struct{ g *Group }

// Start implements coll.Phases. What it begins is over when nobody on this node works on it any more.
func (p phases) Start(d *op.Desc) (over func() (bool, error), err error) {
	g := p.g
	h, _, err := g.Here.Submit(d, false)
	if err != nil {
		return nil, onThisNode(err)
	}
	return func() (bool, error) {
		if !h.Settled() {
			return false, nil
		}
		_, err := h.Result()
		code := status.CodeOf(err)
		if code != status.GroupBroken && code != status.Timeout && code != status.PeerLeft { // its own deadline does not pass
			return true, onThisNode(err)
		}
		// A member has left the work, and perhaps the job, because the whole group is broken: all had come to the collective.
		// Who was the first comes by message.
		if known := func() bool { return len(g.Arrival.Closers(g.turns.turn)) > 0 }; !known() {
			g.Inquiry.ask(true, known)
		}
		if err := g.turns.current.failure().givenUp(); err != nil {
			return true, err
		}
		return true, onThisNode(err)
	}, nil
}

// Fail implements coll.Phases.
func (p phases) Fail(err error) { p.g.failHere(err) }

// onThisNode returns the error of a collective of the members on this node.
func onThisNode(err error) error {
	if err == nil {
		return nil
	}
	return status.New(status.CodeOf(err), "among the ranks on this node: %v", err).WithRanks(status.Plain(err).Ranks...)
}

// End ends every wait of the group because of why.
func (g *Group) End(why *status.Error) {
	g.Members().End(why)
	if g.Here != nil {
		g.Here.Members().End(why)
	}
}

// failHere tells the other members on this node that the group is broken because of err.
func (g *Group) failHere(err error) {
	if g.Here == nil {
		return
	}
	g.Here.Fail(err)
	g.Here.Members().End(status.New(status.CodeOf(err), "the group is broken: %v", err))
}

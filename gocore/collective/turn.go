package collective

import (
	"fmt"
	"slices"
	"time"

	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// takeTurn makes it the turn of c. The caller holds mu, and no other collective is under way.
func (g *Group) takeTurn(c *collective) {
	g.current = c
	if !c.ahead {
		g.seq++
		c.args.Seq = g.seq
	}
	g.turn = c.args.Seq
	c.trace.Begun(g.turn)
}

// beginTurn makes it the turn of c, which set busy and runs on the thread of its caller.
func (c *collective) beginTurn() {
	g := c.g
	g.seq++
	g.turn, c.args.Seq = g.seq, g.seq
	c.record(0)
}

// begin makes the group busy, if it is idle and usable.
func (g *Group) begin(code op.Code) (idle bool, err error) {
	g.mu.Lock()
	if !g.busy {
		err = g.usableLocked(code)
		idle = err == nil
		g.busy = idle
	}
	g.mu.Unlock()
	return idle, err
}

// usableLocked returns why the group cannot carry out an operation. The caller holds mu.
func (g *Group) usableLocked(code op.Code) error {
	switch {
	case g.destroyed:
		return status.New(status.GroupDestroyed, "%s: the group of ranks %s was destroyed; make a new one with new_group", code, status.Brief(g.Ranks))
	case g.broken != nil:
		return status.New(status.GroupBroken, "%s: the group of ranks %s is broken by an earlier failure (%v); make a new group, or end the job",
			code, status.Brief(g.Ranks), g.broken)
	}
	if g.Wire != nil && g.Env.Topo.Joined {
		// MPICH crashes in a send to a process of another job that has died (measured).
		if dead := g.Dead(); len(dead) > 0 {
			return g.DiedError(code.String(), dead, "over several nodes the group takes no more calls")
		}
	}
	return nil
}

// enqueue starts c if the group is idle, else appends it to the queue.
func (g *Group) enqueue(c *collective) error {
	g.mu.Lock()
	if err := g.usableLocked(c.args.Code); err != nil {
		g.mu.Unlock()
		return err
	}
	if g.busy && c.nested {
		g.mu.Unlock()
		return status.New(status.Reentrant, "%s: called by a signal handler that interrupted a collective of the same group, which cannot end before the handler does. "+
			"Let the handler set a flag, and all_reduce the flag at each step: signals land at different places on each rank", g.Of(c.args.Code.String()))
	}
	if c.async && !c.refused {
		c.counted = true
		g.async.Add(1)
	}
	if g.busy {
		g.queue = append(g.queue, c)
		c.atArrival = nil // else release would end one after the other, each inside the one before it
		g.Env.Hold()
		g.announceAhead()
		g.mu.Unlock()
		return nil
	}
	g.busy = true
	g.takeTurn(c)
	g.mu.Unlock()
	c.start()
	return nil
}

// release ends a collective. It starts the next one of the queue, unless the group is ending.
func (g *Group) release() {
	g.mu.Lock()
	if len(g.queue) > 0 && g.Ending() == nil {
		next := g.queue[0]
		g.queue = g.queue[1:]
		g.takeTurn(next)
		g.announceAhead()
		g.mu.Unlock()
		g.Env.Unhold()
		next.start()
		return
	}
	left := g.queue
	g.queue, g.current = nil, nil
	if g.broken != nil {
		g.closeNext(status.CodeOf(g.broken))
	}
	g.busy = false
	broken := g.broken
	g.mu.Unlock()
	if broken != nil {
		g.tellOthers()
	}
	if len(left) > 0 {
		drop(left, g.Ending())
	}
}

// drop ends queued collectives that will not begin because of err.
func drop(queue []*collective, err error) {
	for _, c := range queue {
		c.g.Env.Unhold()
		c.withdraw(status.New(status.CodeOf(err), "%s: given up before its turn came: %v", c.of(), err))
	}
}

// expireGrace is added to the deadline of a queued collective. The collective before it may have
// the same deadline and should fail first, because its error names the ranks that never came. Over
// nodes it asks for them first.
func (g *Group) expireGrace() time.Duration {
	if g.Wire != nil {
		return askWait + 200*time.Millisecond
	}
	return 200 * time.Millisecond
}

// Expire gives up the queued collectives whose deadline has passed. The engine does not poll them,
// so Env.chores calls Expire now and then. A collective that all members have announced ahead cannot
// be refused any more, so it breaks the group.
func (g *Group) Expire(now time.Time) {
	grace := g.expireGrace()
	g.mu.Lock()
	var late []*collective // one that was announced ahead, and those behind it
	var why error
	for i, c := range g.queue {
		if c.refused || !now.After(c.deadline.Add(grace)) {
			continue
		}
		what := fmt.Sprintf("%s timed out after %v: its turn did not come, because an operation before it is still under way",
			c.of(), c.timeout)
		if c.ahead && !g.Node.Slots.Refuse(c.args.Seq) {
			why = status.New(status.Timeout, "%s; all other members have come to it, so the group is broken", what)
			late = slices.Clone(g.queue[i:])
			g.queue = g.queue[:i]
			if g.broken == nil {
				g.broken = why
			}
			break
		}
		c.refuse()
		c.report(status.New(status.Timeout, "%s; this rank refuses its part, and the group stays usable", what))
	}
	g.mu.Unlock()
	if why == nil {
		return
	}
	g.noteBroken()
	g.Env.Unhold()
	late[0].withdraw(why)
	drop(late[1:], status.New(status.GroupBroken, "an operation before it failed: %v", why))
}

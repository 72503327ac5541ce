package group

import (
	"fmt"
	"slices"
	"time"

	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// takeTurn makes it the turn of t. The caller holds mu, and no other collective is under way.
func (g *Group) takeTurn(t *task) {
	g.current = t
	if !t.ahead {
		g.seq++
		t.collective.args.Seq = g.seq
	}
	g.turn = t.collective.args.Seq
	t.collective.trace.Begun(g.turn)
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

// enqueue starts t if the group is idle, else appends it to the queue.
func (g *Group) enqueue(t *task) error {
	g.mu.Lock()
	if err := g.usableLocked(t.collective.args.Code); err != nil {
		g.mu.Unlock()
		return err
	}
	if g.busy && t.collective.nested {
		g.mu.Unlock()
		return status.New(status.Reentrant, "%s: called by a signal handler that interrupted a collective of the same group, which cannot end before the handler does. "+
			"Let the handler set a flag, and all_reduce the flag at each step: signals land at different places on each rank", g.Of(t.collective.args.Code.String()))
	}
	if t.collective.async && !t.refused {
		t.counted = true
		g.async.Add(1)
	}
	if g.busy {
		g.queue = append(g.queue, t)
		g.Env.Hold()
		g.announceAhead()
		g.mu.Unlock()
		return nil
	}
	g.busy = true
	g.takeTurn(t)
	g.mu.Unlock()
	t.begin()
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
		next.begin()
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
	drop(left, g.Ending())
}

// drop ends queued collectives that will not begin because of err.
func drop(queue []*task, err error) {
	for _, t := range queue {
		t.g.Env.Unhold()
		t.withdraw(status.New(status.CodeOf(err), "%s: given up before its turn came: %v", t.collective.of(), err))
	}
}

// expireGrace is added to the deadline of a queued collective. The collective before it may have
// the same deadline and should fail first, because its error names the ranks that never came. Over
// nodes it asks for them first.
func (g *Group) expireGrace() time.Duration {
	if g.wire != nil {
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
	var late []*task // one that was announced ahead, and those behind it
	var why error
	for i, t := range g.queue {
		if t.refused || !now.After(t.collective.deadline.Add(grace)) {
			continue
		}
		what := fmt.Sprintf("%s timed out after %v: its turn did not come, because an operation before it is still under way",
			t.collective.of(), t.collective.timeout)
		if t.ahead && !g.node.Slots.Refuse(t.collective.args.Seq) {
			why = status.New(status.Timeout, "%s; all other members have come to it, so the group is broken", what)
			late = slices.Clone(g.queue[i:])
			g.queue = g.queue[:i]
			if g.broken == nil {
				g.broken = why
			}
			break
		}
		t.refuse()
		t.end(status.New(status.Timeout, "%s; this rank refuses its part, and the group stays usable", what))
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

package collective

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// turns says whose turn it is among the collectives of a group.
type turns struct {
	g         *Group
	mu        sync.Mutex
	busy      bool // a collective is under way, inline or as a task; the queue waits for it
	queue     []*collective
	broken    error // why the group is unusable
	destroyed bool  // the group takes no more calls
	freed     bool  // its communicators and shared memory are freed: see group.Free

	// current is the collective whose turn it is. It is nil while no collective is under way, and while its
	// caller's thread carries it out. mu guards it.
	current *collective

	// due is when the deadline passes of the collective whose turn it is, in nanoseconds; 0: it is not known, or it cannot be
	// held. Who has the turn stores it.
	due atomic.Int64

	// These fields belong to the collective that is under way, and to the holder of mu while busy is false.
	// While current is set, seq too belongs to the holder of mu.
	seq     uint64 // newest collective that this member announced
	turn    uint64 // the collective whose turn it is, or the last one that had it; those from here to seq were announced ahead
	arrived uint64 // newest collective that this member has seen all members announce; turn or turn-1
}

// take makes it the turn of c. The caller holds mu, and no other collective is under way.
func (t *turns) take(c *collective) {
	t.current = c
	if !c.ahead {
		t.seq++
		c.args.Seq = t.seq
	}
	t.turn = c.args.Seq
	t.dueAt(c.deadline)
	c.trace.Begun(t.turn)
}

// next begins the turn of a collective of the caller's thread, which has made the group busy, and returns its number.
func (t *turns) next() uint64 {
	t.seq++
	t.turn = t.seq
	t.dueAt(time.Time{})
	return t.seq
}

// dueAt stores when the deadline passes of the collective whose turn it is; the zero time: see due.
func (t *turns) dueAt(deadline time.Time) {
	due := int64(0)
	if !deadline.IsZero() {
		due = deadline.UnixNano()
	}
	if t.due.Load() != due { // a load costs nothing, a store some 5 ns
		t.due.Store(due)
	}
}

// dueAt sets the deadline of c, whose turn it is.
func (c *collective) dueAt(deadline time.Time) {
	c.deadline = deadline
	c.g.turns.dueAt(deadline)
}

// begin makes the group busy, if it is idle and usable.
func (t *turns) begin(code op.Code) (idle bool, err error) {
	t.mu.Lock()
	if !t.busy {
		err = t.usable(code)
		idle = err == nil
		t.busy = idle
	}
	t.mu.Unlock()
	return idle, err
}

// usable returns why the group cannot carry out an operation. The caller holds mu.
func (t *turns) usable(code op.Code) error {
	switch {
	case t.destroyed && t.g.Env.Revoked():
		return t.g.Members().EndingError(code.String())
	case t.destroyed:
		return status.New(status.GroupDestroyed, "%s: the group of ranks %s was destroyed; make a new one with new_group", code, status.Brief(t.g.Ranks))
	case t.broken != nil && status.CodeOf(t.g.Members().Ending()) == status.Revoked:
		return t.g.Members().EndingError(code.String())
	case t.broken != nil:
		return status.New(status.GroupBroken, "%s: the group of ranks %s is broken by an earlier failure (%v); make a new group, or end the job",
			code, status.Brief(t.g.Ranks), t.broken)
	}
	if t.g.Wire != nil && t.g.Env.Topo.Joined {
		// MPICH crashes in a send to a process of another job that has died (measured).
		if dead := t.g.Members().Dead(); len(dead) > 0 {
			return t.g.Members().DiedError(code.String(), dead, "over several nodes the group takes no more calls")
		}
	}
	return nil
}

// enqueue starts c if the group is idle, else appends it to the queue.
func (t *turns) enqueue(c *collective) error {
	t.mu.Lock()
	if err := t.usable(c.args.Code); err != nil {
		t.mu.Unlock()
		return err
	}
	if t.busy && c.nested {
		t.mu.Unlock()
		return status.New(status.Reentrant, "%s: called by a signal handler that interrupted a collective of the same group, which cannot end before the handler does. "+
			"Let the handler set a flag, and all_reduce the flag at each step: signals land at different places on each rank", t.g.Members().Of(c.args.Code.String()))
	}
	if c.async && !c.refused {
		c.counted = true
		t.g.async.Add(1)
	}
	if t.busy {
		t.queue = append(t.queue, c)
		c.atArrival = nil // else release would end one after the other, each inside the one before it
		t.g.Env.Hold()
		t.announceAhead()
		t.mu.Unlock()
		return nil
	}
	t.busy = true
	t.take(c)
	t.mu.Unlock()
	c.start()
	return nil
}

// release ends a collective. It starts the next one of the queue, unless the group is ending.
func (t *turns) release() {
	t.mu.Lock()
	if len(t.queue) > 0 && t.g.Members().Ending() == nil {
		next := t.queue[0]
		t.queue = t.queue[1:]
		t.take(next)
		t.announceAhead()
		t.mu.Unlock()
		t.g.Env.Unhold()
		next.start()
		return
	}
	left := t.queue
	t.queue, t.current = nil, nil
	if t.broken != nil {
		t.closeNext(status.CodeOf(t.broken))
	}
	t.busy = false
	broken := t.broken
	t.mu.Unlock()
	if broken != nil {
		t.g.tellOthers()
	}
	if len(left) > 0 {
		drop(left, t.g.Members().Ending())
	}
}

// closeNext tells the other members that this one will not come to another collective, because of
// reason. A member that waits for this one, or comes later, gets an error at once. The caller holds
// mu, and no collective is under way.
func (t *turns) closeNext(reason status.Code) {
	if t.allCame() { // else they were told before
		t.g.Arrival.GiveUp(t.seq+1, reason)
	}
}

// allCame tells whether all members have come to every collective that this one has announced.
func (t *turns) allCame() bool { return !t.freed && t.arrived == t.turn && t.turn == t.seq }

// refuse makes c one that only takes part in the arrival. c has not begun, and the caller holds mu.
func (t *turns) refuse(c *collective) {
	c.refused = true
	c.discard()
	t.g.Env.Engine.StartProgress()
}

// refuseQueued makes c a refusal if it is still in the queue and was not announced. c is not removed, because the other members
// announce a collective in its place.
func (t *turns) refuseQueued(c *collective) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !slices.Contains(t.queue, c) || c.refused || c.ahead {
		return false
	}
	t.refuse(c)
	return true
}

// awaited returns since when a caller waits for c, whose turn it is, or for a collective of the queue. The zero time: none does.
func (t *turns) awaited(c *collective) (since time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, u := range append([]*collective{c}, t.queue...) {
		if at := u.handle.Awaited(); !at.IsZero() && (since.IsZero() || at.Before(since)) {
			since = at
		}
	}
	return since
}

// drop ends queued collectives that will not begin because of err.
func drop(queue []*collective, err error) {
	for _, c := range queue {
		c.g.Env.Unhold()
		c.withdraw(status.New(status.CodeOf(err), "%s: given up before its turn came: %v", c.failure().of(), err))
	}
}

const (
	// expireGrace is added to the deadline of a queued collective. That of the collective before it may pass a moment later, and
	// breaks the group.
	expireGrace = 200 * time.Millisecond
	// expireLimit is how long a collective is expected to end by itself after its deadline. One does not whose thread is kept by a
	// signal handler.
	expireLimit = 10 * time.Second
)

// Expire gives up the queued collectives whose deadline has passed. The engine does not poll them,
// so Env.chores calls Expire now and then. If the deadline of the collective before them has passed,
// too, it is that one that fails: its error names the ranks that never came, and it breaks the group.
// A thread that comes late may see all these deadlines before that one's thread has looked at its own.
// A collective that all members have announced ahead cannot be refused any more, so it breaks the group.
func (g *Group) Expire(now time.Time) {
	grace := expireGrace
	if g.Wire != nil {
		grace += askWait // it asks for the ranks first
	}
	g.turns.mu.Lock()
	if due := g.turns.due.Load(); due != 0 {
		if ago := time.Duration(now.UnixNano() - due); ago > 0 && ago < expireLimit {
			g.turns.mu.Unlock()
			return
		}
	}
	var late []*collective // one that was announced ahead, and those behind it
	var why error
	for i, c := range g.turns.queue {
		if c.refused || !now.After(c.deadline.Add(grace)) {
			continue
		}
		what := fmt.Sprintf("%s timed out after %v: its turn did not come, because an operation before it is still under way",
			c.failure().of(), c.timeout)
		if c.ahead && !g.Node.Slots.Refuse(c.args.Seq) {
			why = status.New(status.Timeout, "%s; all other members have come to it, so the group is broken", what)
			late = slices.Clone(g.turns.queue[i:])
			g.turns.queue = g.turns.queue[:i]
			if g.turns.broken == nil {
				g.turns.broken = why
			}
			break
		}
		g.turns.refuse(c)
		c.report(status.New(status.Timeout, "%s; this rank refuses its part, and the group stays usable", what))
	}
	g.turns.mu.Unlock()
	if why == nil {
		return
	}
	g.noteBroken()
	g.Env.Unhold()
	late[0].withdraw(why)
	drop(late[1:], status.New(status.GroupBroken, "an operation before it failed: %v", why))
}

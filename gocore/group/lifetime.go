package group

import (
	"time"

	"github.com/paddlempi/paddlempi/gocore/mpi"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// How a group comes to its end. Three things may stand in the way of freeing it: calls of
// other threads that wait in it, operations that nobody waits for, and requests that MPI
// does not let go of. So it ends in steps: no call is taken any more; what is under way is
// given time; what is left is given up, and its callers are told; and only when nothing is
// left the communicators and the shared lines are freed. Otherwise they stay for ever.

const (
	// drainLimit is how long what was started asynchronously may take to end by itself.
	drainLimit = 10 * time.Second
	// callLimit is the same for calls in which other threads wait: a thread that serves
	// requests waits for one that never comes.
	callLimit = time.Second
	// brokenLimit is the same where the group is broken, and what is left may never end.
	brokenLimit = 300 * time.Millisecond
	// giveUpLimit is how long operations that were given up may take to notice.
	giveUpLimit = time.Second
)

// ending returns why the waits of the group are over, nil while they are not.
func (g *Group) ending() error {
	if why := g.ended.Load(); why != nil {
		return why
	}
	if why := g.env.ended.Load(); why != nil {
		return why
	}
	return nil
}

// endingError is ending for an operation, which what describes.
func (g *Group) endingError(what string) error {
	why := g.ending()
	if why == nil {
		return nil
	}
	return status.New(status.CodeOf(why), "%s on the group of ranks %s: %v", what, brief(g.Ranks), why)
}

// wait drives the engine until done. Beside what Engine.Wait returns it returns the
// reason why the group ends.
func (g *Group) wait(done func() bool, deadline time.Time) error {
	var ending error
	err := g.env.Engine.Wait(func() bool {
		if done() {
			return true
		}
		ending = g.ending()
		return ending != nil
	}, deadline, g.env.Interrupt)
	if err == nil {
		err = ending
	}
	return err
}

// underWay tells whether something of the group is: a collective, queued or not, or a
// message, also one that was given up and that MPI does not let go of.
func (g *Group) underWay() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.busy || len(g.queue) > 0 || g.messages.Load() > 0
}

// patience is how long ending the group waits for what is under way.
func (g *Group) patience() time.Duration {
	switch {
	case g.Broken() != nil:
		return brokenLimit
	case g.async.Load() > 0:
		return drainLimit
	}
	return callLimit
}

// refuseCalls marks the group as destroyed; it returns false where it is.
func (g *Group) refuseCalls() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	was := g.destroyed
	g.destroyed = true
	return !was
}

// startsNothing tells whether all that was asked of the group has begun: no collective waits for its turn,
// no message for its tensor.
func (g *Group) startsNothing() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.queue) == 0 && g.held.Load() == 0
}

// every tells whether f holds for all groups.
func every(groups []*Group, f func(*Group) bool) bool {
	for _, g := range groups {
		if !f(g) {
			return false
		}
	}
	return true
}

// drain gives time to what is under way in groups, which take no more calls. begun is called once
// nothing more will begin. It returns only an interrupt.
func drain(e *work.Engine, groups []*Group, begun func(), interrupt work.Interrupt) error {
	began, told := time.Now(), false
	err := e.Wait(func() bool {
		if !told && every(groups, (*Group).startsNothing) {
			told = true
			begun()
		}
		waited := time.Since(began)
		return every(groups, func(g *Group) bool { return !g.underWay() || waited > g.patience() })
	}, began.Add(drainLimit), interrupt)
	if err == work.ErrDeadline {
		err = nil
	}
	return err
}

// giveUp waits until over, now that the waits are told to end, and returns whether that came.
func giveUp(e *work.Engine, over func() bool) bool {
	_ = e.Wait(over, time.Now().Add(giveUpLimit), nil)
	return over()
}

// Destroy frees the group on this rank. What is under way has a while to end; what has not
// by then is given up, and its callers get an error of code GroupDestroyed. Members that were not
// told fail when they next use the group. An interrupt leaves what is under way alone: it is freed with
// the world.
func (g *Group) Destroy() error {
	if !g.refuseCalls() {
		return status.New(status.GroupDestroyed, "destroy_process_group: the group of ranks %s was destroyed before", brief(g.Ranks))
	}
	only := []*Group{g}
	if err := drain(g.env.Engine, only, func() {}, g.env.Interrupt); err != nil {
		return err
	}
	g.ended.Store(status.New(status.GroupDestroyed, "the group was destroyed while the operation was under way"))
	if !giveUp(g.env.Engine, func() bool { return !g.underWay() }) {
		return nil // MPI does not let go of it: what it uses stays
	}
	return g.free(status.GroupDestroyed)
}

// free gives back what the group is made of, with which nothing is under way any more, unless MPI
// holds a request of an arrival that was given up. reason is what members are told that still
// wait for this one.
func (g *Group) free(reason status.Code) error {
	g.mu.Lock()
	if g.freed {
		g.mu.Unlock()
		return nil
	}
	g.closeNext(reason)
	g.freed = g.arrival.Settled()
	freed, broken := g.freed, g.broken != nil
	g.mu.Unlock()
	if !freed {
		return nil
	}
	g.env.forget(g)
	if broken {
		return nil // an operation ended half way: what state the communicators are in nobody knows
	}
	if g.mapped != nil {
		g.mapped.Close()
	}
	if err := g.arrival.Close(); err != nil {
		return status.New(status.MPI, "destroy_process_group: %v", err)
	}
	for _, comm := range []mpi.Comm{g.side, g.coll} {
		if comm == 0 {
			continue
		}
		if err := g.env.Lib.Free(comm); err != nil {
			return err
		}
	}
	return nil
}

// closeNext tells the others that this member will not come to another collective,
// because of reason. Whoever waits for it, or comes later, raises at once. mu is held, and
// no collective is under way.
func (g *Group) closeNext(reason status.Code) {
	if !g.freed && g.met == g.seq {
		g.arrival.GiveUp(g.seq+1, reason)
	}
}

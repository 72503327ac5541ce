package group

import (
	"time"

	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/transport"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// How a group ends. A group cannot be freed while another thread waits in a call, while an
// asynchronous operation is under way, or while MPI has a request that is not complete. So a group
// ends in steps:
//
//  1. It takes no more calls.
//  2. Operations under way get time to end.
//  3. The other operations are given up, and their callers are told.
//  4. The communicators and the shared lines are freed if nothing is left that uses them. Otherwise
//     they are never freed.

const (
	// drainLimit is how long asynchronous operations may take to end by themselves.
	drainLimit = 10 * time.Second
	// callLimit is how long calls in which other threads wait may take. It is short, because such a
	// call may never end: a thread that serves requests waits for the next one.
	callLimit = time.Second
	// brokenLimit is how long operations of a broken group may take, some of which may never end.
	brokenLimit = 300 * time.Millisecond
	// giveUpLimit is how long operations that were given up may take to notice it.
	giveUpLimit = time.Second
)

// ending returns why no operation of the group may wait any longer, nil while they may.
func (g *Group) ending() error {
	if why := g.ended.Load(); why != nil {
		return why
	}
	if why := g.env.ended.Load(); why != nil {
		return why
	}
	return nil
}

// endingError is ending as an error of one operation, which what describes.
func (g *Group) endingError(what string) error {
	why := g.ending()
	if why == nil {
		return nil
	}
	return status.New(status.CodeOf(why), "%s on the group of ranks %s: %v", what, brief(g.Ranks), why)
}

// wait drives the engine until done returns true. It returns an error of Engine.Wait, or the reason
// why the group ends.
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

// underWay tells whether the group has an operation that is not over: a collective, also a queued
// one, or a message, also one that was given up while MPI still has a request of it.
func (g *Group) underWay() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.busy || len(g.queue) > 0 || g.messages.Load() > 0
}

// patience is how long the end of the group waits for operations under way.
func (g *Group) patience() time.Duration {
	switch {
	case g.Broken() != nil:
		return brokenLimit
	case g.async.Load() > 0:
		return drainLimit
	}
	return callLimit
}

// refuseCalls marks the group as destroyed. It returns false if the group was destroyed before.
func (g *Group) refuseCalls() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	was := g.destroyed
	g.destroyed = true
	return !was
}

// startsNothing tells whether every operation of the group has begun: no collective is queued, and
// no message waits until its tensor is ready.
func (g *Group) startsNothing() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.queue) == 0 && g.held.Load() == 0
}

// all tells whether f is true of all groups.
func all(groups []*Group, f func(*Group) bool) bool {
	for _, g := range groups {
		if !f(g) {
			return false
		}
	}
	return true
}

// drain gives operations under way time to end. The groups take no more calls. drain calls begun
// once every operation has begun. The only error that it returns is an interrupt.
func drain(e *work.Engine, groups []*Group, begun func(), interrupt work.Interrupt) error {
	began, told := time.Now(), false
	err := e.Wait(func() bool {
		if !told && all(groups, (*Group).startsNothing) {
			told = true
			begun()
		}
		waited := time.Since(began)
		return all(groups, func(g *Group) bool { return !g.underWay() || waited > g.patience() })
	}, began.Add(drainLimit), interrupt)
	if err == work.ErrDeadline {
		err = nil
	}
	return err
}

// giveUp waits until over returns true, giveUpLimit at most, and returns what it did. Operations
// have been told to end.
func giveUp(e *work.Engine, over func() bool) bool {
	_ = e.Wait(over, time.Now().Add(giveUpLimit), nil)
	return over()
}

// Destroy frees the group on this rank. Operations under way have a while to end. Then the others
// are given up, and their callers get an error of code GroupDestroyed. A member that does not
// destroy the group gets an error when it next uses the group. After an interrupt the group is
// freed with the world.
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
		return nil // MPI still uses the group's communicators and buffers: they stay
	}
	return g.free(status.GroupDestroyed)
}

// free gives back everything that the group is made of. No operation of it is under way. If MPI
// still has a request of an arrival that was given up, free does nothing. Members that wait for
// this one are told reason.
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
	// MPI has no part in the arrivals of a group on one node, and no operation is under way.
	if g.local || !broken {
		if err := g.arrival.Close(); err != nil {
			return status.New(status.MPI, "destroy_process_group: %v", err)
		}
	}
	if broken {
		return nil // the communicators are in an unknown state: MPI may still use them
	}
	g.unmapPeers()
	for _, comm := range []transport.Comm{g.msgComm, g.collComm} {
		if comm == nil {
			continue
		}
		if err := comm.Free(); err != nil {
			return err
		}
	}
	return nil
}

// unmapPeers gives back the device memory of other members. No collective is under way.
func (g *Group) unmapPeers() {
	if g.peers != nil {
		g.peers.Close()
		g.peers = nil
	}
}

// closeNext tells the other members that this one will not come to another collective, because of
// reason. A member that waits for this one, or comes later, gets an error at once. The caller holds
// mu, and no collective is under way.
func (g *Group) closeNext(reason status.Code) {
	if !g.freed && g.arrived == g.turn && g.turn == g.seq { // else they were told before
		g.arrival.GiveUp(g.seq+1, reason)
	}
}

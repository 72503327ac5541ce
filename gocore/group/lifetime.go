package group

import (
	"time"

	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/transport"
	"github.com/paddlempi/paddlempi/gocore/world"
)

// This file has the end of a group, in the steps of world.Drain.

const (
	// callLimit is how long calls in which other threads wait may take. It is short, because such a
	// call may never end: a thread that serves requests waits for the next one.
	callLimit = time.Second
	// brokenLimit is how long operations of a broken group may take, some of which may never end.
	brokenLimit = 300 * time.Millisecond
)

// UnderWay tells whether the group has an operation that is not over: a collective, also a queued
// one, or a message, also one that was given up while MPI still has a request of it.
func (g *Group) UnderWay() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.busy || len(g.queue) > 0 || g.messages.UnderWay()
}

// Patience is how long the end of the group waits for operations under way.
func (g *Group) Patience() time.Duration {
	switch {
	case g.Broken() != nil:
		return brokenLimit
	case g.async.Load() > 0 || g.messages.Async():
		return world.DrainLimit
	}
	return callLimit
}

// RefuseCalls marks the group as destroyed. It returns false if the group was destroyed before.
func (g *Group) RefuseCalls() bool {
	g.messages.CloseQuick()
	g.mu.Lock()
	defer g.mu.Unlock()
	was := g.destroyed
	g.destroyed = true
	return !was
}

// StartsNothing tells whether every operation of the group has begun: no collective is queued, and
// no message waits until its tensor is ready.
func (g *Group) StartsNothing() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.queue) == 0 && g.messages.StartsNothing()
}

// Destroy frees the group on this rank. Operations under way have a while to end. Then the others
// are given up, and their callers get an error of code GroupDestroyed. A member that does not
// destroy the group gets an error when it next uses the group. After an interrupt the group is
// freed with the world.
func (g *Group) Destroy() error {
	if !g.RefuseCalls() {
		return status.New(status.GroupDestroyed, "destroy_process_group: the group of ranks %s was destroyed before", status.Brief(g.Ranks))
	}
	if err := world.Drain(g.Env.Engine, []world.Group{g}, func() {}, g.Env.Interrupt); err != nil {
		return err
	}
	g.End(status.New(status.GroupDestroyed, "the group was destroyed while the operation was under way"))
	if !world.GiveUp(g.Env.Engine, func() bool { return !g.UnderWay() }) {
		return nil // MPI still uses the group's communicators and buffers: they stay
	}
	return g.Free(status.GroupDestroyed)
}

// Free gives back everything that the group is made of. No operation of it is under way. If MPI
// still has a request of an arrival that was given up, Free does nothing. Members that wait for
// this one are told reason.
func (g *Group) Free(reason status.Code) error {
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
	g.Env.Forget(g)
	g.messages.CloseQuick()
	if err := g.freeArrival(); err != nil {
		return status.New(status.MPI, "destroy_process_group: %v", err)
	}
	g.freeHere()
	if broken {
		return nil // the communicators are in an unknown state: MPI may still use them
	}
	g.unmapPeers()
	for _, comm := range [...]transport.Comm{g.messages.Comm(), g.collComm} {
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

// Close tells the other members on this node that this one comes to no further collective, because of reason.
func (g *Group) Close(reason status.Code) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closeNext(reason)
	if g.here != nil {
		g.here.Close(reason)
	}
	if !g.busy && g.broken == nil {
		g.unmapPeers() // the others may free that memory, and Free comes only when all have left
	}
}

// Farewell announces that this member comes to no further collective, because of reason. No goroutine is
// inside a call of the group. If the announcement fails, members that wait for this one are told when they ask.
func (g *Group) Farewell(reason status.Code) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.wire != nil && !g.freed && g.arrived == g.turn && g.turn == g.seq {
		_ = g.wire.Leave(g.seq+1, reason)
	}
}

// Settled tells whether no arrival of the group is under way that was given up. It takes it further.
func (g *Group) Settled() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.busy || g.arrival.Settled() // the goroutine that set busy owns the arrival
}

// Blocking tells whether a thread is inside a blocking call of MPI.
func (g *Group) Blocking() bool { return g.blocking.Load() != 0 }

// DropMessages takes messages that have come for this member and that nobody will receive: see world.Departure.
func (g *Group) DropMessages() bool { return g.messages.DropNext() }

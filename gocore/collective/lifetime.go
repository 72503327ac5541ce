package collective

import (
	"time"

	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/world"
)

// This file has the end of a group as far as its operations go, in the steps of world.Drain.

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
	return g.busy || len(g.queue) > 0 || g.Messages.UnderWay()
}

// Patience is how long the end of the group waits for operations under way.
func (g *Group) Patience() time.Duration {
	switch {
	case g.Broken() != nil:
		return brokenLimit
	case g.async.Load() > 0 || g.Messages.Async():
		return world.DrainLimit
	}
	return callLimit
}

// RefuseCalls marks the group as destroyed. It returns false if the group was destroyed before.
func (g *Group) RefuseCalls() bool {
	g.Messages.CloseQuick()
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
	return len(g.queue) == 0 && g.Messages.StartsNothing()
}

// Release tells the others, because of reason, that this member comes to no further collective, and whether nothing of the
// arrival is under way: then the group may be freed. again says that it was released before.
func (g *Group) Release(reason status.Code) (settled, again bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.freed {
		return true, true
	}
	g.closeNext(reason)
	g.freed = g.Arrival.Settled()
	return g.freed, false
}

// UnmapPeers gives back the device memory of other members. No collective is under way.
func (g *Group) UnmapPeers() {
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
		g.Arrival.GiveUp(g.seq+1, reason)
	}
}

// Close tells the other members on this node that this one comes to no further collective, because of reason.
func (g *Group) Close(reason status.Code) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closeNext(reason)
	if g.Here != nil {
		g.Here.Close(reason)
	}
	if !g.busy && g.broken == nil {
		g.UnmapPeers() // the others may free that memory, and Free comes only when all have left
	}
}

// Farewell announces that this member comes to no further collective, because of reason. No goroutine is
// inside a call of the group. If the announcement fails, members that wait for this one are told when they ask.
func (g *Group) Farewell(reason status.Code) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.Wire != nil && !g.freed && g.arrived == g.turn && g.turn == g.seq {
		_ = g.Wire.Leave(g.seq+1, reason)
	}
}

// Settled tells whether no arrival of the group is under way that was given up. It takes it further.
func (g *Group) Settled() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.busy || g.Arrival.Settled() // the goroutine that set busy owns the arrival
}

// Blocking tells whether a thread is inside a blocking call of MPI.
func (g *Group) Blocking() bool { return g.blocking.Load() != 0 }

// DropMessages takes messages that have come for this member and that nobody will receive: see world.Departure.
func (g *Group) DropMessages() bool { return g.Messages.DropNext() }

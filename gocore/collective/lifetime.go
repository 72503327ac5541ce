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
	g.turns.mu.Lock()
	defer g.turns.mu.Unlock()
	return g.turns.busy || len(g.turns.queue) > 0 || g.Messages.UnderWay()
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
	g.turns.mu.Lock()
	defer g.turns.mu.Unlock()
	was := g.turns.destroyed
	g.turns.destroyed = true
	return !was
}

// StartsNothing tells whether every operation of the group has begun: no collective is queued, and
// no message waits until its tensor is ready.
func (g *Group) StartsNothing() bool {
	g.turns.mu.Lock()
	defer g.turns.mu.Unlock()
	return len(g.turns.queue) == 0 && g.Messages.StartsNothing()
}

// Release tells the others, because of reason, that this member comes to no further collective. It tells whether nothing of the
// arrival is under way: then the group is to be freed. The group is released once.
func (g *Group) Release(reason status.Code) bool {
	g.turns.mu.Lock()
	defer g.turns.mu.Unlock()
	if g.turns.freed {
		return false
	}
	g.turns.closeNext(reason)
	g.turns.freed = g.Arrival.Settled()
	if g.turns.freed && (g.turns.broken == nil || reason == status.Revoked) {
		unmapPeers(g)
	}
	return g.turns.freed
}

// unmapPeers gives back the device memory of other members. No collective is under way.
func unmapPeers(g *Group) {
	if g.peers != nil {
		g.peers.Close()
		g.peers = nil
	}
}

// Close tells the other members on this node that this one comes to no further collective, because of reason.
func (g *Group) Close(reason status.Code) {
	g.turns.mu.Lock()
	defer g.turns.mu.Unlock()
	g.turns.closeNext(reason)
	if g.Here != nil {
		g.Here.Close(reason)
	}
	if !g.turns.busy && g.turns.broken == nil {
		unmapPeers(g) // the others may free that memory, and group.Free comes only when all have left
	}
}

// Farewell announces that this member comes to no further collective, because of reason. No goroutine is
// inside a call of the group. If the announcement fails, members that wait for this one are told when they ask.
func (g *Group) Farewell(reason status.Code) {
	g.turns.mu.Lock()
	defer g.turns.mu.Unlock()
	if g.Wire != nil && g.turns.allCame() {
		_ = g.Wire.Leave(g.turns.seq+1, reason)
	}
}

// Settled tells whether no arrival of the group is under way that was given up. It takes it further.
func (g *Group) Settled() bool {
	g.turns.mu.Lock()
	defer g.turns.mu.Unlock()
	return g.turns.busy || g.Arrival.Settled() // the goroutine that set busy owns the arrival
}

// Blocking tells whether a thread is inside a blocking call of MPI.
func (g *Group) Blocking() bool { return g.blocking.Load() != 0 }

// DropMessages takes messages that have come for this member and that nobody will receive: see world.Departure.
func (g *Group) DropMessages() bool { return g.Messages.DropNext() }

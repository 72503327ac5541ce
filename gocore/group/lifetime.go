package group

import (
	"slices"
	"sync"

	"github.com/paddlempi/paddlempi/gocore/arrive"
	"github.com/paddlempi/paddlempi/gocore/coll"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/transport"
	"github.com/paddlempi/paddlempi/gocore/world"
)

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
	broken := g.Broken() != nil
	if !g.Release(reason) {
		return nil
	}
	g.Env.Forget(g)
	g.Messages.CloseQuick()
	if g.Node != nil { // the others may still read this one's memory, which reads nothing of theirs any more
		g.Node.Slots.Go()
		remaining.add(&remains{g.Node.Slots, g.Blocks, g.Bounce})
	} else if err := g.Arrival.Close(); err != nil {
		return status.New(status.MPI, "destroy_process_group: %v", err)
	}
	if g.Here != nil {
		_ = g.Here.Arrival.Close() // no collective of the members on this node is under way
	}
	if reason == status.Revoked {
		return nil // nobody else frees the communicators
	}
	if g.Levels != nil {
		g.Levels.Free()
	}
	if broken {
		return nil // the communicators are in an unknown state: MPI may still use them
	}
	for _, comm := range [...]transport.Comm{g.Messages.Comm(), g.collComm} {
		if comm == nil {
			continue
		}
		if err := comm.Free(); err != nil {
			return err
		}
	}
	return nil
}

// A member that frees a group may be ahead of the others, which still copy what it gave to the last collective out of memory of
// this process. That memory, and the control slots in which they say that they are done, remain. They are given back when a group is
// made or freed later: mostly all members come to that after they have freed this one.

// remains is what a group on one node had, and other members may still read.
type remains struct {
	slots  *arrive.ControlSlots
	blocks *coll.Blocks
	bounce *coll.Bounce
}

// free gives it back, and tells whether it did.
func (r *remains) free() bool {
	blocks, bounce := r.blocks == nil || r.blocks.Free(), r.bounce == nil || r.bounce.Free()
	if !blocks || !bounce {
		return false
	}
	_ = r.slots.Close() // it fails only for memory that is not mapped
	return true
}

// remaining has the remains that this process could not give back so far.
var remaining remainders

type remainders struct {
	mu   sync.Mutex
	list []*remains
}

// add keeps remains until nobody reads them any more.
func (s *remainders) add(r *remains) {
	s.mu.Lock()
	s.list = append(s.list, r)
	s.mu.Unlock()
	s.free()
}

// free gives back what nobody reads any more.
func (s *remainders) free() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list = slices.DeleteFunc(s.list, (*remains).free)
}

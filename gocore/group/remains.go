package group

import (
	"slices"
	"sync"

	"github.com/paddlempi/paddlempi/gocore/arrive"
	"github.com/paddlempi/paddlempi/gocore/coll"
)

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

package health

import (
	"slices"
	"time"

	"github.com/paddlempi/paddlempi/gocore/arrive"
	"github.com/paddlempi/paddlempi/gocore/heap"
)

// NodeView is what shared memory shows of the ranks of this node, and shows them of this one. Without shared memory it shows
// nothing. Ranks are world ranks.
type NodeView struct {
	Ranks    []int                // the ranks of this node, this one among them
	Presence *arrive.ControlSlots // shows which of them have left; nil if they share no memory
	Views    map[int]*heap.View   // the heaps of the other ones, whose locks show who lives; nil if they cannot be mapped
}

// shows tells whether shared memory shows if a rank has left.
func (n *NodeView) shows(r int) bool { return n.Presence != nil && slices.Contains(n.Ranks, r) }

// left tells whether a rank has left the job, as shared memory shows.
func (n *NodeView) left(r int) bool {
	return n.shows(r) && n.Presence.Left(slices.Index(n.Ranks, r))
}

// failed returns the status, not 0, with which a rank has said that its process ends; 0: it has not.
func (n *NodeView) failed(r int) (exit int) {
	if n.shows(r) {
		exit = n.Presence.Failed(slices.Index(n.Ranks, r))
	}
	return exit
}

// ended tells whether the process of a rank has ended, in whatever way, and since when that is known. It looks now and then.
func (n *NodeView) ended(r int) (ended bool, known time.Duration) {
	if v := n.Views[r]; v != nil {
		return v.Dead()
	}
	return false, 0
}

// EndedNow tells whether the process of a rank of this node has ended, as it is at this moment.
func (n *NodeView) EndedNow(r int) bool {
	v := n.Views[r]
	return v != nil && v.DeadNow()
}

// EndedEarly tells whether the process of a rank of this node has ended before it told of its end (Go): it has died, or the
// program has called os._exit after destroy_process_group.
func (n *NodeView) EndedEarly() bool {
	for i, r := range n.Ranks {
		if n.Presence != nil && n.EndedNow(r) && !n.Presence.Gone(i) {
			return true
		}
	}
	return false
}

// Leave tells the ranks of this node that this one has left. If its process ends, it has not died.
func (n *NodeView) Leave() {
	if n.Presence != nil {
		n.Presence.Leave()
	}
}

// Fail tells the ranks of this node that the process of this one ends with a status, which is not 0, without having left.
func (n *NodeView) Fail(exit int) {
	if n.Presence != nil {
		n.Presence.Fail(exit)
	}
}

// Go tells the ranks of this node that the process of this one may end from now on.
func (n *NodeView) Go() {
	if n.Presence != nil {
		n.Presence.Go()
	}
}

package world

import (
	"fmt"
	"slices"
	"time"

	"github.com/paddlempi/paddlempi/gocore/heap"
	"github.com/paddlempi/paddlempi/gocore/segment"
)

// shareHeaps opens the heaps of the other ranks of this node. It is collective over base. If some
// rank of the node cannot share, no rank of the node has views, and all collectives use MPI.
func (n *Node) shareHeaps() error {
	own, mistake := heap.Own()
	h := handover[*heap.View]{me: n.topo.Rank, members: n.ranks, owners: n.ranks, open: heap.Open, take: takeHeap}
	if own != nil {
		h.own = own.File()
	}
	done, err := h.run(n.base)
	if err != nil {
		return err
	}
	n.views, n.adopts = done.files, !done.here
	for _, r := range n.ranks {
		if n.noHeaps == "" && slices.Contains(done.missing, r) {
			n.closeViews()
			n.noHeaps = fmt.Sprintf("rank %d, on this node, cannot share memory", r)
			if mistake == nil {
				mistake = done.refused
			}
			if mistake != nil {
				n.noHeaps = mistake.Error()
			}
		}
	}
	return nil
}

// takeHeap takes the heap of another rank over a socket.
func takeHeap(r segment.Rendezvous, a segment.Address, deadline time.Time) (*heap.View, error) {
	file, err := segment.TakeGrowing(r, a, deadline)
	if err != nil {
		return nil, err
	}
	return heap.Of(file)
}

// others returns the other ranks of this node.
func (n *Node) others() []int {
	var list []int
	for _, r := range n.ranks {
		if r != n.topo.Rank {
			list = append(list, r)
		}
	}
	return list
}

func (n *Node) closeViews() {
	for r, v := range n.views {
		v.Close()
		delete(n.views, r)
	}
	n.views = nil
}

// Adopts tells whether a heap may adopt files (heap.Adopt): the ranks of this node share heaps, and
// can open each other's files.
func (n *Node) Adopts() bool { return n.noHeaps == "" && n.adopts && len(n.views) > 0 }

// Heaps tells whether the ranks of this node can map each other's heaps, and why not.
func (n *Node) Heaps() (shared bool, why string) { return n.noHeaps == "", n.noHeaps }

package world

import (
	"cmp"
	"fmt"

	"github.com/paddlempi/paddlempi/gocore/heap"
	"github.com/paddlempi/paddlempi/gocore/segment"
)

// shareHeaps opens the heaps of the other ranks of this node. It is collective over base. If some
// rank of the node cannot share, no rank of the node has views, and all collectives use MPI.
func (n *Node) shareHeaps() error {
	own, mistake := heap.OfProcess()
	views := map[int]*heap.View{}
	h := handover{comm: n.base, peers: n.Ranks, givers: n.Ranks, size: segment.AnySize}
	if own != nil {
		h.file = own.File()
	}
	h.take = func(r int, f *segment.File) error {
		v, err := heap.Of(f)
		if err == nil {
			views[r] = v
		}
		return err
	}
	opened, complete, err := h.run()
	n.Views, n.adopts = views, true
	if err != nil {
		n.closeViews()
		return err
	}
	for _, r := range n.Ranks {
		n.adopts = n.adopts && opened[r]
		if complete[r] || n.noHeaps != "" {
			continue
		}
		n.closeViews()
		n.noHeaps = fmt.Sprintf("rank %d, on this node, cannot share memory", r)
		if refused := cmp.Or(mistake, h.refused); refused != nil {
			n.noHeaps = refused.Error()
		}
	}
	return nil
}

func (n *Node) closeViews() {
	for _, v := range n.Views {
		v.Close()
	}
	n.Views = nil
}

// Opens tells whether a heap may adopt files (heap.Adopt): all other ranks of this node, if there are
// any, share heaps and can open each other's files.
func (n *Node) Opens() bool { return n.noHeaps == "" && (n.adopts || len(n.Ranks) == 1) }

// Adopts tells whether a collective gains by a file that a heap has adopted: Opens, and other ranks map the
// heap.
func (n *Node) Adopts() bool { return n.Opens() && len(n.Views) > 0 }

// Heaps tells whether the ranks of this node can map each other's heaps, and why not.
func (n *Node) Heaps() (shared bool, why string) { return n.noHeaps == "", n.noHeaps }

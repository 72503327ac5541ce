package world

import (
	"fmt"
	"time"

	"github.com/paddlempi/paddlempi/gocore/heap"
	"github.com/paddlempi/paddlempi/gocore/segment"
)

// shareHeaps opens the heaps of the other ranks of this node. It is collective over base. If some
// rank of the node cannot share, no rank of the node has views, and all collectives use MPI.
func (n *Node) shareHeaps() error {
	own, mistake := heap.Own()
	others := n.others()
	mine := []int64{0, 0, 0, 0}
	if own != nil {
		w := own.Address().Words()
		copy(mine, append([]int64{1}, w[:]...))
	}
	addresses, err := n.base.Gather(mine, nil)
	if err != nil {
		return err
	}
	views := map[int]*heap.View{}
	refused := mistake
	for _, r := range others {
		if addresses[r][0] == 0 || own == nil {
			continue
		}
		if v, err := heap.Open(segment.Of([3]int64(addresses[r][1:]))); err == nil {
			views[r] = v
		} else {
			refused = err
		}
	}
	// A rank of this node that lacks a heap gets all of them over sockets, and so do the others: then
	// each knows how many ranks want its own.
	lacks, err := n.base.Gather([]int64{int64(len(others) - len(views)), 0, 0, 0}, nil)
	if err != nil {
		return err
	}
	lacking := int64(0)
	for _, r := range n.ranks {
		lacking += lacks[r][0]
	}
	n.adopts = lacking == 0
	var giver *segment.Giver
	rendezvous := []int64{0, 0, 0, 0}
	if lacking > 0 && own != nil {
		if giver, err = segment.NewGiver(); err == nil {
			defer giver.Close()
			w := giver.Rendezvous().Words()
			copy(rendezvous, append([]int64{1}, w[:]...))
		}
	}
	meetings, err := n.base.Gather(rendezvous, nil)
	if err != nil {
		return err
	}
	if lacking > 0 {
		n.takeHeaps(own, giver, others, addresses, meetings, views)
	}
	ok := []int64{1, 0, 0, 0}
	if own == nil || len(views) != len(others) {
		ok[0] = 0
	}
	all, err := n.base.Gather(ok, nil)
	if err != nil {
		return err
	}
	n.views = views
	for _, r := range n.ranks {
		if all[r][0] == 0 && n.noHeaps == "" {
			n.closeViews()
			n.noHeaps = fmt.Sprintf("rank %d, on this node, cannot share memory", r)
			if refused != nil {
				n.noHeaps = refused.Error()
			}
		}
	}
	return nil
}

// takeHeaps gives this rank's heap to all ranks of the node that want it, and takes theirs.
func (n *Node) takeHeaps(own *heap.Heap, giver *segment.Giver, others []int, addresses, meetings [][]int64, views map[int]*heap.View) {
	deadline := time.Now().Add(takeLimit)
	given := make(chan struct{})
	go func() {
		defer close(given)
		if giver != nil {
			_ = giver.Give(own.File(), len(others), deadline) // a rank that did not get it says so
		}
	}()
	for _, r := range others {
		if meetings[r][0] == 0 {
			continue
		}
		file, err := segment.TakeGrowing(segment.RendezvousOf([3]int64(meetings[r][1:])), segment.Of([3]int64(addresses[r][1:])), deadline)
		if err != nil {
			continue
		}
		if views[r] != nil {
			file.Close()
			continue
		}
		if v, err := heap.Of(file); err == nil {
			views[r] = v
		}
	}
	<-given
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

package group

import (
	"fmt"
	"time"

	"github.com/paddlempi/paddlempi/gocore/heap"
	"github.com/paddlempi/paddlempi/gocore/segment"
)

// shareHeaps opens the heaps of the other ranks of this node. It is collective over base. If some
// rank of the node cannot share, no rank of the node has views, and all collectives use MPI.
func (e *Env) shareHeaps() error {
	own, mistake := heap.Own()
	others := e.others()
	mine := []int64{0, 0, 0, 0}
	if own != nil {
		w := own.Address().Words()
		copy(mine, append([]int64{1}, w[:]...))
	}
	addresses, err := e.base.Gather(mine, nil)
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
	lacks, err := e.base.Gather([]int64{int64(len(others) - len(views)), 0, 0, 0}, nil)
	if err != nil {
		return err
	}
	lacking := int64(0)
	for _, r := range e.peers {
		lacking += lacks[r][0]
	}
	e.adopts = lacking == 0
	var giver *segment.Giver
	rendezvous := []int64{0, 0, 0, 0}
	if lacking > 0 && own != nil {
		if giver, err = segment.NewGiver(); err == nil {
			defer giver.Close()
			w := giver.Rendezvous().Words()
			copy(rendezvous, append([]int64{1}, w[:]...))
		}
	}
	meetings, err := e.base.Gather(rendezvous, nil)
	if err != nil {
		return err
	}
	if lacking > 0 {
		e.takeHeaps(own, giver, others, addresses, meetings, views)
	}
	ok := []int64{1, 0, 0, 0}
	if own == nil || len(views) != len(others) {
		ok[0] = 0
	}
	all, err := e.base.Gather(ok, nil)
	if err != nil {
		return err
	}
	e.views = views
	for _, r := range e.peers {
		if all[r][0] == 0 && e.noHeaps == "" {
			e.closeViews()
			e.noHeaps = fmt.Sprintf("rank %d, on this node, cannot share memory", r)
			if refused != nil {
				e.noHeaps = refused.Error()
			}
		}
	}
	return nil
}

// takeHeaps gives this rank's heap to all ranks of the node that want it, and takes theirs.
func (e *Env) takeHeaps(own *heap.Heap, giver *segment.Giver, others []int, addresses, meetings [][]int64, views map[int]*heap.View) {
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
func (e *Env) others() []int {
	var list []int
	for _, r := range e.peers {
		if r != e.Topo.Rank {
			list = append(list, r)
		}
	}
	return list
}

func (e *Env) closeViews() {
	for r, v := range e.views {
		v.Close()
		delete(e.views, r)
	}
	e.views = nil
}

// Adopts tells whether a heap may adopt files (heap.Adopt): the ranks of this node share heaps, and
// can open each other's files.
func (e *Env) Adopts() bool { return e.noHeaps == "" && e.adopts && len(e.views) > 0 }

// Heaps tells whether the ranks of this node can map each other's heaps, and why not.
func (e *Env) Heaps() (shared bool, why string) { return e.noHeaps == "", e.noHeaps }

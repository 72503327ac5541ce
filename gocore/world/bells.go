package world

import (
	"os"
	"slices"
	"sync"

	"github.com/paddlempi/paddlempi/gocore/arrive"
	"github.com/paddlempi/paddlempi/gocore/segment"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// retired has the doorbells of worlds that have ended. A thread may still ring those while the world ends, so the next world that
// has as many ranks on this node, and this one at the same place among them, uses them again: the process keeps as many as it
// has had such pairs of numbers at a time. What a late ring does to another world, primitives/doorbells.h says.
var retired struct {
	sync.Mutex
	bells []*work.Bells
}

// present makes what shows which ranks of this node have left, and in the same file behind that who has revoked the world, and the doorbells (package work): none
// if this rank is alone there, or some rank of base cannot map those of its node. It is collective over base.
func (n *Node) present() (err error) {
	size, page := len(n.Ranks), int64(os.Getpagesize())
	from := (arrive.ControlSlotsSize(size) + revocationBytes + page - 1) / page * page
	n.Presence, n.way, err = n.makeControlSlots(n.base, n.Ranks, from+work.BellBytes(size), func(file *segment.File) (err error) {
		n.bells, err = openBells(file, from, size, slices.Index(n.Ranks, n.base.Rank()))
		return err
	})
	if n.Presence == nil {
		n.closeBells()
	}
	return err
}

// openBells maps the doorbells of n ranks, which a file has from an offset on, for rank me.
func openBells(file *segment.File, from int64, n, me int) (*work.Bells, error) {
	retired.Lock()
	defer retired.Unlock()
	i := slices.IndexFunc(retired.bells, func(b *work.Bells) bool { return b.Of(n, me) })
	if i < 0 {
		place, err := file.MapTail(from, nil)
		if err != nil {
			return nil, err
		}
		return work.NewBells(place, n, me), nil
	}
	b := retired.bells[i]
	if _, err := file.MapTail(from, b.Memory()); err != nil {
		return nil, err
	}
	retired.bells = slices.Delete(retired.bells, i, i+1)
	return b, nil
}

// closeBells ends the use of the doorbells.
func (n *Node) closeBells() {
	b := n.bells
	if n.bells = nil; b == nil {
		return
	}
	b.Ignore()
	retired.Lock()
	defer retired.Unlock()
	// Should the kernel refuse that, the memory of the ended world stays until the next one is mapped there.
	_ = segment.Vacate(b.Memory(), work.BellBytes(len(n.Ranks)))
	retired.bells = append(retired.bells, b)
}

// Answer makes this process one rank of this world: its waits may sleep until another rank of the node rings, and it rings the
// others. A process is one rank of one world.
func (e *Env) Answer() {
	if e.Node.bells != nil {
		e.Node.bells.Answer(e.Node.crowded)
		e.Engine.UseBells(e.Node.bells)
	}
}

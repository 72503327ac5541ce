package mpi

/*
#include <stdlib.h>
#include "calls.h"
*/
import "C"

import (
	"sync"
	"unsafe"
)

// slots is a pool of Slots in C memory. It keeps what it has allocated, so it grows to the largest
// number of calls that were under way at once.
type slots struct {
	lock sync.Mutex
	free []*Slot
}

const slotsAtOnce = 64

func (l *library) NewSlot() *Slot {
	p := &l.slots
	p.lock.Lock()
	defer p.lock.Unlock()
	if len(p.free) == 0 {
		block := unsafe.Slice((*Slot)(C.calloc(slotsAtOnce, C.sizeof_struct_pmpi_mpi_slot)), slotsAtOnce)
		for i := range block {
			p.free = append(p.free, &block[i])
		}
	}
	s := p.free[len(p.free)-1]
	p.free = p.free[:len(p.free)-1]
	*s = Slot{}
	return s
}

func (l *library) FreeSlot(s *Slot) {
	l.slots.lock.Lock()
	l.slots.free = append(l.slots.free, s)
	l.slots.lock.Unlock()
}

package memory

// #cgo nocallback pq_hold
// #include "quick.h"
import "C"

import (
	"runtime"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/transport"
)

// quick implements transport.Quick.
type quick struct{ group *C.pq_group }

// OpenQuick implements transport.QuickOpener.
func (c *Comm) OpenQuick(g transport.QuickGroup) transport.Quick {
	busy := c.o.showBusy(c.context)
	if busy == nil {
		return nil
	}
	p := C.pq_open(C.int64_t(g.ID), C.int32_t(len(c.members)))
	if p == nil {
		return nil
	}
	for i, member := range c.members {
		unsafe.Slice(p.members, len(c.members))[i] = C.int32_t(member)
	}
	p.rank, p.most_tag, p.crowded = C.int32_t(c.rank), C.int32_t(g.MaxTag), 0
	if g.Crowded {
		p.crowded = 1
	}
	p.endpoint, p.context, p.busy = c.o.shared, C.uint64_t(c.context), (*C.uint32_t)(busy)
	p.trace = C.tr_ring{next: (*C.uint64_t)(g.Next), lost: (*C.uint64_t)(g.Lost), list: (*C.tr_entry)(g.Entries)}
	if g.Counter {
		p.trace.counter = 1
	}
	C.pq_publish(p, C.int64_t(g.ID))
	return quick{p}
}

// showBusy returns the word in which a context shows to C whether it is busy; nil: there is no memory for it.
func (o *endpoint) showBusy(number uint64) *uint32 {
	o.mu.Lock()
	defer o.mu.Unlock()
	in := o.context(number)
	if in.busy == nil {
		block, err := mem.Alloc(int64(unsafe.Sizeof(*in.busy)))
		if err != nil {
			return nil
		}
		in.busy = (*uint32)(block)
		runtime.AddCleanup(in, mem.Free, block)
		in.changed()
	}
	return in.busy
}

// Hold implements transport.Quick.
func (q quick) Hold(by int32) { C.pq_hold(q.group, C.int32_t(by)) }

// Close implements transport.Quick.
func (q quick) Close() { C.pq_close(q.group) }

// SetInitial says which group the number 0 stands for, of those that OpenQuick was given.
func SetInitial(id int64) { C.pq_initial(C.int64_t(id)) }

// StopQuick ends messages without Go in this process.
func StopQuick() { C.pq_stop() }

package memory

// #cgo nocallback pq_hold
// #include "quick.h"
import "C"

import (
	"sync/atomic"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/transport"
)

// quick implements transport.Quick.
type quick struct {
	c     *Comm
	group *C.pq_group
}

// OpenQuick implements transport.QuickOpener.
func (c *Comm) OpenQuick(g transport.QuickGroup) transport.Quick {
	p := C.pq_open(C.int64_t(g.ID), C.int32_t(len(c.members)))
	if p == nil {
		return nil
	}
	for i, member := range c.members {
		unsafe.Slice(p.members, len(c.members))[i] = C.int32_t(member)
	}
	p.rank, p.most_tag, p.crowded = C.int32_t(c.rank), C.int32_t(g.MaxTag), C.bool(g.Crowded)
	p.endpoint, p.context, p.trace = c.o.shared, C.uint64_t(c.context), *(*C.tr_ring)(g.Trace)
	c.o.showBusy(c.context, (*uint32)(&p.busy))
	C.pq_publish(p, C.int64_t(g.ID))
	return quick{c, p}
}

// showBusy says in which word a context shows to C whether it is busy; nil: in none. The one before says from then on that it is.
func (o *endpoint) showBusy(number uint64, word *uint32) {
	o.mu.Lock()
	defer o.mu.Unlock()
	in := o.context(number)
	if in.busy != nil {
		atomic.StoreUint32(in.busy, 1)
	}
	in.busy = word
	in.changed()
}

// Hold implements transport.Quick.
func (q quick) Hold(by int32) { C.pq_hold(q.group, C.int32_t(by)) }

// Close implements transport.Quick.
func (q quick) Close() {
	q.c.o.showBusy(q.c.context, nil)
	C.pq_close(q.group)
}

// SetInitial says which group the number 0 stands for, of those that OpenQuick was given.
func SetInitial(id int64) { C.pq_initial(C.int64_t(id)) }

// StopQuick ends messages without Go in this process.
func StopQuick() { C.pq_stop() }

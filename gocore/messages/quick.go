package messages

// #cgo CFLAGS: -std=gnu11 -O2 -Wall
// #cgo nocallback pq_hold
// #include "quick.h"
import "C"

import (
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/transport"
)

// openQuick lets C carry out short messages of the group by itself, if all members are on this node (quick.h).
func (g *Messages) openQuick() {
	quick, ok := g.comm.(transport.Quick)
	if !ok || g.Size < 2 || g.Env.Topo.Joined {
		return
	}
	of := quick.Quick()
	if of.Endpoint == nil {
		return
	}
	p := C.pq_open(C.int64_t(g.id), C.int32_t(g.Size))
	if p == nil {
		return
	}
	for i, member := range of.Members {
		unsafe.Slice(p.members, g.Size)[i] = C.int32_t(member)
	}
	p.rank, p.most_tag, p.crowded = C.int32_t(g.Rank), C.int32_t(g.Env.Base.MaxTag()), 0
	if g.Env.Node.Crowded() {
		p.crowded = 1
	}
	p.endpoint, p.context, p.busy = (*C.pm_endpoint)(of.Endpoint), C.uint64_t(of.Context), (*C.uint32_t)(of.Busy)
	next, lost, list, counter := g.Env.Recorder.Shared()
	p.trace = C.tr_ring{next: (*C.uint64_t)(next), lost: (*C.uint64_t)(lost), list: (*C.tr_entry)(list)}
	if counter {
		p.trace.counter = 1
	}
	g.quick = p
	C.pq_publish(p, C.int64_t(g.id))
}

// CloseQuick ends what openQuick has begun: the group takes no more calls, or its comm is about to be freed. It does nothing on nil:
// groups that are parts of others have no messages.
func (g *Messages) CloseQuick() {
	if g == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.quick != nil {
		C.pq_close(g.quick)
		g.quick = nil
	}
}

// hold says that by more messages wait for something before they begin: no other one may overtake them. The caller holds mu.
func (g *Messages) hold(by int32) {
	if g.quick != nil {
		C.pq_hold(g.quick, C.int32_t(by))
	}
}

// SetInitial says which group the number 0 stands for.
func SetInitial(id int64) { C.pq_initial(C.int64_t(id)) }

// Stop ends messages without Go in this process.
func Stop() { C.pq_stop() }

package memory

// #cgo CFLAGS: -std=gnu11 -O2 -Wall
// #cgo noescape pm_fits
// #cgo nocallback pm_fits
// #cgo noescape pm_write
// #cgo nocallback pm_write
// #cgo noescape pm_take
// #cgo nocallback pm_take
// #cgo noescape pm_claim
// #cgo nocallback pm_claim
// #cgo noescape pm_stream
// #cgo nocallback pm_stream
// #cgo noescape pm_drain
// #cgo nocallback pm_drain
// #include "rings.h"
import "C"

import (
	"sync/atomic"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/cma"
)

// A ring carries packets from one rank to another one. Payloads of bulkFrom bytes and more lie beside it, in the bulk (bulk.h).
//
// The sender writes head, proof and data, the receiver writes the tails, and both claim. Heads and tails count bytes from the
// beginning of the world. Those of one writer lie on a cache line of their own.
const (
	ringBytes = C.PM_RING // of data; a power of two
	ringHead  = page / 2
	bulkFrom  = C.PM_SHORT
)

// The length of the bulk: as long as the caches of a core want it at most, but a rank has no more than allBulk of it for all
// others.
const (
	mostBulk  = 2 << 20
	leastBulk = 128 << 10
	allBulk   = 16 << 20
)

// Rings and bulks begin in the middle of a page: tensors mostly begin near the beginning of one, and a copy waits where it reads
// what is a little more than a multiple of a page behind what it has just written.
const page = 4 << 10

// ringEnd is one end of a ring.
type ringEnd = C.pm_end

type ring struct {
	*ringEnd
	proof  *cma.Proof     // valid once a packet has come
	claims *atomic.Uint64 // see stream.go
}

// bell counts what was written to one rank, so that it need not look at the rings of all others. In a small world that
// costs more than it saves.
type bell struct {
	count atomic.Uint64
	_     [C.PM_BELL - 8]byte // a pair of cache lines of its own
}

// smallWorld is the most ranks that look at all rings.
var smallWorld = 8

// bellsOf returns the bytes of the bells, which lie before the rings.
func bellsOf(size int) int64 {
	if size <= smallWorld {
		return 0
	}
	return (int64(size)*int64(unsafe.Sizeof(bell{})) + page - 1) &^ (page - 1)
}

// bulkOf returns the length of the bulk of a pair in a world of so many ranks, a power of two.
func bulkOf(size int) int {
	n := mostBulk
	for n > leastBulk && n*size > allBulk {
		n /= 2
	}
	return n
}

// stride returns the distance of two rings.
func stride(size int) int { return page + ringBytes + bulkOf(size) }

// ringAt returns the ring of a sender and a receiver in the memory of a world. end is this process's.
func ringAt(shared []byte, size, from, to int, end *ringEnd) ring {
	at := unsafe.Pointer(&shared[(from*size+to)*stride(size)])
	word := func(offset int) *C.uint64_t { return (*C.uint64_t)(unsafe.Add(at, offset)) }
	*end = ringEnd{
		head:  word(0),
		tail:  word(128),
		data:  (*C.char)(unsafe.Add(at, ringHead)),
		waits: (*C.uint32_t)(unsafe.Add(at, 144+4*C.PM_WAYS)),
		full:  (*C.uint32_t)(unsafe.Add(at, 148+4*C.PM_WAYS)),
		bulk: C.pm_bulk{
			tail:  word(136),
			costs: (*C.uint32_t)(unsafe.Add(at, 144)),
			data:  (*C.char)(unsafe.Add(at, ringHead+ringBytes)),
			bytes: C.uint64_t(bulkOf(size)),
		},
	}
	return ring{ringEnd: end, proof: (*cma.Proof)(unsafe.Add(at, 64)), claims: (*atomic.Uint64)(unsafe.Add(at, 192))}
}

// next reads the head of the next packet, and tells whether one has come. It is unsound if no sender writes such a one.
func (r *ring) next(p *packet) (come, sound bool) {
	there := atomic.LoadUint64((*uint64)(r.head)) - uint64(r.mine)
	if there == 0 {
		return false, true
	}
	*p = *(*packet)(unsafe.Add(unsafe.Pointer(r.data), r.mine%ringBytes))
	return true, there >= align && there <= ringBytes && p.possible() && uint64(inRing(p.payload())) <= there
}

// take copies the beginning of the payload of the next packet, as much as there is room for, and goes behind the packet. The sender
// may use its room then.
func (r *ring) take(p *packet, to []byte) {
	C.pm_take(r.ringEnd, C.uint32_t(p.kind), unsafe.Pointer(unsafe.SliceData(to)), C.uint64_t(len(to)), C.uint64_t(p.payload()))
}

// skip goes behind the next packet.
func (r *ring) skip(p *packet) { r.take(p, nil) }

// claim claims up to most pieces of a message of so many bytes. It returns where they begin and how many bytes they have;
// 0: all are claimed, or the claims are those of another message.
func (r *ring) claim(number uint64, bytes int64, most uint64) (from, n int64) {
	n = int64(C.pm_claim((*C.uint64_t)(unsafe.Pointer(r.claims)), C.uint64_t(number), C.int64_t(bytes), C.uint64_t(most), (*C.int64_t)(&from)))
	return from, n
}

// sendWhole writes a message of up to mostWhole bytes, if there is room, nothing has to go before it, and it need not
// be asked for.
func (out *outbox) sendWhole(p *packet, data unsafe.Pointer, bounded bool) bool {
	return C.pm_send(out.o.shared, C.int32_t(out.to), C.uint64_t(p.context), C.int32_t(p.tag), data, C.uint64_t(p.bytes), C.bool(bounded)) == 0
}

// soughtBy returns how the word waits says what a receive waits for.
func soughtBy(c *context, r *receiving) uint32 {
	return uint32(C.pm_sought(C.uint64_t(c.number), C.int32_t(r.tag)))
}

// put writes a packet, shows it, and rings the bell. There is room for it.
func (out *outbox) put(p *packet, payload []byte) {
	C.pm_write(out.o.shared, C.int32_t(out.to), (*C.pm_packet)(unsafe.Pointer(p)), unsafe.Pointer(unsafe.SliceData(payload)), C.uint64_t(len(payload)))
}

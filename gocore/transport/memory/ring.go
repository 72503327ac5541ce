package memory

// #cgo CFLAGS: -std=gnu11 -O2 -Wall
// #cgo noescape pm_fits
// #cgo nocallback pm_fits
// #cgo noescape pm_write
// #cgo nocallback pm_write
// #cgo noescape pm_payload
// #cgo nocallback pm_payload
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
	at := shared[(from*size+to)*stride(size):][:stride(size)]
	*end = ringEnd{
		head:  (*atomic.Uint64)(unsafe.Pointer(&at[0])),
		tail:  (*atomic.Uint64)(unsafe.Pointer(&at[128])),
		data:  (*[ringBytes]byte)(at[ringHead:]),
		waits: (*uint32)(unsafe.Pointer(&at[144+4*bulkWays])),
		full:  (*uint32)(unsafe.Pointer(&at[148+4*bulkWays])),
		bulk: bulkEnd{
			tail:  (*atomic.Uint64)(unsafe.Pointer(&at[136])),
			costs: (*[bulkWays]uint32)(unsafe.Pointer(&at[144])),
			data:  unsafe.Pointer(&at[ringHead+ringBytes]),
			bytes: uint64(bulkOf(size)),
		},
	}
	return ring{ringEnd: end, proof: (*cma.Proof)(unsafe.Pointer(&at[64])), claims: (*atomic.Uint64)(unsafe.Pointer(&at[192]))}
}

func (r *ring) c() *C.pm_end { return (*C.pm_end)(unsafe.Pointer(r.ringEnd)) }

// fits tells whether the sender may write a packet with a payload of n bytes. The receiver's words are unsound if they cannot be.
func (r *ring) fits(n int) (fits, sound bool) {
	found := C.pm_fits(r.c(), C.uint64_t(n))
	return found == 1, found >= 0
}

// come returns how many bytes the receiver may read; false if the sender's word cannot be.
func (r *ring) come() (n int, sound bool) {
	there := r.head.Load() - r.mine
	if there > ringBytes {
		return 0, false
	}
	return int(there), true
}

// next reads the head of the next packet, which has to be there whole.
func (r *ring) next(p *packet, there int) (sound bool) {
	return there >= align && p.read(r.data[r.mine%ringBytes:]) && inRing(p.payload()) <= there
}

// take copies the beginning of the payload of the next packet, as much as there is room for, and goes behind the packet.
func (r *ring) take(p *packet, to []byte) {
	n := p.payload()
	C.pm_payload(r.c(), 0, 0, C.uint32_t(p.mark), unsafe.Pointer(unsafe.SliceData(to)), C.uint64_t(len(to)), C.uint64_t(n), 0)
	r.pass(n)
}

// skip goes behind the next packet.
func (r *ring) skip(p *packet) { r.pass(p.payload()) }

// pass goes behind a packet with a payload of n bytes.
func (r *ring) pass(n int) {
	r.mine += uint64(inRing(n))
	r.bulk.mine += uint64(C.pm_bulky(C.uint64_t(n)))
}

// free lets the sender have the room of all that was taken.
func (r *ring) free() {
	if r.bulk.tail.Load() != r.bulk.mine {
		r.bulk.tail.Store(r.bulk.mine)
	}
	r.tail.Store(r.mine)
}

// claim claims up to most pieces of a message of so many bytes. It returns where they begin and how many bytes they have;
// 0: all are claimed, or the claims are those of another message.
func (r *ring) claim(number uint64, bytes int64, most uint64) (from, n int64) {
	var at C.int64_t
	n = int64(C.pm_claim((*C.uint64_t)(unsafe.Pointer(r.claims)), C.uint64_t(number), C.int64_t(bytes), C.uint64_t(most), &at))
	return int64(at), n
}

// sendWhole writes a message of up to mostWhole bytes, if there is room, nothing has to go before it, and it need not
// be asked for.
func (out *outbox) sendWhole(p *packet, data unsafe.Pointer, bounded bool) bool {
	limit := C.int(0)
	if bounded {
		limit = 1
	}
	return C.pm_send(out.o.c(), C.int32_t(out.to), C.uint64_t(p.context), C.int32_t(p.tag), data, C.uint64_t(p.bytes), limit) == 0
}

// soughtBy returns how the word waits says what a receive waits for.
func soughtBy(c *context, r *receiving) uint32 {
	return uint32(C.pm_sought(C.uint64_t(c.number), C.int32_t(r.tag)))
}

// put writes a packet, shows it, and rings the bell. There is room for it.
func (out *outbox) put(p *packet, payload []byte) {
	head := C.pm_packet{kind: C.uint32_t(p.kind), tag: C.int32_t(p.tag), context: C.uint64_t(p.context), bytes: C.int64_t(p.bytes),
		number: C.uint64_t(p.number), answer: C.uint64_t(p.answer)}
	C.pm_write(out.o.c(), C.int32_t(out.to), &head, unsafe.Pointer(unsafe.SliceData(payload)), C.uint64_t(len(payload)))
}

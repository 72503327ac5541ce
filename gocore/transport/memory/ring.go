package memory

// #include "rings.h"
import "C"

import (
	"sync/atomic"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/mem"
)

// A ring carries packets from one rank to another one. Payloads of bulkFrom bytes and more lie beside it, in the bulk, which is
// longer than the caches of one core: a line that is written again has left the reader's by then. To write to a line that
// another core still holds takes several times as long (gocore/coll/bounce has measured the same), and short messages need no such
// length.
//
// The sender writes head, proof and data, the receiver writes the tails, and both claim. Heads and tails count bytes from the
// beginning of the world. Those of one writer lie on a cache line of their own.
const (
	ringBytes = C.PM_RING // of data; a power of two
	ringHead  = 256
	bulkFrom  = C.PM_SHORT
)

// The length of the bulk: as long as the caches want it, but a rank has no more than allBulk of it for all others.
const (
	mostBulk  = 2 << 20
	leastBulk = 128 << 10
	allBulk   = 16 << 20
)

type ring struct {
	*ringEnd
	bulkTail  *atomic.Uint64
	readCosts *atomic.Uint64 // see bulk.go
	proof     *proof         // valid once a packet has come
	claims    *atomic.Uint64 // see stream.go
	bulk      []byte
	bulkMine  uint64 // as mine
}

// bell counts what was written to one rank, so that it need not look at the rings of all others. In a small world that
// costs more than it saves.
type bell struct {
	count atomic.Uint64
	_     [128 - 8]byte // a pair of cache lines of its own
}

// smallWorld is the most ranks that look at all rings.
var smallWorld = 8

// bellsOf returns the bytes of the bells, which lie before the rings.
func bellsOf(size int) int64 {
	if size <= smallWorld {
		return 0
	}
	return int64(size) * int64(unsafe.Sizeof(bell{}))
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
func stride(size int) int { return ringHead + ringBytes + bulkOf(size) }

// ringAt returns the ring of a sender and a receiver in the memory of a world.
func ringAt(shared []byte, size, from, to int, end *ringEnd) ring {
	at := shared[(from*size+to)*stride(size):][:stride(size)]
	*end = ringEnd{
		head: (*atomic.Uint64)(unsafe.Pointer(&at[0])),
		tail: (*atomic.Uint64)(unsafe.Pointer(&at[128])),
		data: (*[ringBytes]byte)(at[ringHead:]),
	}
	return ring{
		ringEnd:   end,
		proof:     (*proof)(unsafe.Pointer(&at[64])),
		bulkTail:  (*atomic.Uint64)(unsafe.Pointer(&at[136])),
		readCosts: (*atomic.Uint64)(unsafe.Pointer(&at[144])),
		claims:    (*atomic.Uint64)(unsafe.Pointer(&at[192])),
		bulk:      at[ringHead+ringBytes:],
	}
}

// fits tells whether the sender may write a packet with a payload of n bytes. The receiver's words are unsound if they cannot be.
func (r *ring) fits(n int) (fits, sound bool) {
	used := r.mine - r.tail.Load()
	if used > ringBytes {
		return false, false
	}
	fits = used+uint64(inRing(n)) <= ringBytes
	if n < bulkFrom {
		return fits, true
	}
	used = r.bulkMine - r.bulkTail.Load()
	return fits && used+lines(n) <= uint64(len(r.bulk)), used <= uint64(len(r.bulk))
}

// has tells whether the sender may write such a packet.
func (r *ring) has(n int) bool {
	fits, sound := r.fits(n)
	return sound && fits
}

// come returns how many bytes the receiver may read; false if the sender's word cannot be.
func (r *ring) come() (n int, sound bool) {
	there := r.head.Load() - r.mine
	if there > ringBytes {
		return 0, false
	}
	return int(there), true
}

// put writes a packet and shows it. There is room for it.
func (r *ring) put(p *packet, payload []byte, w *writer) {
	n := len(payload)
	if p.past = false; n >= bulkFrom {
		kind := w.choose()
		p.past = kind == past
		at := int(r.bulkMine % uint64(len(r.bulk)))
		cost := mem.CopyCost(r.bulk[at:], payload, p.past)
		if first := len(r.bulk) - at; first < n {
			mem.CopyCost(r.bulk, payload[first:], p.past)
		}
		w.learn(kind, cost, n, r.readCosts.Load())
	} else if n > 0 {
		at := (int(r.mine%ringBytes) + before(n)) % ringBytes
		if first := copy(r.data[at:], payload); first < n {
			copy(r.data[:], payload[first:])
		}
	}
	p.put(r.data[r.mine%ringBytes:]) // a multiple of align: the head is in one part
	r.pass(n)
	r.head.Store(r.mine)
}

// next reads the head of the next packet, which has to be there whole.
func (r *ring) next(p *packet, there int) (sound bool) {
	return there >= align && p.read(r.data[r.mine%ringBytes:]) && inRing(p.payload()) <= there
}

// take copies the beginning of the payload of the next packet, as much as there is room for, and goes behind the packet. A
// payload that nobody reads soon goes past the caches.
func (r *ring) take(p *packet, to []byte, unread bool, costs *kinds) {
	n := p.payload()
	to = to[:min(len(to), n)]
	if n >= bulkFrom {
		at := int(r.bulkMine % uint64(len(r.bulk)))
		cost := mem.CopyCost(to, r.bulk[at:], unread)
		if first := len(r.bulk) - at; first < len(to) {
			mem.CopyCost(to[first:], r.bulk, unread)
		}
		kind := near
		if p.past {
			kind = past
		}
		if costs.learn(kind, cost); !unread {
			r.readCosts.Store(costs.word())
		}
	} else if len(to) > 0 {
		at := (int(r.mine%ringBytes) + before(n)) % ringBytes
		if first := copy(to, r.data[at:]); first < len(to) {
			copy(to[first:], r.data[:])
		}
	}
	r.pass(n)
}

// skip goes behind the next packet.
func (r *ring) skip(p *packet) { r.pass(p.payload()) }

// pass goes behind a packet with a payload of n bytes.
func (r *ring) pass(n int) {
	r.mine += uint64(inRing(n))
	if n >= bulkFrom {
		r.bulkMine += lines(n)
	}
}

// free lets the sender have the room of all that was taken.
func (r *ring) free() {
	if r.bulkTail.Load() != r.bulkMine {
		r.bulkTail.Store(r.bulkMine)
	}
	r.tail.Store(r.mine)
}

package memory

import (
	"sync/atomic"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/mem"
)

// A ring carries packets from one rank to another one. The sender writes head, proof and data, the
// receiver writes tail, and both claim. Head and tail count bytes from the beginning of the world. Each lies on a cache
// line of its own.
const (
	ringBytes = 128 << 10 // of data; a power of two
	ringHead  = 256
	stride    = ringHead + ringBytes
)

type ring struct {
	head, tail *atomic.Uint64
	proof      *proof         // valid once a packet has come
	claims     *atomic.Uint64 // see stream.go
	data       []byte
	mine       uint64 // what this side has written or read: the other side may damage the shared word
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

// ringAt returns the ring of a sender and a receiver in the memory of a world.
func ringAt(shared []byte, size, from, to int) ring {
	at := shared[(from*size+to)*stride:]
	return ring{
		head:   (*atomic.Uint64)(unsafe.Pointer(&at[0])),
		proof:  (*proof)(unsafe.Pointer(&at[64])),
		tail:   (*atomic.Uint64)(unsafe.Pointer(&at[128])),
		claims: (*atomic.Uint64)(unsafe.Pointer(&at[192])),
		data:   at[ringHead:stride:stride],
	}
}

// room returns how many bytes the sender may write; false if the receiver's word cannot be.
func (r *ring) room() (n int, sound bool) {
	used := r.mine - r.tail.Load()
	if used > ringBytes {
		return 0, false
	}
	return int(ringBytes - used), true
}

// has tells whether the sender may write so many bytes.
func (r *ring) has(n int) bool {
	room, sound := r.room()
	return sound && n <= room
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
func (r *ring) put(p *packet, payload []byte, far *mem.Far) {
	at := int(r.mine % ringBytes) // a multiple of align: the head is in one part
	p.put(r.data[at:])
	if len(payload) > 0 {
		at = (at + before(len(payload))) % ringBytes
		n := min(len(payload), ringBytes-at)
		far.Copy(r.data[at:at+n], payload)
		if n < len(payload) {
			far.Copy(r.data, payload[n:])
		}
	}
	r.mine += uint64(inRing(len(payload)))
	r.head.Store(r.mine)
}

// next reads the head of the next packet, which has to be there whole.
func (r *ring) next(p *packet, there int) (sound bool) {
	at := int(r.mine % ringBytes)
	return there >= align && p.read(r.data[at:]) && inRing(p.payload()) <= there
}

// take copies the beginning of the payload of the next packet, as much as there is room for, and goes behind the packet.
func (r *ring) take(p *packet, to []byte) {
	if to = to[:min(len(to), p.payload())]; len(to) > 0 {
		at := (int(r.mine%ringBytes) + before(p.payload())) % ringBytes
		if n := copy(to, r.data[at:]); n < len(to) {
			copy(to[n:], r.data)
		}
	}
	r.mine += uint64(inRing(p.payload()))
}

// free lets the sender have the room of all that was taken.
func (r *ring) free() { r.tail.Store(r.mine) }

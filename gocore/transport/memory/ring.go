package memory

import (
	"sync/atomic"
	"unsafe"
)

// A ring carries bytes from one rank to another one. The sender writes head, proof and data, the
// receiver writes tail. Head and tail count bytes from the beginning of the world, and lie on cache
// lines of their own.
const (
	ringBytes = 64 << 10 // of data; a power of two
	ringHead  = 256
	stride    = ringHead + ringBytes
)

type ring struct {
	head, tail *atomic.Uint64
	proof      *proof // valid once a packet has come
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
		head:  (*atomic.Uint64)(unsafe.Pointer(&at[0])),
		proof: (*proof)(unsafe.Pointer(&at[64])),
		tail:  (*atomic.Uint64)(unsafe.Pointer(&at[128])),
		data:  at[ringHead:stride:stride],
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

// come returns how many bytes the receiver may read; false if the sender's word cannot be.
func (r *ring) come() (n int, sound bool) {
	there := r.head.Load() - r.mine
	if there > ringBytes {
		return 0, false
	}
	return int(there), true
}

// put writes bytes behind those that were written, without showing them.
func (r *ring) put(b []byte) {
	at := int(r.mine % ringBytes)
	if n := copy(r.data[at:], b); n < len(b) {
		copy(r.data, b[n:])
	}
	r.mine += uint64(len(b))
}

// show shows the receiver all that was put.
func (r *ring) show() { r.head.Store(r.mine) }

// take copies the next bytes out of the ring. Nil skips them.
func (r *ring) take(b []byte, n int) {
	if b != nil {
		at := int(r.mine % ringBytes)
		if m := copy(b[:n], r.data[at:]); m < n {
			copy(b[m:n], r.data)
		}
	}
	r.mine += uint64(n)
}

// free lets the sender have the room of all that was taken.
func (r *ring) free() { r.tail.Store(r.mine) }

package link

import (
	"math"
	"sync/atomic"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/heap"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// What a trainer and a server of its node share lies in the trainer's heap: a door for each server,
// which Open makes, and behind it a ring, which the first request makes. Both sides can write
// everything, and so can every other rank of the node. So each side keeps what it needs to know in
// memory of its own, reads a word once, and checks what it has read.
//
// The trainer fills a slot and then enters it into the order of requests. It rings the bell, on
// which the server's thread sleeps. The server fills in its line of the slot, stores the number of
// the request there last, and counts the answers, on which the trainer's threads sleep. From then
// on the server does not touch the slot and the regions any more.

// door is two cache lines.
type door struct {
	// The trainer writes these.
	bell       uint32 // counts requests
	closed     uint32 // 1: the trainer sends no more
	offset     int64  // of the ring, in the trainer's heap
	generation uint64 // of its segment, stored last; 0: there is no ring yet
	_          [40]byte
	// The server writes these.
	answers uint32 // counts answers; the trainer counts too when it closes
	verdict uint32 // why the server takes no more requests
	left    uint32 // 1: it does not touch the door and the ring any more
	_       [52]byte
}

// The values of door.verdict.
const (
	verdictNone uint32 = iota
	verdictClosed
	verdictDamaged
)

// place is a region in the trainer's heap.
type place struct {
	offset     int64
	generation uint64
	bytes      int64 // 0: there is no region
}

// slot is one request and its answer, in three cache lines.
type slot struct {
	// The trainer writes these.
	header  uint64 // bytes
	regions [regions]place
	_       [48]byte
	// The server writes these.
	answered uint32 // the low half of the number of the request that it has answered last
	answer   uint32 // bytes of the answer's header
	failed   uint32 // 1: that is an error
	_        [52]byte
}

// The regions of a request, in the order in which they lie in all messages.
const (
	regionIDs = iota
	regionValues
	regionAnswer
	regions
)

// ring holds the requests of a trainer to one server that are under way.
type ring struct {
	order    [Credits]uint64 // request n is in slot order[n%Credits] & 255, and the rest of the word is n
	slots    [Credits]slot
	requests [Credits][MaxHeader]byte
	answers  [Credits][MaxHeader]byte
}

const (
	slotBits  = 8
	doorBytes = int64(unsafe.Sizeof(door{}))
	ringBytes = int64(unsafe.Sizeof(ring{}))
	lineBytes = 64
)

// Both processes run the same code, but the layout is meant to be these cache lines.
const (
	_ = -(unsafe.Sizeof(door{}) - 2*lineBytes)
	_ = -(unsafe.Offsetof(door{}.answers) - lineBytes)
	_ = -(unsafe.Sizeof(slot{}) - 3*lineBytes)
	_ = -(unsafe.Offsetof(slot{}.answered) - 2*lineBytes)
	_ = -(unsafe.Offsetof(ring{}.slots) % lineBytes)
)

// enter makes request number n visible, which is in slot s.
func (r *ring) enter(n uint64, s int) {
	atomic.StoreUint64(&r.order[n%Credits], n<<slotBits|uint64(s))
}

// entered returns the slot of request number n. ok is false if it is not there yet.
func (r *ring) entered(n uint64) (s int, ok bool, err error) {
	word := atomic.LoadUint64(&r.order[n%Credits])
	switch number := word >> slotBits; {
	case number == n:
		if s = int(word & (1<<slotBits - 1)); s >= Credits {
			return 0, false, rubbish("slot %d of %d", s, Credits)
		}
		return s, true, nil
	case word == 0 && n <= Credits, number == n-Credits && n > Credits:
		return 0, false, nil
	default:
		return 0, false, rubbish("request number %d while %d is next", number, n)
	}
}

// load copies the trainer's part of a slot, and checks all that needs no heap.
func (s *slot) load() (header int, places [regions]place, err error) {
	n := atomic.LoadUint64(&s.header)
	if n > MaxHeader {
		return 0, places, rubbish("a header of %d bytes", n)
	}
	for i := range places {
		p := &s.regions[i]
		places[i] = place{atomic.LoadInt64(&p.offset), atomic.LoadUint64(&p.generation), atomic.LoadInt64(&p.bytes)}
	}
	return int(n), places, checkSizes(places[regionIDs].bytes, places[regionValues].bytes, places[regionAnswer].bytes)
}

// store fills in the trainer's part of a slot.
func (s *slot) store(header int, places [regions]place) {
	for i, p := range places {
		to := &s.regions[i]
		atomic.StoreInt64(&to.offset, p.offset)
		atomic.StoreUint64(&to.generation, p.generation)
		atomic.StoreInt64(&to.bytes, p.bytes)
	}
	atomic.StoreUint64(&s.header, uint64(header))
}

// checkSizes checks the lengths of regions that another process has told.
func checkSizes(ids, values, answer int64) error {
	for _, n := range [...]int64{ids, values, answer} {
		if n < 0 || n > MaxRegion {
			return rubbish("a region of %d bytes", n)
		}
	}
	if ids%8 != 0 {
		return rubbish("ids of %d bytes", ids)
	}
	return nil
}

// acquire maps a region, and checks that it is aligned.
func acquire(v *heap.View, p place, align uintptr) (heap.Ref, error) {
	if p.bytes == 0 {
		return heap.Ref{}, nil
	}
	h, err := v.Acquire(heap.Location{Offset: p.offset, Generation: p.generation}, p.bytes)
	if err == nil && uintptr(h.Data())%align != 0 {
		h.Release()
		return heap.Ref{}, rubbish("memory at %d, which is not aligned to %d", p.offset, align)
	}
	return h, err
}

// bytesOf returns n bytes at p.
func bytesOf(p unsafe.Pointer, n int64) []byte {
	if n == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(p), n)
}

// idsOf returns the ids in n bytes at p.
func idsOf(p unsafe.Pointer, n int64) []int64 {
	if n == 0 {
		return nil
	}
	return unsafe.Slice((*int64)(p), n/8)
}

// rubbish is the error that another process has written what it never writes.
func rubbish(format string, args ...any) *status.Error {
	return status.New(status.GroupBroken, format, args...)
}

const _ = uint(math.MaxUint8 - Credits) // a slot fits into slotBits

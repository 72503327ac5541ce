package memory

// #cgo CFLAGS: -std=gnu11 -O2 -Wall
// #include "rings.h"
import "C"

import (
	"runtime"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// What an endpoint shares with C code of this process, which sends and receives short messages by itself (rings.h). It lies
// outside the Go heap.

// ringEnd is one end of a ring.
type ringEnd struct {
	head, tail *atomic.Uint64
	data       *[ringBytes]byte
	mine       uint64  // what this side has written or read: the other side may damage the shared words
	waits      *uint32 // which long message the receiver waits for; pm_sought
	full       *uint32 // not 0: the receiver wants no message of the application; see bounds
	bulk       bulkEnd
}

const bulkWays = C.PM_WAYS

// bulkEnd is one end of a bulk. What it does not name is C's.
type bulkEnd struct {
	tail        *atomic.Uint64
	costs       *[bulkWays]uint32
	data        unsafe.Pointer
	bytes, mine uint64
	_           [unsafe.Sizeof(C.pm_bulk{}) - 40]byte
}

// pair is what goes to a rank and comes from it.
type pair struct {
	out, in ringEnd
	queued  uint32 // packets to it wait for room, or until its receiver keeps less
	broken  uint32
}

// shared is the beginning of what an endpoint shares. The pairs follow, by rank.
type shared struct {
	lock  uint32
	moves uint32 // see showMoves
	bells unsafe.Pointer
}

// share makes what an endpoint shares. It is freed with the endpoint.
func (o *endpoint) share() error {
	bytes := unsafe.Sizeof(shared{}) + uintptr(o.size)*unsafe.Sizeof(pair{})
	block, err := mem.Alloc(int64(bytes))
	if err != nil {
		return err
	}
	clear(unsafe.Slice((*byte)(block), bytes))
	runtime.AddCleanup(o, mem.Free, block)
	o.shared = (*shared)(block)
	if o.bells != nil {
		o.shared.bells = unsafe.Pointer(unsafe.SliceData(o.bells))
	}
	o.pairs = unsafe.Slice((*pair)(unsafe.Add(block, unsafe.Sizeof(shared{}))), o.size)
	o.mu.word = &o.shared.lock
	return nil
}

// mutex is a lock that C code of this process holds for moments, and never waits for. Goroutines wait for each other as
// for any mutex.
type mutex struct {
	among sync.Mutex
	word  *uint32
}

// yieldEvery is after how many looks a goroutine yields its core: a thread may have lost its own while it held the lock.
const yieldEvery = 64

func (m *mutex) Lock() {
	m.among.Lock()
	for looks := int64(1); !atomic.CompareAndSwapUint32(m.word, 0, 1); looks++ {
		work.SpinYield(looks, yieldEvery)
	}
}

func (m *mutex) TryLock() bool {
	if !m.among.TryLock() {
		return false
	}
	if atomic.CompareAndSwapUint32(m.word, 0, 1) {
		return true
	}
	m.among.Unlock()
	return false
}

func (m *mutex) Unlock() {
	atomic.StoreUint32(m.word, 0)
	m.among.Unlock()
}

func (o *endpoint) c() *C.pm_endpoint { return (*C.pm_endpoint)(unsafe.Pointer(o.shared)) }

// showMoves shows to C whether messages are under way that only calls of Go take further. Then C does not wait for long.
func (o *endpoint) showMoves(queued bool) {
	moves := uint32(0)
	if queued || o.longs+o.streams+len(o.asked) > 0 {
		moves = 1
	}
	if o.shared.moves != moves {
		atomic.StoreUint32(&o.shared.moves, moves)
	}
}

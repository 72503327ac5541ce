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

// What an endpoint shares with C code of this process, which sends and receives short messages by itself (rings.h), lies outside the
// Go heap.

// share makes what an endpoint shares. It is freed with the endpoint.
func (o *endpoint) share() error {
	bytes := unsafe.Sizeof(C.pm_endpoint{}) + uintptr(o.size)*unsafe.Sizeof(C.pm_pair{})
	block, err := mem.Alloc(int64(bytes))
	if err != nil {
		return err
	}
	clear(unsafe.Slice((*byte)(block), bytes))
	runtime.AddCleanup(o, mem.Free, block)
	o.shared = (*C.pm_endpoint)(block)
	o.shared.rank = C.int32_t(o.rank)
	o.shared.bells = (*C.char)(unsafe.Pointer(unsafe.SliceData(o.bells)))
	o.pairs = unsafe.Slice((*C.pm_pair)(unsafe.Add(block, unsafe.Sizeof(C.pm_endpoint{}))), o.size)
	o.mu.word = (*uint32)(&o.shared.lock)
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

// showMoves shows to C whether messages are under way that only calls of Go take further. Then C does not wait for long.
func (o *endpoint) showMoves(queued bool) {
	moves := uint32(0)
	if queued || o.longs+o.streams+len(o.asked) > 0 {
		moves = 1
	}
	if uint32(o.shared.moves) != moves {
		atomic.StoreUint32((*uint32)(&o.shared.moves), moves)
	}
}

// Package mem has the memory that the core itself uses: blocks outside the Go heap, pinned blocks,
// and copies between strided tensors and contiguous memory.
package mem

// #cgo noescape pmpi_copy
// #cgo nocallback pmpi_copy
// #cgo nocallback pmpi_block_new
// #cgo nocallback pmpi_block_free
// #include "alloc.h"
import "C"

import (
	"math/bits"
	"sync"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/status"
)

// CacheLimit bounds the bytes of freed blocks that are kept for the next Alloc.
const CacheLimit = 256 << 20

// Alignment is the alignment of every block in bytes: a cache line.
const Alignment = 64

// header is in front of every block. next is a number, not a pointer: the garbage collector reads a
// pointer before it is overwritten, and malloc leaves arbitrary bytes there.
//
// Invariant: state is inUse from Alloc to Free, and cached while the block is in a free list.
type header struct {
	size  int64   // of the block after the header
	next  uintptr // address of the next header in the free list; 0 ends it
	class int32
	state uint32
	_     [Alignment - 24]byte
}

const (
	inUse  uint32 = 0x51a61e5a
	cached uint32 = 0xcac4ed00
)

// pool keeps freed blocks by size class.
//
// Invariant: bytes is the sum of the sizes in the lists, and at most CacheLimit.
var pool struct {
	sync.Mutex
	bytes int64
	clock uint64
	free  [classes]struct {
		head uintptr
		used uint64 // pool.clock when a block was last taken or put back
	}
}

// There are four size classes to each power of two, so at most a fifth of a block is unused. The
// smallest class is 256 bytes.
const (
	smallest = 256
	classes  = 4 * 56
)

// classOf returns the smallest class that holds n bytes, and its size.
func classOf(n int64) (int32, int64) {
	if n <= smallest {
		return 0, smallest
	}
	e := bits.Len64(uint64(n-1)) - 1 // 2^e < n <= 2^(e+1), e >= 8
	step := int64(1) << (e - 2)
	quarter := (n - 1 - int64(1)<<e) / step // 0 to 3
	return int32(4*(e-8) + int(quarter) + 1), int64(1)<<e + (quarter+1)*step
}

// Alloc returns n bytes outside the Go heap, 64-byte aligned and not cleared. Without an error the
// result is not nil. Alloc uses a freed block of the size class if there is one, so repeated
// collectives neither allocate nor fault pages in. Free gives the block back.
func Alloc(n int64) (unsafe.Pointer, error) {
	if n < 0 || n > 1<<60 {
		return nil, status.New(status.Argument, "cannot allocate %d bytes of host memory", n)
	}
	class, size := classOf(n)
	if block := take(class); block != nil {
		return unsafe.Add(block, Alignment), nil
	}
	p := C.pmpi_block_new(C.size_t(size + Alignment))
	if p == nil {
		Trim()
		if p = C.pmpi_block_new(C.size_t(size + Alignment)); p == nil {
			return nil, status.New(status.NoMemory, "cannot allocate %d bytes of host memory for staging: free memory, or use contiguous tensors or smaller ones", n)
		}
	}
	*(*header)(p) = header{size: size, class: class, state: inUse}
	return unsafe.Add(p, Alignment), nil
}

// Free gives back a block of Alloc. It ignores nil. It panics if the block is not in use, where
// that can be seen: the block was freed already, or Alloc has not returned it.
func Free(p unsafe.Pointer) {
	if p == nil {
		return
	}
	block := unsafe.Add(p, -Alignment)
	h := (*header)(block)
	pool.Lock()
	if h.state != inUse {
		pool.Unlock()
		panic("mem: Free of a block that is not in use")
	}
	if h.size > CacheLimit {
		h.state = 0
		pool.Unlock()
		C.pmpi_block_free(block)
		return
	}
	pool.clock++
	c := &pool.free[h.class]
	c.used = pool.clock
	h.state, h.next = cached, c.head
	c.head = uintptr(block)
	pool.bytes += h.size
	drop := trim(CacheLimit)
	pool.Unlock()
	release(drop)
}

// Trim gives all cached blocks back to the C library.
func Trim() {
	pool.Lock()
	drop := trim(0)
	pool.Unlock()
	release(drop)
}

// Cached returns the bytes of the freed blocks that are kept.
func Cached() int64 {
	pool.Lock()
	defer pool.Unlock()
	return pool.bytes
}

// take returns a cached block of class, or nil.
func take(class int32) unsafe.Pointer {
	pool.Lock()
	defer pool.Unlock()
	pool.clock++
	c := &pool.free[class]
	c.used = pool.clock
	if c.head == 0 {
		return nil
	}
	block := pointer(c.head)
	h := (*header)(block)
	c.head, h.next = h.next, 0
	h.state = inUse
	pool.bytes -= h.size
	return block
}

// trim takes blocks out of the free lists until at most limit bytes are left, and returns them as a
// list. It begins with the class that was not used for longest. The caller holds the lock.
func trim(limit int64) uintptr {
	var drop uintptr
	for pool.bytes > limit {
		oldest := -1
		for i := range pool.free {
			if pool.free[i].head != 0 && (oldest < 0 || pool.free[i].used < pool.free[oldest].used) {
				oldest = i
			}
		}
		c := &pool.free[oldest]
		block := c.head
		h := (*header)(pointer(block))
		c.head = h.next
		pool.bytes -= h.size
		h.state, h.next = 0, drop
		drop = block
	}
	return drop
}

func release(list uintptr) {
	for list != 0 {
		block := pointer(list)
		list = (*header)(block).next
		C.pmpi_block_free(block)
	}
}

// pointer turns an address into a pointer. The address is in C memory, which never moves.
func pointer(address uintptr) unsafe.Pointer {
	return *(*unsafe.Pointer)(unsafe.Pointer(&address))
}

// Copy copies n bytes from src to dst. The two may overlap.
func Copy(dst, src unsafe.Pointer, n int64) {
	if n <= 0 || dst == src {
		return
	}
	// A small copy takes less time than a call of C. A large copy goes to C, where it does not hold
	// up the garbage collector.
	if n <= 64<<10 {
		copy(unsafe.Slice((*byte)(dst), n), unsafe.Slice((*byte)(src), n))
		return
	}
	C.pmpi_copy(dst, src, C.size_t(n))
}

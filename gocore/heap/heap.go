// Package heap is memory of this process that the other ranks of its node can map.
//
// A heap is one memory file. It grows in segments, which the owner maps one by one, and which a
// peer maps when it first meets an address in them (View). Allocation is local: it never waits for
// another rank, because a garbage collector may free at any time. Freed memory stays reserved, with its
// pages, for the next allocation. Of the empty segments, the heap keeps the longest and gives the others back.
//
// The file begins with a directory, which its owner writes and its peers read: offset, length and
// generation of every segment. A generation is never used again, so a peer can tell a segment from
// an earlier one at the same offset.
//
// Memory is reserved (fallocate(2)) before anybody touches it, and the file never shrinks
// (F_SEAL_SHRINK), so that no access ends in SIGBUS. In a forked child all segments are private
// copies: what the child writes, its parent and the peers do not see (fork.c).
package heap

import (
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/segment"
	"github.com/paddlempi/paddlempi/gocore/status"
)

const (
	// granule is the alignment of every allocation, in bytes: a cache line.
	granule = 64
	// SegmentSize is the least length of a segment, in bytes, but for AllocShort.
	SegmentSize = 64 << 20
	// hugePage is the size of a huge page. The length of every segment is a multiple of it.
	hugePage = 2 << 20

	directorySize = 64 << 10
	// A directory entry has the offset in the heap's file, the length, the generation, and 0. If the
	// segment is adopted, it has the inode of its file, the length, the generation, and 1 more than
	// the file's descriptor.
	entryWords  = 4
	maxSegments = directorySize/(8*entryWords) - 1
	lockEntry   = maxSegments // the last entry: word 0 is 1 if the owner holds the lock (lock.go)
)

// Location is where memory is in a heap. Ranks tell each other of it.
type Location struct {
	Offset     int64 // in the file, in bytes
	Generation uint64
}

// Heap is the memory of this process. Its methods are safe for concurrent use.
type Heap struct {
	file  *segment.File
	words []uint64 // the directory

	mu         sync.Mutex
	slots      []*block // by directory entry; nil: the entry is free. Invariant: the last one is not nil
	end        int64    // of the file
	generation uint64

	regions atomic.Pointer[[]region] // for Find, which takes no lock
}

// block is a segment.
type block struct {
	slot       int
	offset     int64
	mem        []byte
	generation uint64
	free       spans           // offsets in the segment
	used       map[int64]int64 // length of every allocation, by its offset in the segment
	file       *segment.File   // of an adopted segment, whose free and used are empty; else nil
}

// region is a copy of the fields of a segment that Find reads without a lock.
type region struct {
	from, to   uintptr
	offset     int64
	generation uint64
}

var (
	making    sync.Mutex
	ofProcess atomic.Pointer[Heap]
)

// OfProcess returns the heap of this process. The first call makes it. It stays until the process ends.
func OfProcess() (*Heap, error) {
	making.Lock()
	defer making.Unlock()
	if h := ofProcess.Load(); h != nil {
		return h, nil
	}
	h, err := New()
	if err != nil {
		return nil, err
	}
	if lock(h.file) {
		atomic.StoreUint64(&h.entry(lockEntry)[0], 1)
	}
	ofProcess.Store(h)
	return h, nil
}

// IfMade returns the heap of this process, nil if there is none.
func IfMade() *Heap { return ofProcess.Load() }

// New makes an empty heap.
func New() (*Heap, error) {
	var file *segment.File
	err := claim(directorySize, directorySize, func() (err error) {
		file, err = segment.NewGrowing("paddlempi-heap", directorySize)
		return err
	})
	if err != nil {
		return nil, err
	}
	mem, err := file.Map()
	if err != nil {
		file.Close()
		return nil, err
	}
	words := unsafe.Slice((*uint64)(unsafe.Pointer(&mem[0])), directorySize/8)
	h := &Heap{file: file, words: words, end: hugePage}
	h.regions.Store(&[]region{})
	return h, nil
}

// Address returns the address by which other processes of the node open the heap.
func (h *Heap) Address() segment.Address { return h.file.Address() }

// File returns the file of the heap. The caller must not close it.
func (h *Heap) File() *segment.File { return h.file }

// Alloc takes n bytes, aligned to a cache line. They are not zeroed. The error says what limit stands
// in the way.
func (h *Heap) Alloc(n int64) (unsafe.Pointer, error) { return h.alloc(n, SegmentSize) }

// AllocShort is Alloc for what few programs add to: if no segment has room, the new one is no longer than it has to be.
func (h *Heap) AllocShort(n int64) (unsafe.Pointer, error) { return h.alloc(n, hugePage) }

// alloc takes n bytes, from a new segment of `least` bytes or more if no segment has room.
func (h *Heap) alloc(n, least int64) (unsafe.Pointer, error) {
	if n < 0 {
		return nil, status.New(status.Argument, "a heap cannot give %d bytes", n)
	}
	n = (max(1, n) + granule - 1) &^ (granule - 1)
	h.mu.Lock()
	defer h.mu.Unlock()
	best := h.fitting(n)
	if best == nil {
		var err error
		if best, err = h.grow(n, least); err != nil {
			return nil, err
		}
	}
	from, _ := best.free.take(n)
	best.used[from] = n
	return unsafe.Pointer(&best.mem[from]), nil
}

// fitting returns a segment that has a free range of n bytes, nil if there is none. Among several it takes the one
// whose longest free range is the shortest.
func (h *Heap) fitting(n int64) (best *block) {
	var least int64
	for _, b := range h.slots {
		if b == nil {
			continue
		}
		if most := b.free.largest(); most >= n && (best == nil || most < least) {
			best, least = b, most
		}
	}
	return best
}

// grow adds a segment with room for n bytes, and of `least` bytes or more.
func (h *Heap) grow(n, least int64) (*block, error) {
	slot := h.freeSlot()
	size := max(least, (n+hugePage-1)&^(hugePage-1))
	switch {
	case slot < 0:
		return nil, errFull
	case size < n:
		return nil, status.New(status.NoMemory, "%d bytes are more than a heap can give", n)
	}
	offset := h.end
	if gap, ok := h.gap(size); ok {
		offset = gap
	}
	end := max(h.end, offset+size)
	if err := claim(size, end, func() error { return h.file.Reserve(offset, size) }); err != nil {
		return nil, err
	}
	mem, err := mapRange(h.file, offset, size)
	if err != nil {
		h.file.Release(offset, size)
		return nil, err
	}
	h.end = end
	b := &block{slot: slot, offset: offset, mem: mem, free: spans{{0, size}}, used: map[int64]int64{}}
	h.enter(b)
	return b, nil
}

// gap returns the offset of size bytes of the file that belong to no segment. ok is false if there
// are none.
func (h *Heap) gap(size int64) (offset int64, ok bool) {
	free := spans{{hugePage, h.end}}
	if h.end == hugePage {
		return 0, false
	}
	for _, b := range h.slots {
		if b == nil || b.file != nil {
			continue
		}
		for i, s := range free {
			if s.from <= b.offset && b.offset < s.to {
				rest := span{b.offset + int64(len(b.mem)), s.to}
				free = append(free[:i], free[i+1:]...)
				if s.from < b.offset {
					free.give(span{s.from, b.offset})
				}
				if rest.size() > 0 {
					free.give(rest)
				}
				break
			}
		}
	}
	return free.take(size)
}

func (h *Heap) entry(slot int) []uint64 { return h.words[slot*entryWords : (slot+1)*entryWords] }

// enter makes b a segment: Find knows it from now on, and the peers can map it. The caller holds mu.
func (h *Heap) enter(b *block) {
	h.generation++
	b.generation = h.generation
	if b.slot == len(h.slots) {
		h.slots = append(h.slots, nil)
	}
	h.slots[b.slot] = b
	entry, where, fd := h.entry(b.slot), uint64(b.offset), 0
	if b.file != nil {
		where, fd = b.file.Inode(), b.file.FD()+1
	}
	atomic.StoreUint64(&entry[0], where)
	atomic.StoreUint64(&entry[1], uint64(len(b.mem)))
	atomic.StoreUint64(&entry[3], uint64(fd))
	atomic.StoreUint64(&entry[2], b.generation) // last: a peer that sees it sees the others
	h.publish()
}

// leave takes b out of the heap. The caller holds mu.
func (h *Heap) leave(b *block) {
	atomic.StoreUint64(&h.entry(b.slot)[2], 0)
	h.slots[b.slot] = nil
	for n := len(h.slots); n > 0 && h.slots[n-1] == nil; n-- {
		h.slots = h.slots[:n-1]
	}
	h.publish()
}

// freeSlot returns a free entry of the directory, -1 if there is none. The caller holds mu.
func (h *Heap) freeSlot() int {
	for i, b := range h.slots {
		if b == nil {
			return i
		}
	}
	if len(h.slots) < maxSegments {
		return len(h.slots)
	}
	return -1
}

var errFull = status.New(status.NoMemory, "the heap has %d segments, which is the most", maxSegments)

// publish makes the list that Find reads.
func (h *Heap) publish() {
	var list []region
	for _, b := range h.slots {
		if b != nil {
			from := uintptr(unsafe.Pointer(&b.mem[0]))
			list = append(list, region{from, from + uintptr(len(b.mem)), b.offset, b.generation})
		}
	}
	h.regions.Store(&list)
}

// Free gives back what Alloc returned. It returns an error if p is not the beginning of an allocation.
func (h *Heap) Free(p unsafe.Pointer) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, b := range h.slots {
		if b == nil || b.file != nil {
			continue
		}
		from := int64(uintptr(p)) - int64(uintptr(unsafe.Pointer(&b.mem[0])))
		n, ok := b.used[from]
		if !ok {
			continue
		}
		delete(b.used, from)
		b.free.give(span{from, from + n})
		h.trim()
		return nil
	}
	return status.New(status.Argument, "%#x is not the beginning of memory that this heap gave", uintptr(p))
}

// trim gives back all empty segments except the longest one, which keeps its pages for the next allocation.
func (h *Heap) trim() {
	var kept *block
	for _, b := range h.slots {
		if b == nil || b.file != nil || len(b.used) > 0 {
			continue
		}
		if kept == nil {
			kept = b
			continue
		}
		drop := b
		if len(b.mem) > len(kept.mem) {
			kept, drop = b, kept
		}
		h.drop(drop)
	}
}

// drop gives a segment back. A peer that still maps the segment reads zeros in it.
func (h *Heap) drop(b *block) {
	h.leave(b)
	unmap(b.mem)
	h.file.Release(b.offset, int64(len(b.mem)))
}

// Find tells whether n bytes at p are in the heap, and where. It takes no lock.
func (h *Heap) Find(p unsafe.Pointer, n int64) (Location, bool) {
	from := uintptr(p)
	for _, r := range *h.regions.Load() {
		if from >= r.from && from < r.to && n <= int64(r.to-from) {
			return Location{r.offset + int64(from-r.from), r.generation}, true
		}
	}
	return Location{}, false
}

// Sizes returns how many bytes the heap has reserved, how many of them are allocated, and how many
// bytes adopted segments have.
func (h *Heap) Sizes() (reserved, used, adopted int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, b := range h.slots {
		if b == nil {
			continue
		}
		if b.file != nil {
			adopted += int64(len(b.mem))
			continue
		}
		reserved += int64(len(b.mem))
		for _, n := range b.used {
			used += n
		}
	}
	return reserved, used, adopted
}

package heap

import (
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/segment"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// View is the heap of another process of the node, seen from here. Its methods are safe for
// concurrent use.
type View struct {
	file  *segment.File
	words []uint64 // the directory
	head  []byte

	mu     sync.Mutex
	mapped map[int64]mapping // by the offset of a segment
	latest atomic.Pointer[latest]

	looked atomic.Int64 // when Dead last looked, in nanoseconds
	dead   atomic.Bool
}

// latest is the segment that At met last.
type latest struct {
	mapping
	offset int64
}

// lookEvery is the time between two looks of Dead.
const lookEvery = 50 * time.Millisecond

// Dead tells whether the owner's process has ended, as it was at most 50 ms ago. A zombie is dead. The
// answer is false if it cannot be found out.
func (v *View) Dead() bool {
	last, now := v.looked.Load(), time.Now().UnixNano()
	if v.dead.Load() || now-last < int64(lookEvery) || !v.looked.CompareAndSwap(last, now) {
		return v.dead.Load()
	}
	return v.DeadNow()
}

// DeadNow is Dead as of now. It makes a system call.
func (v *View) DeadNow() bool {
	// A process sees no lock of its own.
	if owner := atomic.LoadUint64(&v.words[heldEntry*entryWords]); owner != 0 && owner != process && !v.file.Held() {
		v.dead.Store(true)
	}
	return v.dead.Load()
}

type mapping struct {
	mem        []byte
	generation uint64
}

// Open opens the heap at an address.
func Open(a segment.Address) (*View, error) {
	file, err := segment.OpenGrowing(a)
	if err != nil {
		return nil, err
	}
	return Of(file)
}

// Of makes a view of a heap's file, however this process came by it. The file is the view's.
func Of(file *segment.File) (*View, error) {
	head, err := file.MapRange(0, directorySize)
	if err != nil {
		file.Close()
		return nil, err
	}
	words := unsafe.Slice((*uint64)(unsafe.Pointer(&head[0])), directorySize/8)
	return &View{file: file, words: words, head: head, mapped: map[int64]mapping{}}, nil
}

// At returns where n bytes of the other's heap are in this process. It maps their segment at first. The
// error says if there is no such memory any more, or none of that length: what l says comes from
// another process.
func (v *View) At(l Location, n int64) (unsafe.Pointer, error) {
	if m := v.latest.Load(); m != nil && m.generation == l.Generation {
		return v.within(m.mapping, m.offset, l, n)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	for offset, m := range v.mapped {
		if m.generation == l.Generation {
			v.latest.Store(&latest{m, offset})
			return v.within(m, offset, l, n)
		}
	}
	v.trim()
	offset, size, ok := v.entry(l.Generation)
	if !ok {
		return nil, status.New(status.Argument, "the other rank's heap has no segment of generation %d: its memory was freed", l.Generation)
	}
	v.drop(offset, size)
	mem, err := mapRange(v.file, offset, size)
	if err != nil {
		return nil, err
	}
	m := mapping{mem, l.Generation}
	v.mapped[offset] = m
	return v.within(m, offset, l, n)
}

func (v *View) within(m mapping, offset int64, l Location, n int64) (unsafe.Pointer, error) {
	from, size := l.Offset-offset, int64(len(m.mem))
	if n < 0 || from < 0 || from >= size || n > size-from {
		return nil, status.New(status.Argument, "%d bytes at %d are not in the segment of %d bytes at %d of the other rank's heap", n, l.Offset, size, offset)
	}
	return unsafe.Pointer(&m.mem[from]), nil
}

// entry finds a segment in the directory.
func (v *View) entry(generation uint64) (offset, size int64, ok bool) {
	if generation == 0 {
		return 0, 0, false
	}
	for i := 0; i < maxSegments; i++ {
		e := v.words[i*entryWords : (i+1)*entryWords]
		if atomic.LoadUint64(&e[2]) != generation {
			continue
		}
		offset, size = int64(atomic.LoadUint64(&e[0])), int64(atomic.LoadUint64(&e[1]))
		return offset, size, atomic.LoadUint64(&e[2]) == generation // unless the owner reused the entry meanwhile
	}
	return 0, 0, false
}

// drop unmaps segments that overlap a range: a new one lies there now.
func (v *View) drop(offset, size int64) {
	for at, m := range v.mapped {
		if at < offset+size && offset < at+int64(len(m.mem)) {
			v.unmap(at, m)
		}
	}
}

func (v *View) unmap(offset int64, m mapping) {
	v.latest.Store(nil)
	unmap(m.mem)
	delete(v.mapped, offset)
}

// trim unmaps the segments that the owner has given back. The owner does that when no operation uses
// them any more. The caller holds mu.
func (v *View) trim() {
	for offset, m := range v.mapped {
		if _, _, ok := v.entry(m.generation); !ok {
			v.unmap(offset, m)
		}
	}
}

// Close unmaps all. Nothing may be under way in the heap.
func (v *View) Close() {
	v.mu.Lock()
	defer v.mu.Unlock()
	for offset, m := range v.mapped {
		v.unmap(offset, m)
	}
	if v.head != nil {
		_ = syscall.Munmap(v.head)
		v.head, v.words = nil, nil
	}
	v.file.Close()
}

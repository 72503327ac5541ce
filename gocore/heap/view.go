package heap

import (
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/segment"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// View is the heap of another process of the node, seen from here. Its methods are safe for
// concurrent use.
type View struct {
	file  *segment.File
	pid   int      // of the owner, if its files can be opened through /proc; else 0
	words []uint64 // the directory
	head  []byte

	mu     sync.Mutex
	mapped map[uint64]*mapping     // by generation
	latest atomic.Pointer[mapping] // the segment that At met last

	looked atomic.Int64 // when Dead last looked, in nanoseconds
	dead   atomic.Int64 // when the owner was first seen dead, in nanoseconds; 0: it was not
}

// mapping is a segment that is mapped here.
type mapping struct {
	mem        []byte
	generation uint64
	offset     int64         // of the segment; what a Location counts from
	adopted    *segment.File // its file, if it is not the heap's
	refs       int           // how many Refs are not released; the view's mu guards it
}

// Open opens the heap at an address.
func Open(a segment.Address) (*View, error) {
	file, err := segment.Open(a, segment.AnySize)
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
	return &View{file: file, pid: file.PID(), words: words, head: head, mapped: map[uint64]*mapping{}}, nil
}

// At returns where n bytes of the other's heap are in this process. It maps their segment at first. The
// error says if there is no such memory any more, or none of that length: what l says comes from
// another process.
func (v *View) At(l Location, n int64) (unsafe.Pointer, error) {
	if m := v.latest.Load(); m != nil && m.generation == l.Generation {
		return m.within(l, n)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.find(l, n)
}

// Read copies what the other's heap has at l to a buffer. Where the other gives that memory back at the
// same time, Read returns an error, or fills the buffer with something else. What At returns must not be
// read then, because another call of this view may unmap it.
func (v *View) Read(l Location, to []byte) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	p, err := v.find(l, int64(len(to)))
	if err == nil {
		copy(to, unsafe.Slice((*byte)(p), len(to)))
	}
	return err
}

// find is At without the look at latest. The caller holds mu.
func (v *View) find(l Location, n int64) (unsafe.Pointer, error) {
	m := v.mapped[l.Generation]
	if m == nil {
		v.trim()
		var err error
		if m, err = v.mapSegment(l.Generation); err != nil {
			return nil, err
		}
		v.mapped[l.Generation] = m
	}
	v.latest.Store(m)
	return m.within(l, n)
}

// mapSegment maps the segment of a generation.
func (v *View) mapSegment(generation uint64) (*mapping, error) {
	e, ok := v.entry(generation)
	if !ok {
		return nil, status.New(status.Argument, "the other rank's heap has no segment of generation %d: its memory was freed", generation)
	}
	m := &mapping{generation: generation, offset: int64(e.where)}
	file := v.file
	if e.fd != 0 {
		var err error
		if m.adopted, err = v.open(int(e.fd)-1, e.where, e.size); err != nil {
			return nil, err
		}
		m.offset, file = 0, m.adopted
	}
	var err error
	if m.mem, err = mapRange(file, m.offset, e.size); err != nil && m.adopted != nil {
		m.adopted.Close()
	}
	return m, err
}

// open opens the file of an adopted segment.
func (v *View) open(fd int, inode uint64, size int64) (*segment.File, error) {
	if v.pid == 0 {
		return nil, status.New(status.Unsupported, "the other rank's files cannot be opened from here")
	}
	file, err := segment.OpenForeign(segment.Address{PID: v.pid, FD: fd, Inode: inode})
	if err == nil && file.Size() < size {
		file.Close()
		return nil, status.New(status.Argument, "the other rank's segment of %d bytes has a file of %d", size, file.Size())
	}
	return file, err
}

func (m *mapping) within(l Location, n int64) (unsafe.Pointer, error) {
	from, size := l.Offset-m.offset, int64(len(m.mem))
	if n < 0 || from < 0 || from >= size || n > size-from {
		return nil, status.New(status.Argument, "%d bytes at %d are not in the segment of %d bytes at %d of the other rank's heap", n, l.Offset, size, m.offset)
	}
	return unsafe.Pointer(&m.mem[from]), nil
}

// entry is a segment in the directory.
type entry struct {
	where uint64 // offset, or the inode of an adopted segment
	size  int64
	fd    uint64 // 1 more than the descriptor of an adopted segment; else 0
}

// entry finds a segment in the directory.
func (v *View) entry(generation uint64) (found entry, ok bool) {
	if generation == 0 {
		return found, false
	}
	for i := 0; i < maxSegments; i++ {
		e := v.words[i*entryWords : (i+1)*entryWords]
		if atomic.LoadUint64(&e[2]) != generation {
			continue
		}
		found = entry{atomic.LoadUint64(&e[0]), int64(atomic.LoadUint64(&e[1])), atomic.LoadUint64(&e[3])}
		return found, atomic.LoadUint64(&e[2]) == generation // unless the owner reused the entry meanwhile
	}
	return found, false
}

func (v *View) unmap(m *mapping) {
	v.latest.CompareAndSwap(m, nil)
	unmap(m.mem)
	if m.adopted != nil {
		m.adopted.Close()
	}
	delete(v.mapped, m.generation)
}

// trim unmaps the segments that the owner has given back and that no Ref refers to. The owner does that when
// no operation uses them any more. The caller holds mu.
func (v *View) trim() {
	for _, m := range v.mapped {
		if _, ok := v.entry(m.generation); !ok && m.refs == 0 {
			v.unmap(m)
		}
	}
}

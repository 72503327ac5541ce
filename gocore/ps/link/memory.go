package link

import (
	"sync"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/heap"
	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// Memory is memory for regions. Its methods are safe for concurrent use.
type Memory struct {
	l    *Links
	data unsafe.Pointer
	n    int64
	own  *heap.Heap    // which it is from; nil if it is ordinary memory
	at   heap.Location // in own

	mu        sync.Mutex
	inUse     int  // regions of requests that are under way
	lingering int  // those of them whose caller has stopped waiting
	freed     bool // Free was called
}

// Memory takes n bytes, aligned to 64, for the regions of requests. They lie in the heap of this
// process if a server maps it, which then reads and writes them in place; else in ordinary memory.
func (l *Links) Memory(n int64) (*Memory, error) {
	m := &Memory{l: l, n: n, own: l.own}
	var err error
	if m.own == nil {
		m.data, err = mem.Alloc(n)
		return m, err
	}
	if m.data, err = m.own.Alloc(n); err != nil {
		return nil, err
	}
	m.at, _ = m.own.Find(m.data, n)
	return m, nil
}

// Bytes returns the memory.
func (m *Memory) Bytes() []byte { return bytesOf(m.data, m.n) }

// Free gives the memory back as soon as no request uses it any more, which may be later. It may be
// called again.
func (m *Memory) Free() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.freed {
		m.freed = true
		m.release()
	}
}

// release gives the memory back if nobody needs it. The caller holds mu.
func (m *Memory) release() {
	switch {
	case !m.freed || m.inUse > 0:
	case m.own != nil:
		_ = m.own.Free(m.data) // it is the heap's
	default:
		mem.Free(m.data)
	}
}

// Region is a part of a Memory. The zero Region is none.
type Region struct {
	M             *Memory
	Offset, Bytes int64
}

// data returns where the region is.
func (r Region) data() unsafe.Pointer {
	if r.Bytes == 0 {
		return nil
	}
	return unsafe.Add(r.M.data, r.Offset)
}

// place returns where the region is in the heap.
func (r Region) place() place {
	if r.Bytes == 0 {
		return place{}
	}
	return place{r.M.at.Offset + r.Offset, r.M.at.Generation, r.Bytes}
}

// check says what is wrong with a region that a caller gives.
func (r Region) check(l *Links, name string, align int64) error {
	switch {
	case r.M == nil && r.Bytes == 0 && r.Offset == 0:
		return nil
	case r.M == nil:
		return status.New(status.Argument, "%s of a request to a server: %d bytes of no memory", name, r.Bytes)
	case r.M.l != l:
		return status.New(status.Argument, "%s of a request to a server: the memory is of other links", name)
	case r.Bytes < 0 || r.Offset < 0 || r.Bytes > r.M.n || r.Offset > r.M.n-r.Bytes:
		return status.New(status.Argument, "%s of a request to a server: %d bytes at %d are not in a memory of %d", name, r.Bytes, r.Offset, r.M.n)
	case r.Bytes > MaxRegion:
		return status.New(status.Argument, "%s of a request to a server: %d bytes are more than %d", name, r.Bytes, int64(MaxRegion))
	case r.Bytes%align != 0 || r.Offset%align != 0:
		return status.New(status.Argument, "%s of a request to a server: %d bytes at %d are not whole elements of %d", name, r.Bytes, r.Offset, align)
	}
	return nil
}

// take counts the region as in use.
func (r Region) take(name string) error {
	if r.Bytes == 0 {
		return nil
	}
	m := r.M
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.freed:
		return status.New(status.Argument, "%s of a request to a server: its memory was freed", name)
	case m.lingering > 0:
		return status.New(status.NotReady, "%s of a request to a server: a server may still use its memory for a request that was given up; free it and take another one", name)
	}
	m.inUse++
	return nil
}

// linger notes that the caller of the request has stopped waiting.
func (r Region) linger() {
	if r.Bytes > 0 {
		r.M.mu.Lock()
		r.M.lingering++
		r.M.mu.Unlock()
	}
}

// give ends what take began, and what linger began if that was called.
func (r Region) give(lingered bool) {
	if r.Bytes == 0 {
		return
	}
	m := r.M
	m.mu.Lock()
	defer m.mu.Unlock()
	m.inUse--
	if lingered {
		m.lingering--
	}
	m.release()
}

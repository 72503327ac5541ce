package heap

import (
	"syscall"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/status"
)

// Ref is a reference to memory of another process's heap. The memory stays mapped until Release, whatever
// becomes of that heap and of its View. What At returns may be unmapped once the owner has given the segment back, which
// only the end of a collective rules out: a caller that works alone acquires what it uses.
type Ref struct {
	view *View
	from *mapping
	data unsafe.Pointer
}

// Data returns where the memory is.
func (r Ref) Data() unsafe.Pointer { return r.data }

// Acquire is At for memory that stays mapped. It refuses adopted memory, whose file its owner could cut.
func (v *View) Acquire(l Location, n int64) (Ref, error) {
	r, err := v.Hold(l, n)
	if err == nil && r.from.adopted != nil {
		r.Release()
		return Ref{}, status.New(status.Argument, "the %d bytes at %d of the other rank's heap are not the heap's own memory", n, l.Offset)
	}
	return r, err
}

// Hold is Acquire for adopted memory, too.
func (v *View) Hold(l Location, n int64) (Ref, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.head == nil {
		return Ref{}, status.New(status.Unsupported, "the other rank's heap is not open here any more")
	}
	p, err := v.find(l, n)
	if err != nil {
		return Ref{}, err
	}
	m := v.mapped[l.Generation]
	m.refs++
	return Ref{v, m, p}, nil
}

// Release ends the use of the memory. Every Ref is released once; the zero Ref refers to nothing.
func (r Ref) Release() {
	if r.view == nil {
		return
	}
	v := r.view
	v.mu.Lock()
	defer v.mu.Unlock()
	if r.from.refs--; r.from.refs > 0 || v.head != nil {
		return // the next segment that is mapped unmaps what the owner has given back
	}
	v.unmap(r.from)
	if len(v.mapped) == 0 {
		v.file.Close()
	}
}

// Close unmaps all but what a Ref refers to, which the last Release unmaps. Nothing else may be under way in the
// heap.
func (v *View) Close() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.head == nil {
		return
	}
	for _, m := range v.mapped {
		if m.refs == 0 {
			v.unmap(m)
		}
	}
	_ = syscall.Munmap(v.head)
	v.head, v.words = nil, nil
	if len(v.mapped) == 0 { // else a forked child still needs the descriptor: see ph_keep
		v.file.Close()
	}
}

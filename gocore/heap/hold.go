package heap

import (
	"syscall"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/status"
)

// Held is memory of another process's heap that stays mapped until Release, whatever becomes of that
// heap and of its View. What At returns may be unmapped once the owner has given the segment back, which
// only the end of a collective rules out: a caller that works alone holds what it uses.
type Held struct {
	view *View
	from *mapping
	data unsafe.Pointer
}

// Data returns where the memory is.
func (h Held) Data() unsafe.Pointer { return h.data }

// Hold is At for memory that stays mapped. It refuses adopted memory, whose file its owner could cut.
func (v *View) Hold(l Location, n int64) (Held, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.head == nil {
		return Held{}, status.New(status.Unsupported, "the other rank's heap is not open here any more")
	}
	p, err := v.find(l, n)
	if err != nil {
		return Held{}, err
	}
	m := v.mapped[l.Generation]
	if m.adopted != nil {
		return Held{}, status.New(status.Argument, "the %d bytes at %d of the other rank's heap are not the heap's own memory", n, l.Offset)
	}
	m.held++
	return Held{v, m, p}, nil
}

// Release ends the use of the memory. Every Held is released once; the zero Held holds nothing.
func (h Held) Release() {
	if h.view == nil {
		return
	}
	v := h.view
	v.mu.Lock()
	defer v.mu.Unlock()
	if h.from.held--; h.from.held > 0 || v.head != nil {
		return // the next segment that is mapped unmaps what the owner has given back
	}
	v.unmap(h.from)
	if len(v.mapped) == 0 {
		v.file.Close()
	}
}

// Close unmaps all but what is held, which the last Release unmaps. Nothing else may be under way in the
// heap.
func (v *View) Close() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.head == nil {
		return
	}
	for _, m := range v.mapped {
		if m.held == 0 {
			v.unmap(m)
		}
	}
	_ = syscall.Munmap(v.head)
	v.head, v.words = nil, nil
	if len(v.mapped) == 0 { // else a forked child still needs the descriptor: see ph_keep
		v.file.Close()
	}
}

package window

// #include "access.h"
import "C"

import (
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/heap"
	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// structs is held in pw_new and pw_recycle.
var structs sync.Mutex

// control is the control block of this member's memory.
type control struct {
	block *C.pw_control
	bytes int64
	heap  *heap.Heap // where it is; nil: in memory that no other process maps
}

// newControl makes the control block of a window of size members.
func newControl(h *heap.Heap, size int) (control, error) {
	c := control{bytes: int64(C.sizeof_pw_control) + int64(size)*int64(C.sizeof_pw_slot), heap: h}
	var p unsafe.Pointer
	var err error
	if h != nil {
		p, err = h.Alloc(c.bytes)
	} else {
		p, err = mem.Alloc(c.bytes)
	}
	if err != nil {
		return control{}, err
	}
	clear(unsafe.Slice((*byte)(p), c.bytes))
	c.block = (*C.pw_control)(p)
	return c, nil
}

func (c *control) free() {
	switch {
	case c.block == nil:
	case c.heap != nil:
		_ = c.heap.Free(unsafe.Pointer(c.block)) // it is the heap's
	default:
		mem.Free(unsafe.Pointer(c.block))
	}
	c.block = nil
}

// slotOf returns what a member does with a control block.
func slotOf(c *C.pw_control, member int) *C.pw_slot {
	return (*C.pw_slot)(unsafe.Add(unsafe.Pointer(c), C.sizeof_pw_control+uintptr(member)*C.sizeof_pw_slot))
}

// word returns a word of shared memory for package atomic.
func word(w *C.uint32_t) *uint32 { return (*uint32)(unsafe.Pointer(w)) }

// members is the memory of all members of a window, as this process reaches it, and what its elements are.
type members struct {
	ws    *Windows
	c     *C.pw_window
	dtype op.DType
	elem  int64          // bytes of an element
	at    unsafe.Pointer // this member's memory
	own   control        // of this member's memory
	refs  []refs         // to the memory of other members, by member
	maps  []int          // uses of Map, by member; the Window's mu guards it
}

// refs are references to a member's memory and its control block.
type refs struct{ memory, control heap.Ref }

func (ms *members) of(r int) *C.pw_member {
	return (*C.pw_member)(unsafe.Add(unsafe.Pointer(ms.c.members), uintptr(r)*unsafe.Sizeof(C.pw_member{})))
}

func (ms *members) count(r int) int64 { return int64(ms.of(r).count) }

// near tells whether this process maps the member's memory.
func (ms *members) near(r int) bool { return ms.of(r).base != nil }

// prepare checks this member's memory, and fills in what the others are told of it.
func (ms *members) prepare(b *op.Buf, mine []int64) error {
	if err := checkMemory(b); err != nil {
		return err
	}
	ms.dtype, ms.elem, ms.at = b.DType, int64(b.DType.Size()), b.Data
	mine[wordDType], mine[wordCount], mine[wordDims] = int64(b.DType), b.Count, int64(len(b.Dims()))
	h, err := heap.OfProcess()
	if err == nil && b.Count > 0 {
		at, ok := h.Find(b.Data, b.Bytes())
		if !ok {
			return status.New(status.Unsupported, "the tensor's memory is in no heap, so other ranks cannot map it: give a shape, or a tensor of paddlempi.empty or paddlempi.zeros")
		}
		mine[wordOffset], mine[wordGeneration] = at.Offset, int64(at.Generation)
	}
	if ms.own, err = newControl(h, ms.ws.size); err != nil {
		return err
	}
	if h != nil {
		at, _ := h.Find(unsafe.Pointer(ms.own.block), ms.own.bytes)
		mine[wordShared], mine[wordControl], mine[wordControlGeneration] = 1, at.Offset, int64(at.Generation)
	}
	structs.Lock()
	defer structs.Unlock()
	if ms.c = C.pw_new(C.int32_t(ms.ws.size)); ms.c == nil {
		return status.New(status.NoMemory, "there is no memory for another window, or this process has 65536")
	}
	ms.c.rank, ms.c.dtype, ms.c.itemsize = C.int32_t(ms.ws.me), C.int32_t(ms.dtype), C.int32_t(ms.elem)
	return nil
}

func checkMemory(b *op.Buf) error {
	size := int64(b.DType.Size())
	switch {
	case size == 0:
		return status.New(status.Type, "the tensor has the dtype %d, which there is not", b.DType)
	case !b.OnHost():
		return status.New(status.Unsupported, "the tensor is in device memory: a window is in host memory")
	case !b.Contiguous():
		return status.New(status.Argument, "the tensor is not contiguous: the memory of a window is")
	case b.Count < 0 || len(b.Dims()) > mostDims:
		return status.New(status.Argument, "a tensor of %d elements with %d dimensions", b.Count, b.NDim)
	case uintptr(b.Data)%uintptr(size) != 0:
		return status.New(status.Argument, "the tensor is at address %#x, which is not aligned to its elements of %d bytes", uintptr(b.Data), size)
	}
	return nil
}

// join maps what the other members tell of their memory. It returns 1 if some member is reached by messages only.
func (ms *members) join(rows [][]int64) (messages int64) {
	for r, row := range rows {
		m := ms.of(r)
		m.count = C.int64_t(row[wordCount])
		switch {
		case r == ms.ws.me:
			m.base, m.control = (*C.char)(ms.at), ms.own.block
			if m.base == nil { // without elements: any address will do
				m.base = (*C.char)(unsafe.Pointer(ms.own.block))
			}
		case row[wordShared] != 1 || !ms.acquire(r, row):
			messages = 1
		}
	}
	return messages
}

// acquire maps a member's memory and control block. It returns false if that cannot be done.
func (ms *members) acquire(r int, row []int64) bool {
	v := ms.ws.g.HeapOf(r)
	if v == nil {
		return false
	}
	ref, err := v.Acquire(heap.Location{Offset: row[wordControl], Generation: uint64(row[wordControlGeneration])}, ms.own.bytes)
	if err != nil {
		return false
	}
	m := ms.of(r)
	m.base = (*C.char)(ref.Data())
	if row[wordCount] > 0 {
		memory, err := v.Hold(heap.Location{Offset: row[wordOffset], Generation: uint64(row[wordGeneration])}, row[wordCount]*ms.elem)
		if err != nil {
			m.base = nil
			ref.Release()
			return false
		}
		ms.refs[r].memory, m.base = memory, (*C.char)(memory.Data())
	}
	ms.refs[r].control, m.control = ref, (*C.pw_control)(ref.Data())
	return true
}

// Map returns where a member's memory is in this process, nil if it is not there. Unmap ends the use; the memory
// stays mapped until then, also after Close.
func (w *Window) Map(r int) (at unsafe.Pointer, bytes int64, err error) {
	if r < 0 || r >= w.ws.size {
		return nil, 0, w.ws.noRank("map", r)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.ended.Load():
		return nil, 0, w.endedError("map")
	case !w.members.near(r):
		return nil, 0, nil
	}
	w.members.maps[r]++
	return unsafe.Pointer(w.members.of(r).base), w.members.count(r) * w.members.elem, nil
}

// Unmap ends one use of Map.
func (w *Window) Unmap(r int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if r < 0 || r >= w.ws.size || w.members.maps[r] == 0 {
		return
	}
	if w.members.maps[r]--; w.members.maps[r] == 0 && w.gone {
		w.members.refs[r].memory.Release()
		w.members.refs[r].memory = heap.Ref{}
	}
}

// leaveAll lets go of the memory of the other members, and tells them. No thread uses it. The caller holds the
// Window's mu.
func (ms *members) leaveAll() {
	for r := range ms.refs {
		c := ms.of(r).control
		if c != nil && r != ms.ws.me {
			atomic.StoreUint32(word(&slotOf(c, ms.ws.me).left), 1)
		}
	}
	ms.release()
}

// release is leaveAll that tells nobody.
func (ms *members) release() {
	for r := range ms.refs {
		ms.refs[r].control.Release()
		ms.refs[r].control = heap.Ref{}
		if ms.maps[r] == 0 {
			ms.refs[r].memory.Release()
			ms.refs[r].memory = heap.Ref{}
		}
	}
}

// Mapped tells which members' memory this process maps.
func (w *Window) Mapped() []bool {
	mapped := make([]bool, w.ws.size)
	for r := range mapped {
		mapped[r] = !w.ended.Load() && w.members.near(r)
	}
	return mapped
}

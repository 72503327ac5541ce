package window

// #include "access.h"
import "C"

import (
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/op"
)

// access is what is done with the elements of a box. All memory is contiguous.
type access struct {
	code    Code
	reduce  op.ReduceOp
	send    unsafe.Pointer // nil for NoOp
	recv    unsafe.Pointer // nil: nothing is returned
	compare unsafe.Pointer
	holder  uint32 // 1 + the member in whose name the lock of wide elements is taken
	done    int64  // elements that are done: apply goes on there
}

// memory is the memory of a member, mapped here.
type memory struct {
	base    unsafe.Pointer
	control *C.pw_control
	dtype   op.DType
	elem    int64
}

func (ms *members) memoryOf(r int) memory {
	m := ms.of(r)
	return memory{unsafe.Pointer(m.base), m.control, ms.dtype, ms.elem}
}

// apply carries out an access. It returns false if another member holds the lock of wide elements: then it is called
// again.
func (m *memory) apply(a *access, at *box) (done bool, err error) {
	first := unsafe.Add(m.base, at.offset*m.elem)
	switch a.code {
	case Put:
		if at.shape == nil {
			mem.Copy(first, a.send, at.count*m.elem)
			return true, nil
		}
		return true, mem.Unpack(m.buf(first, at), a.send)
	case Get:
		if at.shape == nil {
			mem.Copy(a.recv, first, at.count*m.elem)
			return true, nil
		}
		return true, mem.Pack(a.recv, m.buf(first, at))
	case CompareAndSwap:
		return C.pw_swap(m.control, C.uint32_t(a.holder), C.int32_t(m.elem), (*C.char)(first), (*C.char)(a.compare), (*C.char)(a.send), (*C.char)(a.recv)) != 0, nil
	}
	return m.combine(a, at), nil
}

// buf describes a box as a tensor.
func (m *memory) buf(first unsafe.Pointer, at *box) *op.Buf {
	return &op.Buf{Data: first, Count: at.count, DType: m.dtype, DeviceType: op.DeviceCPU, NDim: int32(len(at.shape)), Shape: unsafe.Pointer(unsafe.SliceData(at.shape)),
		Strides: unsafe.Pointer(unsafe.SliceData(at.steps))}
}

// combine combines the elements of a box, row by row. A row is the last dimension.
func (m *memory) combine(a *access, at *box) bool {
	row, step := at.count, int64(1)
	if n := len(at.shape); n > 0 {
		row, step = at.shape[n-1], at.steps[n-1]
	}
	for a.done < at.count {
		in := a.done % row // a part of the row may be done
		offset := at.offset + at.rowOffset(a.done/row) + in*step
		n := int64(C.pw_combine(m.control, C.uint32_t(a.holder), C.int32_t(m.dtype), C.int32_t(a.reduce), (*C.char)(unsafe.Add(m.base, offset*m.elem)), C.int64_t(step),
			(*C.char)(shifted(a.send, a.done*m.elem)), (*C.char)(shifted(a.recv, a.done*m.elem)), C.int64_t(row-in)))
		if a.done += n; n < row-in {
			return false
		}
	}
	return true
}

// rowOffset returns where a row begins, counted from the first element.
func (b *box) rowOffset(row int64) (offset int64) {
	for i := len(b.shape) - 2; i >= 0; i-- {
		offset += row % b.shape[i] * b.steps[i]
		row /= b.shape[i]
	}
	return offset
}

// shifted is unsafe.Add that leaves nil alone.
func shifted(p unsafe.Pointer, n int64) unsafe.Pointer {
	if p == nil {
		return nil
	}
	return unsafe.Add(p, n)
}

// enter counts this process in at a member's memory, and looks whether the member lives. leave must follow.
func (ms *members) enter(what string, r int) error {
	if r != ms.ws.me {
		if err := ms.ws.g.Trouble(what, r); err != nil {
			return err
		}
		C.pw_looked(ms.c, C.int32_t(r))
	}
	if C.pw_enter(ms.c, C.int32_t(r)) == 0 {
		return ms.ws.freedThere(what, r)
	}
	return nil
}

func (ms *members) leave(r int) { C.pw_leave(ms.c, C.int32_t(r)) }

// inMemory carries out an access in the memory of a member.
func (w *Window) inMemory(a *access, r int, at box, deadline time.Time) error {
	what := a.code.String()
	m := w.members.memoryOf(r)
	var done bool
	var err error
	try := func() bool {
		if err = w.members.enter(what, r); err != nil {
			return true
		}
		defer w.members.leave(r)
		done, err = m.apply(a, &at)
		return done || err != nil
	}
	if try() {
		return err
	}
	if late := w.await(what, deadline, wideHolder(m.control, w.ws.size, r), try); late != nil {
		return late
	}
	return err
}

// wideHolder returns a function that tells which member is waited for: the one that holds the lock of wide elements, or the
// owner of the memory.
func wideHolder(c *C.pw_control, size, owner int) func() int {
	return func() int {
		if h := int(atomic.LoadUint32(word(&c.wide))); h > 0 && h <= size {
			return h - 1
		}
		return owner
	}
}

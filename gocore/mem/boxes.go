package mem

// #include "strided.h"
import "C"

import (
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// Box is a part of a tensor that is copied to memory, or to a part of another tensor. It knows both places as offsets
// in bytes, and needs no memory outside of it.
type Box struct{ c C.pmpi_box }

// NewBox returns the box of a copy from a tensor, whose first element is at offset from, to another one of the same shape
// and dtype, whose first element is at offset to. A side without strides is contiguous. The Data of both are not looked at.
func NewBox(to int64, dst *op.Buf, from int64, src *op.Buf) (b Box, err error) {
	var dstSteps, srcSteps *C.int64_t
	for _, side := range []struct {
		b     *op.Buf
		steps **C.int64_t
	}{{dst, &dstSteps}, {src, &srcSteps}} {
		if side.b.Contiguous() {
			continue
		}
		if err := checkSteps(side.b); err != nil {
			return b, err
		}
		*side.steps = (*C.int64_t)(side.b.Strides)
	}
	shaped := src
	if srcSteps == nil {
		shaped = dst
	}
	b.c.dst, b.c.src = C.int64_t(to), C.int64_t(from)
	ndim, shape := C.int(shaped.NDim), (*C.int64_t)(shaped.Shape)
	count := C.int64_t(src.Count)
	if dstSteps == nil && srcSteps == nil {
		ndim, shape = 1, &count
	}
	if C.pmpi_make_box(&b.c, C.int(src.DType.Size()), ndim, shape, dstSteps, srcSteps) != 0 {
		return b, status.New(status.Unsupported, "a tensor of %v has %d dimensions that do not continue each other in memory; such copies want at most %d: pass a copy",
			src.DType, src.NDim, C.PMPI_BOX_DIMS)
	}
	return b, nil
}

// Alike tells whether two boxes have the same lengths and steps. CopyBoxes takes less time if such boxes follow each
// other.
func (b *Box) Alike(other *Box) bool {
	return b.c.ndim == other.c.ndim && b.c.n == other.c.n && b.c.d == other.c.d && b.c.s == other.c.s
}

// Run returns how many bytes of a box follow each other on both sides.
func (b *Box) Run() int64 {
	size := int64(b.c.size)
	for k := range b.c.ndim {
		if int64(b.c.d[k]) == size && int64(b.c.s[k]) == size {
			return size * int64(b.c.n[k])
		}
	}
	return size
}

// Bytes returns how many bytes of elements a box has.
func (b *Box) Bytes() int64 {
	n := int64(b.c.size)
	for k := range b.c.ndim {
		n *= int64(b.c.n[k])
	}
	return n
}

// CopyBoxes copies boxes, none of which overlaps another one.
func CopyBoxes(dst, src unsafe.Pointer, boxes []Box) {
	if len(boxes) > 0 {
		C.pmpi_copy_boxes(dst, src, &boxes[0].c, C.int64_t(len(boxes)))
	}
}

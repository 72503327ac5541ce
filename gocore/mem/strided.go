package mem

// #cgo CFLAGS: -std=c11 -O3
// #cgo noescape pmpi_pack
// #cgo nocallback pmpi_pack
// #cgo noescape pmpi_unpack
// #cgo nocallback pmpi_unpack
// #cgo noescape pmpi_copy_range
// #cgo nocallback pmpi_copy_range
// #cgo noescape pmpi_make_box
// #cgo nocallback pmpi_make_box
// #cgo noescape pmpi_copy_boxes
// #cgo nocallback pmpi_copy_boxes
// #include "strided.h"
import "C"

import (
	"sort"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// Pack copies the elements of the tensor b, in row-major order, to the b.Bytes() bytes at dst,
// which must not overlap the tensor. Strides may be negative or 0.
func Pack(dst unsafe.Pointer, b *op.Buf) error {
	if b.Contiguous() {
		Copy(dst, b.Data, b.Bytes())
		return nil
	}
	if err := checkSteps(b); err != nil {
		return err
	}
	if C.pmpi_pack(dst, b.Data, C.int(b.DType.Size()), C.int(b.NDim), (*C.int64_t)(b.Shape), (*C.int64_t)(b.Strides)) != 0 {
		return tooMany(b)
	}
	return nil
}

// Unpack copies the b.Bytes() bytes at src, in row-major order, to the elements of the tensor b.
// The caller has checked that Overlaps(b) is false. Otherwise it is undefined which of several
// values an element gets.
func Unpack(b *op.Buf, src unsafe.Pointer) error {
	if b.Contiguous() {
		Copy(b.Data, src, b.Bytes())
		return nil
	}
	if err := checkSteps(b); err != nil {
		return err
	}
	if C.pmpi_unpack(b.Data, src, C.int(b.DType.Size()), C.int(b.NDim), (*C.int64_t)(b.Shape), (*C.int64_t)(b.Strides)) != 0 {
		return tooMany(b)
	}
	return nil
}

// CopyRange copies a part of the tensor b, bytes [from, from+n) of its elements in row-major order, to flat, or from
// there to the tensor if into is set. A part may begin and end within an element. The two must not overlap.
func CopyRange(flat unsafe.Pointer, b *op.Buf, from, n int64, into bool) error {
	if b.Contiguous() {
		dst, src := flat, unsafe.Add(b.Data, from)
		if into {
			dst, src = src, dst
		}
		Copy(dst, src, n)
		return nil
	}
	if err := checkSteps(b); err != nil {
		return err
	}
	if from < 0 || n < 0 || from > b.Bytes()-n {
		return status.New(status.Argument, "a copy of %d bytes from byte %d on of a tensor of %d bytes", n, from, b.Bytes())
	}
	way := C.int(0)
	if into {
		way = 1
	}
	if C.pmpi_copy_range(flat, b.Data, C.int(b.DType.Size()), C.int(b.NDim), (*C.int64_t)(b.Shape), (*C.int64_t)(b.Strides),
		C.int64_t(from), C.int64_t(n), way) != 0 {
		return tooMany(b)
	}
	return nil
}

// checkSteps refuses a shape whose elements are not b.Count, because the copy would overflow a
// buffer of that size.
func checkSteps(b *op.Buf) error {
	count := int64(1)
	for _, n := range b.Dims() {
		if n < 0 {
			return status.New(status.Argument, "a tensor has the shape %v: a size is 0 or more", b.Dims())
		}
		count *= n
	}
	if count != b.Count || b.Shape == nil {
		return status.New(status.Argument, "a tensor of %d elements has strides and the shape %v, which is %d elements", b.Count, b.Dims(), count)
	}
	return nil
}

func tooMany(b *op.Buf) error {
	return status.New(status.Argument, "a tensor of %v has %d dimensions; strided copies want at most %d and elements of 1, 2, 4, 8 or 16 bytes",
		b.DType, b.NDim, C.PMPI_MAX_DIMS)
}

// Overlaps tells whether two elements of the tensor b may have the same address, so that b cannot
// receive. It is false for every tensor that was made from a dense one by slicing, transposing,
// reversing and reshaping. It is true for every overlap. It is also true for tensors with handmade
// strides whose rows interleave and do not overlap.
func Overlaps(b *op.Buf) bool {
	if b.Contiguous() || b.Shape == nil {
		return false
	}
	type dim struct{ step, n int64 }
	var dims []dim
	for i, n := range b.Dims() {
		if n == 0 {
			return false
		}
		if n > 1 {
			dims = append(dims, dim{max(b.Steps()[i], -b.Steps()[i]), n})
		}
	}
	sort.Slice(dims, func(a, b int) bool { return dims[a].step < dims[b].step })
	reach := int64(0) // from the first to the last element of the dimensions so far
	for _, d := range dims {
		if d.step <= reach {
			return true
		}
		reach += d.step * (d.n - 1)
	}
	return false
}

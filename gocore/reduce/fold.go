package reduce

// #include "fold.h"
// #include "kernels.h"
// #cgo noescape pmpi_fold_one
// #cgo nocallback pmpi_fold_one
import "C"

import (
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/op"
)

// Fold describes a reduction of many sources into many destinations, for C code of other packages
// that calls Folder. It has the memory layout of pmpi_fold in fold.h.
type Fold struct {
	kind, op, scaled, divisor int32
	scale                     float64
	isa, out                  int32
}

// kindOf returns the kernels' number of a type.
func kindOf(d op.DType) int32 {
	switch d {
	case op.Float16:
		return C.PMPI_T_F16
	case op.BFloat16:
		return C.PMPI_T_BF16
	}
	return int32(kernelType[d])
}

// NewFold describes the reduction r of sources of type d. AVG divides by n, the number of sources;
// PREMUL_SUM multiplies every source by scale first. An r of 0 stands for a copy of one source.
func NewFold(d op.DType, r op.ReduceOp, n int, scale float64) Fold {
	f := Fold{kind: kindOf(d), out: kindOf(d), divisor: 1, isa: int32(best)}
	f.op = int32(kernelOp[r])
	switch r {
	case op.Avg:
		f.divisor = int32(n)
	case op.PremulSum:
		f.scaled, f.scale = 1, scale
	}
	return f
}

// To returns f with results of another type. If one of both types is Float32, the other may be a 16-bit float:
// partial sums of these are of type Float32, and their sum is rounded once.
func (f Fold) To(d op.DType) Fold {
	f.out = kindOf(d)
	return f
}

// CopyBytes describes a copy of one source, whose elements are bytes.
func CopyBytes() Fold { return Fold{kind: C.PMPI_T_U8, out: C.PMPI_T_U8, divisor: 1} }

// Folder returns the address of the C function that carries out a Fold: a pmpi_folder of fold.h.
func Folder() unsafe.Pointer { return unsafe.Pointer(C.pmpi_fold_address()) }

// Run reduces n elements at each of srcs, in their order, into dst. dst may be one of srcs.
func (f *Fold) Run(dst unsafe.Pointer, srcs []unsafe.Pointer, n int64) {
	C.pmpi_fold_one((*C.pmpi_fold)(unsafe.Pointer(f)), dst, (*unsafe.Pointer)(unsafe.SliceData(srcs)), C.int(len(srcs)), C.int64_t(n))
}

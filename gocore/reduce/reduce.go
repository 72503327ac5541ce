// Package reduce combines tensors in host memory. It has the arithmetic that MPI lacks (float16,
// bfloat16, AVG, PREMUL_SUM), and sums of narrow integers, which must wrap and do not in every MPI.
// Combine also has the other types and reduce ops, so that tests can compare MPI's results with it.
//
// 16-bit floats are reduced in float32: every element of every source is converted, combined in the
// order of the sources, and rounded once, to nearest even. The vector code is chosen at run time:
// AVX-512, AVX2 with F16C, or portable C, which the compiler vectorises. All of it gives the same
// bits, and every NaN becomes the positive quiet one. Other types are combined in their own
// arithmetic: integers wrap, and any byte other than 0 is true in a bool.
//
// All pointers are to memory outside the Go heap. They need the alignment of an element only. The
// functions are safe for concurrent use on disjoint memory. A function that can fail checks its
// arguments before it touches memory.
package reduce

// #cgo CFLAGS: -std=c11 -O3
// #cgo noescape pmpi_reduce_floats_call
// #cgo nocallback pmpi_reduce_floats_call
// #cgo nocallback pmpi_combine
// #cgo nocallback pmpi_divide
// #include "kernels.h"
import "C"

import (
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// best is the best instruction set of this processor. All reductions and scalings of 16-bit floats
// use it.
var best = int(C.pmpi_reduce_isa())

var isaNames = [...]string{
	C.PMPI_ISA_PORTABLE: "portable",
	C.PMPI_ISA_AVX2:     "avx2",
	C.PMPI_ISA_AVX512:   "avx512",
	C.PMPI_ISA_NEON:     "neon",
}

// ISA returns the name of the kernels for this processor: "avx512", "avx2", "neon" or "portable".
func ISA() string { return isaNames[best] }

// kernelOp has the kernels' number of each reduce op. AVG and PREMUL_SUM are sums here, and the
// scaling comes before or after.
var kernelOp = [...]C.int{
	op.Sum:       C.PMPI_K_SUM,
	op.Avg:       C.PMPI_K_SUM,
	op.PremulSum: C.PMPI_K_SUM,
	op.Product:   C.PMPI_K_PRODUCT,
	op.Min:       C.PMPI_K_MIN,
	op.Max:       C.PMPI_K_MAX,
	op.BAnd:      C.PMPI_K_AND,
	op.BOr:       C.PMPI_K_OR,
	op.BXor:      C.PMPI_K_XOR,
}

var kernelType = [...]C.int{
	op.Bool: C.PMPI_T_BOOL,
	op.Int8: C.PMPI_T_I8, op.UInt8: C.PMPI_T_U8,
	op.Int16: C.PMPI_T_I16, op.UInt16: C.PMPI_T_U16,
	op.Int32: C.PMPI_T_I32, op.UInt32: C.PMPI_T_U32,
	op.Int64: C.PMPI_T_I64, op.UInt64: C.PMPI_T_U64,
	op.Float32: C.PMPI_T_F32, op.Float64: C.PMPI_T_F64,
	op.Complex64: C.PMPI_T_C64, op.Complex128: C.PMPI_T_C128,
}

// Is16 tells whether d is one of the types that Reduce16 takes.
func Is16(d op.DType) bool { return d == op.Float16 || d == op.BFloat16 }

// Reduce16 reduces the n elements at each of srcs, in the order of srcs, into dst. dst may be one
// of srcs. Otherwise it must not overlap any of them. d is Float16 or BFloat16.
//
// AVG divides the sum by len(srcs). PREMUL_SUM multiplies each source by its factor in scales, in
// float32, before it is added. For other ops scales is nil.
//
// Bytes moved: every source is read once and dst is written once, (len(srcs)+1) * 2n bytes.
func Reduce16(dst unsafe.Pointer, srcs []unsafe.Pointer, n int64, d op.DType, r op.ReduceOp, scales []float64) error {
	if !Is16(d) || !op.Defined(r, d) {
		return status.New(status.Type, "%v of %v is not a reduction of 16-bit floats", r, d)
	}
	if len(srcs) == 0 || n < 0 {
		return status.New(status.Argument, "a reduction wants one source or more and a count of 0 or more, not %d sources and a count of %d", len(srcs), n)
	}
	if (r == op.PremulSum) != (scales != nil) || scales != nil && len(scales) != len(srcs) {
		return status.New(status.Argument, "PREMUL_SUM, and nothing else, wants one factor for each source: got %d factors for %d sources and %v", len(scales), len(srcs), r)
	}
	by := 1
	if r == op.Avg {
		by = len(srcs)
	}
	reduce16(best, dst, srcs, n, d, kernelOp[r], scales, float32(by))
	return nil
}

// reduce16 is Reduce16 with the instruction set isa. It does not check its arguments.
func reduce16(isa int, dst unsafe.Pointer, srcs []unsafe.Pointer, n int64, d op.DType, k C.int, scales []float64, divisor float32) {
	// The addresses are numbers, because an array of pointers on the Go heap must not be passed to
	// C. Up to 64 sources need no allocation.
	var addressRoom [64]uintptr
	var scaleRoom [64]float32
	addresses, factors := addressRoom[:0], scaleRoom[:0]
	for _, p := range srcs {
		addresses = append(addresses, uintptr(p))
	}
	for _, f := range scales {
		factors = append(factors, float32(f))
	}
	kind := C.int32_t(C.PMPI_T_F16)
	if d == op.BFloat16 {
		kind = C.PMPI_T_BF16
	}
	C.pmpi_reduce_floats_call(dst, (*C.uintptr_t)(unsafe.Pointer(unsafe.SliceData(addresses))), C.int32_t(len(addresses)),
		(*C.float)(unsafe.SliceData(factors)), C.int32_t(len(factors)), C.int64_t(n), kind, C.int32_t(k), C.float(divisor), C.int(isa))
}

// Combine does dst[i] = dst[i] r src[i] for n elements. op.Defined(r, d) must hold. AVG and
// PREMUL_SUM add, so the caller divides after the last call, or scales before the first. For 16-bit
// floats each call rounds, but Reduce16 rounds once.
func Combine(dst, src unsafe.Pointer, n int64, d op.DType, r op.ReduceOp) error {
	if !op.Defined(r, d) {
		return status.New(status.Type, "%v is not defined for %v", r, d)
	}
	if n < 0 {
		return status.New(status.Argument, "a count is 0 or more, not %d", n)
	}
	if Is16(d) {
		srcs := [2]unsafe.Pointer{dst, src}
		reduce16(best, dst, srcs[:], n, d, kernelOp[r], nil, 1)
		return nil
	}
	if C.pmpi_combine(dst, src, C.int64_t(n), kernelType[d], kernelOp[r]) != 0 {
		return status.New(status.Type, "%v of %v has no kernel", r, d)
	}
	return nil
}

// Scale multiplies the n elements at p by factor, as ScaleTo does.
func Scale(p unsafe.Pointer, n int64, d op.DType, factor float64) error {
	return ScaleTo(p, p, n, d, factor)
}

// ScaleTo does dst[i] = src[i] * factor for n elements of a floating or complex type. dst may be
// src. factor is first rounded to the type of the arithmetic: float64 for float64 and complex128,
// float32 for the others.
func ScaleTo(dst, src unsafe.Pointer, n int64, d op.DType, factor float64) error {
	if err := checkScaled(n, d); err != nil {
		return err
	}
	switch d {
	case op.Float16, op.BFloat16:
		scale16(best, dst, src, n, d, factor)
	case op.Float32, op.Complex64:
		C.pmpi_scale32((*C.float)(dst), (*C.float)(src), reals(n, d), C.float(factor))
	default:
		C.pmpi_scale64((*C.double)(dst), (*C.double)(src), reals(n, d), C.double(factor))
	}
	return nil
}

func scale16(isa int, dst, src unsafe.Pointer, n int64, d op.DType, factor float64) {
	srcs, scales := [1]unsafe.Pointer{src}, [1]float64{factor}
	reduce16(isa, dst, srcs[:], n, d, C.PMPI_K_SUM, scales[:], 1)
}

// Divide divides the n elements at p by a number from 1 to 2^31-1. The type must have a mean. A
// quotient is rounded once; a product with 1/by would be rounded twice. Integers are rounded toward
// zero. This is how a sum becomes the mean of AVG (NCCL's SumPostDiv).
func Divide(p unsafe.Pointer, n int64, d op.DType, by int) error {
	if !op.Defined(op.Avg, d) {
		return status.New(status.Type, "%v cannot be divided: it has no mean", d)
	}
	if n < 0 {
		return status.New(status.Argument, "a count is 0 or more, not %d", n)
	}
	if by < 1 {
		return status.New(status.Argument, "a divisor is 1 or more, not %d", by)
	}
	if by == 1 {
		return nil
	}
	switch d {
	case op.Float16, op.BFloat16:
		srcs := [1]unsafe.Pointer{p}
		reduce16(best, p, srcs[:], n, d, C.PMPI_K_SUM, nil, float32(by))
	case op.Float32, op.Complex64:
		C.pmpi_div32((*C.float)(p), (*C.float)(p), reals(n, d), C.float(by))
	case op.Float64, op.Complex128:
		C.pmpi_div64((*C.double)(p), (*C.double)(p), reals(n, d), C.double(by))
	default:
		C.pmpi_divide(p, C.int64_t(n), kernelType[d], C.int(by))
	}
	return nil
}

// checkScaled refuses types that cannot be scaled, which are those without PREMUL_SUM.
func checkScaled(n int64, d op.DType) error {
	if !op.Defined(op.PremulSum, d) {
		return status.New(status.Type, "%v cannot be scaled: only floating and complex types can", d)
	}
	if n < 0 {
		return status.New(status.Argument, "a count is 0 or more, not %d", n)
	}
	return nil
}

// reals returns how many real numbers n elements of d consist of.
func reals(n int64, d op.DType) C.int64_t {
	if d == op.Complex64 || d == op.Complex128 {
		n *= 2
	}
	return C.int64_t(n)
}

package mpifake

import (
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/op"
)

// folds has, for every dtype that MPI reduces, the function that reduces in into acc. For an op
// that MPI does not define, the function does nothing and returns false.
var folds = map[op.DType]func(r op.ReduceOp, acc, in []byte) bool{
	op.Bool:       fold(logical),
	op.Int8:       fold(integer[int8]),
	op.UInt8:      fold(integer[uint8]),
	op.Int16:      fold(integer[int16]),
	op.UInt16:     fold(integer[uint16]),
	op.Int32:      fold(integer[int32]),
	op.UInt32:     fold(integer[uint32]),
	op.Int64:      fold(integer[int64]),
	op.UInt64:     fold(integer[uint64]),
	op.Float32:    fold(ordered[float32]),
	op.Float64:    fold(ordered[float64]),
	op.Complex64:  fold(number[complex64]),
	op.Complex128: fold(number[complex128]),
}

func fold[T any](pick func(op.ReduceOp) func(a, b T) T) func(op.ReduceOp, []byte, []byte) bool {
	return func(r op.ReduceOp, acc, in []byte) bool {
		f := pick(r)
		if f == nil {
			return false
		}
		a, b := elements[T](acc), elements[T](in)
		for i := range a {
			a[i] = f(a[i], b[i])
		}
		return true
	}
}

func elements[T any](b []byte) []T {
	var t T
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/int(unsafe.Sizeof(t)))
}

type integers interface {
	int8 | uint8 | int16 | uint16 | int32 | uint32 | int64 | uint64
}

func integer[T integers](r op.ReduceOp) func(a, b T) T {
	switch r {
	case op.BAnd:
		return func(a, b T) T { return a & b }
	case op.BOr:
		return func(a, b T) T { return a | b }
	case op.BXor:
		return func(a, b T) T { return a ^ b }
	}
	return ordered[T](r)
}

// ordered uses Go's min and max, which propagate NaN.
func ordered[T integers | float32 | float64](r op.ReduceOp) func(a, b T) T {
	switch r {
	case op.Min:
		return func(a, b T) T { return min(a, b) }
	case op.Max:
		return func(a, b T) T { return max(a, b) }
	}
	return number[T](r)
}

func number[T integers | float32 | float64 | complex64 | complex128](r op.ReduceOp) func(a, b T) T {
	switch r {
	case op.Sum:
		return func(a, b T) T { return a + b }
	case op.Product:
		return func(a, b T) T { return a * b }
	}
	return nil
}

// logical works on bytes. Any byte other than 0 is true, and the result is 0 or 1.
func logical(r op.ReduceOp) func(a, b uint8) uint8 {
	truth := func(f func(a, b bool) bool) func(a, b uint8) uint8 {
		return func(a, b uint8) uint8 {
			if f(a != 0, b != 0) {
				return 1
			}
			return 0
		}
	}
	switch r {
	case op.Sum, op.Max, op.BOr:
		return truth(func(a, b bool) bool { return a || b })
	case op.Product, op.Min, op.BAnd:
		return truth(func(a, b bool) bool { return a && b })
	case op.BXor:
		return truth(func(a, b bool) bool { return a != b })
	}
	return nil
}

package main

import (
	"math"

	"github.com/paddlempi/paddlempi/gocore/mpi"
	"github.com/paddlempi/paddlempi/gocore/op"
)

type integer interface {
	~int8 | ~uint8 | ~int16 | ~uint16 | ~int32 | ~uint32 | ~int64 | ~uint64
}

type real interface{ integer | ~float32 | ~float64 }

// fold reduces the contributions of all ranks to element i with f.
func fold[T any](size int, contribution func(rank, i int) T, i int, f func(a, b T) T) T {
	acc := contribution(0, i)
	for r := 1; r < size; r++ {
		acc = f(acc, contribution(r, i))
	}
	return acc
}

// reduces checks one reduce op of one dtype, out of place and in place.
func reduces[T comparable](w *world, r op.ReduceOp, d op.DType, contribution func(rank, i int) T, f func(a, b T) T) {
	const n = 5
	t, okType := w.TypeOf(d)
	o, okOp := w.OpOf(r, d)
	if !okType || !okOp {
		w.failf("%s of %s is not there", r, d)
		return
	}
	send, recv, expected := memory[T](n), memory[T](n), make([]T, n)
	for i := range send {
		send[i] = contribution(w.rank, i)
		expected[i] = fold(w.size, contribution, i, f)
	}
	what := r.String() + " of " + d.String()
	c := &mpi.Call{Fn: mpi.FnAllreduce, Comm: w.comm, SendBuf: at(send), RecvBuf: at(recv), RecvCount: n, RecvType: t, Op: o}
	if w.ok(what, w.Run(c, nil)) {
		wantAll(w, what, recv, expected)
	}
	c.InPlace, c.SendBuf, c.RecvBuf = true, nil, at(send)
	if w.both(what+" in place", c) {
		wantAll(w, what+" in place", send, expected)
	}
}

func integers[T integer](w *world, d op.DType) {
	// The sum of the first value wraps, and so does the product of the third.
	some := func(rank, i int) T { return []T{T(0) - T(100), 3, 16, T(rank), T(i + rank)}[i] }
	reals(w, d, some)
	reduces(w, op.BAnd, d, some, func(a, b T) T { return a & b })
	reduces(w, op.BOr, d, some, func(a, b T) T { return a | b })
	reduces(w, op.BXor, d, some, func(a, b T) T { return a ^ b })
}

func reals[T real](w *world, d op.DType, some func(rank, i int) T) {
	reduces(w, op.Sum, d, some, func(a, b T) T { return a + b })
	reduces(w, op.Product, d, some, func(a, b T) T { return a * b })
	reduces(w, op.Min, d, some, func(a, b T) T { return min(a, b) })
	reduces(w, op.Max, d, some, func(a, b T) T { return max(a, b) })
}

func reductions(w *world) {
	integers[int8](w, op.Int8)
	integers[uint8](w, op.UInt8)
	integers[int16](w, op.Int16)
	integers[uint16](w, op.UInt16)
	integers[int32](w, op.Int32)
	integers[uint32](w, op.UInt32)
	integers[int64](w, op.Int64)
	integers[uint64](w, op.UInt64)
	reals(w, op.Float32, func(rank, i int) float32 { return float32(rank+1) * float32(i-2) })
	reals(w, op.Float64, func(rank, i int) float64 { return float64(rank+1) * float64(i-2) })
	for _, r := range []op.ReduceOp{op.Avg, op.PremulSum} { // MPI sums; the caller scales
		reduces(w, r, op.Float32, func(rank, i int) float32 { return float32(rank + i) }, func(a, b float32) float32 { return a + b })
		reduces(w, r, op.Complex128, func(rank, i int) complex128 { return complex(float64(rank), float64(i)) },
			func(a, b complex128) complex128 { return a + b })
	}
	c64 := func(rank, i int) complex64 { return complex(float32(rank+1), float32(i-2)) }
	reduces(w, op.Sum, op.Complex64, c64, func(a, b complex64) complex64 { return a + b })
	reduces(w, op.Product, op.Complex64, c64, func(a, b complex64) complex64 { return a * b })
	c128 := func(rank, i int) complex128 { return complex(float64(rank+1), float64(i-2)) }
	reduces(w, op.Sum, op.Complex128, c128, func(a, b complex128) complex128 { return a + b })
	reduces(w, op.Product, op.Complex128, c128, func(a, b complex128) complex128 { return a * b })

	// Every byte but 0 is true.
	truth := func(rank, i int) uint8 { return []uint8{0, 1, uint8(rank % 2), 2, uint8(2 * (rank % 2))}[i] }
	b := func(v bool) uint8 {
		if v {
			return 1
		}
		return 0
	}
	or := func(x, y uint8) uint8 { return b(x != 0 || y != 0) }
	and := func(x, y uint8) uint8 { return b(x != 0 && y != 0) }
	if w.size > 1 { // with one rank MPI does not change the bytes
		for _, r := range []op.ReduceOp{op.Sum, op.Max, op.BOr} {
			reduces(w, r, op.Bool, truth, or)
		}
		for _, r := range []op.ReduceOp{op.Product, op.Min, op.BAnd} {
			reduces(w, r, op.Bool, truth, and)
		}
		reduces(w, op.BXor, op.Bool, truth, func(x, y uint8) uint8 { return b((x != 0) != (y != 0)) })
	}
	for _, d := range []op.DType{op.Float16, op.BFloat16, op.Float8E4M3FN, 0, 99} {
		if _, ok := w.OpOf(op.Sum, d); ok {
			w.failf("SUM of %s is there", d)
		}
	}
	if _, ok := w.OpOf(op.Max, op.Complex64); ok {
		w.failf("MAX of complex64 is there")
	}
}

// nans puts a NaN on every rank in turn. MIN and MAX must keep it in any order.
func nans(w *world) {
	t, _ := w.TypeOf(op.Float32)
	t64, _ := w.TypeOf(op.Float64)
	for _, r := range []op.ReduceOp{op.Min, op.Max} {
		o, _ := w.OpOf(r, op.Float32)
		o64, _ := w.OpOf(r, op.Float64)
		for owner := 0; owner < w.size; owner++ {
			a, b := filled(1, float32(w.rank)), filled(1, float64(w.rank))
			if w.rank == owner {
				a[0], b[0] = float32(math.NaN()), math.NaN()
			}
			w.ok("NaN", w.Run(&mpi.Call{Fn: mpi.FnAllreduce, Comm: w.comm, InPlace: true, RecvBuf: at(a), RecvCount: 2, RecvType: t, Op: o}, nil))
			w.ok("NaN", w.Run(&mpi.Call{Fn: mpi.FnAllreduce, Comm: w.comm, InPlace: true, RecvBuf: at(b), RecvCount: 2, RecvType: t64, Op: o64}, nil))
			if a[0] == a[0] || b[0] == b[0] {
				w.failf("%s with a NaN on rank %d: %v and %v", r, owner, a, b)
			}
			if a[1] != a[1] || b[1] != b[1] {
				w.failf("%s beside a NaN on rank %d: %v and %v", r, owner, a, b)
			}
		}
	}
}

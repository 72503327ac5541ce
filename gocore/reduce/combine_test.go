package reduce

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
)

type integer interface {
	~int8 | ~uint8 | ~int16 | ~uint16 | ~int32 | ~uint32 | ~int64 | ~uint64
}

func foldInt[T integer](a, b T, r op.ReduceOp) T {
	switch r {
	case op.Product:
		return a * b
	case op.Min:
		return min(a, b)
	case op.Max:
		return max(a, b)
	case op.BAnd:
		return a & b
	case op.BOr:
		return a | b
	case op.BXor:
		return a ^ b
	}
	return a + b
}

func foldFloat[T float32 | float64](a, b T, r op.ReduceOp) T {
	switch r {
	case op.Product:
		return a * b
	case op.Min:
		return min(a, b) // Go's min and max return NaN if either is NaN
	case op.Max:
		return max(a, b)
	}
	return a + b
}

func foldBool(a, b bool, r op.ReduceOp) bool {
	switch r {
	case op.Product, op.Min, op.BAnd:
		return a && b
	case op.BXor:
		return a != b
	}
	return a || b
}

// checkCombine combines n random elements and compares each with want.
func checkCombine[T any](t *testing.T, d op.DType, n, skip int, value func() T, want func(a, b T, r op.ReduceOp) T, same func(a, b T) bool) {
	t.Helper()
	require.Equal(t, d.Size(), int(unsafe.Sizeof(*new(T))))
	for r := op.Sum; r.Valid(); r++ {
		dst, src := outside[T](t, n, skip), outside[T](t, n, skip/2)
		before := make([]T, n)
		for i := range dst {
			dst[i], src[i] = value(), value()
			before[i] = dst[i]
		}
		err := Combine(ptr(dst), ptr(src), int64(n), d, r)
		if !op.Defined(r, d) {
			assert.Equal(t, status.Type, status.CodeOf(err), "%v of %v", r, d)
			continue
		}
		require.NoError(t, err)
		for i := range dst {
			if w := want(before[i], src[i], r); !same(dst[i], w) {
				t.Fatalf("%v of %v: %v and %v gave %v, want %v", r, d, before[i], src[i], dst[i], w)
			}
		}
	}
}

func checkInt[T integer](t *testing.T, rng *rand.Rand, d op.DType, n int) {
	checkCombine(t, d, n, n%5, func() T { return T(rng.Uint64()) }, foldInt[T], func(a, b T) bool { return a == b })
}

// sameFloat compares as numbers, so that 0 equals -0: MIN and MAX of the two may return either.
func sameFloat[T float32 | float64](a, b T) bool { return cmp.Compare(a, b) == 0 }

func number[T float32 | float64](rng *rand.Rand) T {
	switch rng.IntN(16) {
	case 0:
		return T(math.NaN())
	case 1:
		return T(math.Inf(1 - 2*rng.IntN(2)))
	case 2:
		return 0
	case 3:
		return T(math.SmallestNonzeroFloat32) * T(rng.IntN(9)-4)
	}
	return T(rng.NormFloat64())
}

func TestCombine(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	for n := 0; n <= 67; n++ {
		checkInt[int8](t, rng, op.Int8, n)
		checkInt[uint8](t, rng, op.UInt8, n)
		checkInt[int16](t, rng, op.Int16, n)
		checkInt[uint16](t, rng, op.UInt16, n)
		checkInt[int32](t, rng, op.Int32, n)
		checkInt[uint32](t, rng, op.UInt32, n)
		checkInt[int64](t, rng, op.Int64, n)
		checkInt[uint64](t, rng, op.UInt64, n)
		checkCombine(t, op.Float32, n, n%5, func() float32 { return number[float32](rng) }, foldFloat[float32], sameFloat[float32])
		checkCombine(t, op.Float64, n, n%5, func() float64 { return number[float64](rng) }, foldFloat[float64], sameFloat[float64])
		checkCombine(t, op.Complex64, n, n%5,
			func() complex64 { return complex(number[float32](rng), number[float32](rng)) },
			func(a, b complex64, r op.ReduceOp) complex64 {
				if r != op.Product {
					return complex(real(a)+real(b), imag(a)+imag(b))
				}
				return complex(float32(real(a)*real(b))-float32(imag(a)*imag(b)), float32(real(a)*imag(b))+float32(imag(a)*real(b)))
			},
			func(a, b complex64) bool { return sameFloat(real(a), real(b)) && sameFloat(imag(a), imag(b)) })
		checkCombine(t, op.Complex128, n, n%5,
			func() complex128 { return complex(number[float64](rng), number[float64](rng)) },
			func(a, b complex128, r op.ReduceOp) complex128 {
				if r != op.Product {
					return complex(real(a)+real(b), imag(a)+imag(b))
				}
				return complex(float64(real(a)*real(b))-float64(imag(a)*imag(b)), float64(real(a)*imag(b))+float64(imag(a)*real(b)))
			},
			func(a, b complex128) bool { return sameFloat(real(a), real(b)) && sameFloat(imag(a), imag(b)) })
		// A bool that is neither 0 nor 1 in memory is true, and becomes 1.
		checkCombine(t, op.Bool, n, n%5, func() uint8 { return uint8(rng.IntN(3) * 127) },
			func(a, b uint8, r op.ReduceOp) uint8 {
				if foldBool(a != 0, b != 0, r) {
					return 1
				}
				return 0
			}, func(a, b uint8) bool { return a == b })
		for _, d := range types16 {
			checkCombine(t, d, n, n%5, func() uint16 { return formatOf(d).encode(number[float64](rng)) },
				func(a, b uint16, r op.ReduceOp) uint16 {
					if r == op.Avg || r == op.PremulSum {
						r = op.Sum
					}
					return reference16([][]uint16{{a}, {b}}, 0, d, r, nil)
				}, func(a, b uint16) bool { return a == b })
		}
	}
}

func TestCombineRefuses(t *testing.T) {
	b := outside[byte](t, 1, 0)
	for d := op.Float8E4M3FN; d.Valid(); d++ {
		assert.Equal(t, status.Type, status.CodeOf(Combine(ptr(b), ptr(b), 1, d, op.Sum)), "%v", d)
	}
	assert.Equal(t, status.Type, status.CodeOf(Combine(ptr(b), ptr(b), 1, 0, op.Sum)))
	assert.Equal(t, status.Type, status.CodeOf(Combine(ptr(b), ptr(b), 1, op.Bool, 0)))
	assert.Equal(t, status.Argument, status.CodeOf(Combine(ptr(b), ptr(b), -1, op.Bool, op.Sum)))
}

func checkScale[T float32 | float64](t *testing.T, rng *rand.Rand, d op.DType, n int) {
	t.Helper()
	reals := n * d.Size() / int(unsafe.Sizeof(T(0)))
	src, dst := outside[T](t, reals, 1), outside[T](t, reals, 0)
	for i := range src {
		src[i] = number[T](rng)
	}
	require.NoError(t, ScaleTo(ptr(dst), ptr(src), int64(n), d, 0.3))
	for i := range dst {
		require.True(t, sameFloat(src[i]*T(0.3), dst[i]), "%v %v", d, src[i])
	}
	copy(dst, src)
	require.NoError(t, Scale(ptr(dst), int64(n), d, -2))
	for i := range dst {
		require.True(t, sameFloat(src[i]*-2, dst[i]), "%v %v", d, src[i])
	}
	copy(dst, src)
	require.NoError(t, Divide(ptr(dst), int64(n), d, 3))
	for i := range dst {
		require.True(t, sameFloat(src[i]/3, dst[i]), "%v %v", d, src[i])
	}
}

func TestScaleAndDivide(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	for n := 0; n <= 67; n++ {
		checkScale[float32](t, rng, op.Float32, n)
		checkScale[float64](t, rng, op.Float64, n)
		checkScale[float32](t, rng, op.Complex64, n)
		checkScale[float64](t, rng, op.Complex128, n)
		for _, d := range types16 {
			p, before := outside[uint16](t, n, 1), make([]uint16, n)
			fill(rng, p, d)
			copy(before, p)
			f := formatOf(d)
			require.NoError(t, Scale(ptr(p), int64(n), d, 0.3))
			for i := range p {
				require.Equal(t, f.encode(float64(float32(f.decode(before[i]))*float32(0.3))), p[i])
			}
			copy(p, before)
			require.NoError(t, Divide(ptr(p), int64(n), d, 3))
			for i := range p {
				require.Equal(t, f.encode(float64(float32(f.decode(before[i]))/3)), p[i])
			}
		}
	}
}

func checkDivide[T int8 | uint8 | int16 | uint16 | int32 | uint32 | int64 | uint64](t *testing.T, rng *rand.Rand, d op.DType, n int) {
	p := outside[T](t, n, 1)
	before := make([]T, n)
	for i := range p {
		p[i] = T(rng.Uint64())
	}
	copy(before, p)
	require.NoError(t, Divide(ptr(p), int64(n), d, 3))
	for i := range p {
		require.Equal(t, before[i]/3, p[i], "%v / 3, toward zero", before[i])
	}
}

func TestDivideIntegers(t *testing.T) {
	rng := rand.New(rand.NewPCG(9, 10))
	for n := 0; n <= 67; n++ {
		checkDivide[int8](t, rng, op.Int8, n)
		checkDivide[uint8](t, rng, op.UInt8, n)
		checkDivide[int16](t, rng, op.Int16, n)
		checkDivide[uint16](t, rng, op.UInt16, n)
		checkDivide[int32](t, rng, op.Int32, n)
		checkDivide[uint32](t, rng, op.UInt32, n)
		checkDivide[int64](t, rng, op.Int64, n)
		checkDivide[uint64](t, rng, op.UInt64, n)
	}
	p := outside[int8](t, 2, 0) // a divisor that the type cannot represent
	p[0], p[1] = 127, -128
	require.NoError(t, Divide(ptr(p), 2, op.Int8, 1000))
	assert.Equal(t, []int8{0, 0}, p[:2])
}

func TestScaleRefuses(t *testing.T) {
	p := outside[int64](t, 1, 0)
	p[0] = 9
	assert.Equal(t, status.Type, status.CodeOf(Scale(ptr(p), 1, op.Int64, 2)))
	assert.Equal(t, status.Type, status.CodeOf(Divide(ptr(p), 1, op.Bool, 2)))
	assert.Equal(t, status.Argument, status.CodeOf(Scale(ptr(p), -1, op.Float64, 2)))
	assert.Equal(t, status.Argument, status.CodeOf(Divide(ptr(p), 1, op.Float64, 0)))
	assert.Equal(t, int64(9), p[0])
	assert.Contains(t, []string{"portable", "avx2", "avx512", "neon"}, ISA())
}

func BenchmarkCombine(b *testing.B) {
	const bytes = 4 << 20
	for _, d := range []op.DType{op.Bool, op.Int32, op.BFloat16, op.Float32, op.Float64, op.Complex64} {
		for _, r := range []op.ReduceOp{op.Sum, op.Product, op.Max} {
			if !op.Defined(r, d) {
				continue
			}
			b.Run(fmt.Sprintf("%v/%v", d, r), func(b *testing.B) {
				dst, src := outside[byte](b, bytes, 0), outside[byte](b, bytes, 0)
				clear(dst)
				clear(src)
				b.SetBytes(3 * bytes)
				for b.Loop() {
					_ = Combine(ptr(dst), ptr(src), bytes/int64(d.Size()), d, r)
				}
			})
		}
	}
}

package reduce

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
)

var types16 = []op.DType{op.Float16, op.BFloat16}

// outside returns n elements of T outside the Go heap, skip elements after the start of a cache
// line.
func outside[T any](t testing.TB, n, skip int) []T {
	size := int(unsafe.Sizeof(*new(T)))
	p, err := mem.Alloc(int64((n + skip + 1) * size))
	require.NoError(t, err)
	t.Cleanup(func() { mem.Free(p) })
	return unsafe.Slice((*T)(unsafe.Add(p, skip*size)), n)
}

func ptr[T any](s []T) unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(s)) }

func pointers(srcs [][]uint16) []unsafe.Pointer {
	var ps []unsafe.Pointer
	for _, s := range srcs {
		ps = append(ps, ptr(s))
	}
	return ps
}

// specials are the edge cases of conversion and rounding in both formats.
var specials = []uint16{0, 0x8000, 1, 0x8001, 0x03ff, 0x0400, 0x007f, 0x0080, 0x7bff, 0xfbff, 0x7c00, 0xfc00,
	0x7c01, 0x7e00, 0xfe01, 0x7f7f, 0xff7f, 0x7f80, 0xff80, 0x7f81, 0x7fc0, 0xffc1, 0x3c00, 0x3f80, 0x7fff}

// fill gives a quarter of the elements any bit pattern, an eighth a special value, and the others
// numbers of similar size, whose sums need rounding.
func fill(rng *rand.Rand, s []uint16, d op.DType) {
	for i := range s {
		switch k := rng.IntN(8); {
		case k < 2:
			s[i] = uint16(rng.Uint32())
		case k == 2:
			s[i] = specials[rng.IntN(len(specials))]
		default:
			s[i] = formatOf(d).encode(rng.NormFloat64() * 4)
		}
	}
}

// available returns the instruction sets that this processor has. On x86-64 the better ones have the
// others; on aarch64 there is one.
func available() []int {
	switch isaNames[best] {
	case "neon":
		return []int{0, best}
	case "avx512":
		return []int{0, best - 1, best}
	case "avx2":
		return []int{0, best}
	}
	return []int{0}
}

// anyISA returns one of them.
func anyISA(rng *rand.Rand) int32 { return int32(available()[rng.IntN(len(available()))]) }

// eachISA runs f for every instruction set that this processor has.
func eachISA(t *testing.T, f func(t *testing.T, isa int)) {
	for _, isa := range available() {
		t.Run(isaNames[isa], func(t *testing.T) { f(t, isa) })
	}
}

type case16 struct {
	d     op.DType
	r     op.ReduceOp
	nsrc  int
	n     int
	skip  int // elements by which the buffers are not aligned
	alias int // the source that is dst, or -1
}

func (c case16) check(t *testing.T, rng *rand.Rand, isa int) {
	t.Helper()
	srcs := make([][]uint16, c.nsrc)
	before := make([][]uint16, c.nsrc)
	var scales []float64
	for i := range srcs {
		srcs[i] = outside[uint16](t, c.n+1, (c.skip+i)%5)[:c.n]
		fill(rng, srcs[i], c.d)
		before[i] = append([]uint16{}, srcs[i]...)
		if c.r == op.PremulSum {
			scales = append(scales, rng.NormFloat64())
		}
	}
	room := outside[uint16](t, c.n+2, c.skip)
	dst := room[1 : c.n+1]
	room[0], room[c.n+1] = 0xabcd, 0xabcd
	if c.alias >= 0 {
		dst = srcs[c.alias]
	}
	divisor := float32(1)
	if c.r == op.Avg {
		divisor = float32(c.nsrc)
	}
	reduce16(isa, ptr(dst), pointers(srcs), int64(c.n), c.d, kernelOp[c.r], scales, divisor)
	for i := range dst {
		if want := reference16(before, i, c.d, c.r, scales); dst[i] != want {
			var in []float64
			for _, s := range before {
				in = append(in, formatOf(c.d).decode(s[i]))
			}
			t.Fatalf("%+v, element %d of %v (factors %v): %#04x (%v), want %#04x (%v)", c, i, in, scales,
				dst[i], formatOf(c.d).decode(dst[i]), want, formatOf(c.d).decode(want))
		}
	}
	assert.Equal(t, []uint16{0xabcd, 0xabcd}, []uint16{room[0], room[c.n+1]}, "written outside dst")
	for i, s := range srcs {
		if i != c.alias {
			require.Equal(t, before[i], s, "a source was written")
		}
	}
}

func TestReduce16EveryTailAndAlignment(t *testing.T) {
	eachISA(t, func(t *testing.T, isa int) {
		rng := rand.New(rand.NewPCG(1, 2))
		for n := 0; n <= 67; n++ {
			for _, d := range types16 {
				for _, r := range []op.ReduceOp{op.Sum, op.Product, op.Min, op.Max, op.Avg, op.PremulSum} {
					nsrc := 1 + rng.IntN(5)
					case16{d, r, nsrc, n, n % 7, rng.IntN(nsrc+1) - 1}.check(t, rng, isa)
				}
			}
		}
	})
}

func TestReduce16ManySourcesAndBlocks(t *testing.T) {
	eachISA(t, func(t *testing.T, isa int) {
		rng := rand.New(rand.NewPCG(3, 4))
		for _, d := range types16 {
			for _, r := range []op.ReduceOp{op.Sum, op.Product, op.Min, op.Max, op.Avg, op.PremulSum} {
				for _, nsrc := range []int{1, 2, 3, 16, 64, 65, 131} {
					case16{d, r, nsrc, 2100 + rng.IntN(64), 3, -1}.check(t, rng, isa)
				}
			}
		}
	})
}

// The conversion to float32 and back keeps every value of both formats.
func TestReduce16ConvertsEveryValue(t *testing.T) {
	eachISA(t, func(t *testing.T, isa int) {
		for _, d := range types16 {
			f := formatOf(d)
			src, dst := outside[uint16](t, 1<<16, 0), outside[uint16](t, 1<<16, 0)
			for i := range src {
				src[i] = uint16(i)
			}
			reduce16(isa, ptr(dst), pointers([][]uint16{src}), 1<<16, d, kernelOp[op.Sum], nil, 1)
			for i := range dst {
				want := uint16(i)
				if math.IsNaN(f.decode(want)) {
					want = f.encode(math.NaN())
				}
				if dst[i] != want {
					t.Fatalf("%v %#04x became %#04x", d, i, dst[i])
				}
			}
		}
	})
}

// The factors give products exactly at the middle between two neighbours, just below it and just
// above it, and products that are subnormal or beyond the largest number.
func TestReduce16RoundsToNearestEven(t *testing.T) {
	src, dst := outside[uint16](t, 1<<16, 0), outside[uint16](t, 1<<16, 0)
	for i := range src {
		src[i] = uint16(i)
	}
	want := make([]uint16, len(src))
	for _, d := range types16 {
		for _, factor := range []float64{0.5, 1.5, 0.75, 1 + 0x1p-11, 1 - 0x1p-11, 1 + 0x1p-8, 1 + 0x1p-9, 1 - 0x1p-24, 0x1p-20, 0x1p20, -3, 0} {
			for i := range want {
				want[i] = reference16([][]uint16{src}, i, d, op.PremulSum, []float64{factor})
			}
			eachISA(t, func(t *testing.T, isa int) {
				scale16(isa, ptr(dst), ptr(src), 1<<16, d, factor)
				for i := range dst {
					if dst[i] != want[i] {
						t.Fatalf("%v %#04x times %v: %#04x, want %#04x", d, i, factor, dst[i], want[i])
					}
				}
			})
		}
	}
}

func TestReduce16RoundsOnceOnly(t *testing.T) {
	// In bfloat16 256 + 1 is 256. If every step rounded, the sum of 1024 ones would not grow beyond
	// 256.
	d := outside[uint16](t, 1, 0)
	var srcs []unsafe.Pointer
	big := outside[uint16](t, 1, 0)
	big[0] = brain.encode(256)
	srcs = append(srcs, ptr(big))
	one := outside[uint16](t, 1, 0)
	one[0] = brain.encode(1)
	for range 1024 {
		srcs = append(srcs, ptr(one))
	}
	require.NoError(t, Reduce16(ptr(d), srcs, 1, op.BFloat16, op.Sum, nil))
	assert.Equal(t, 1280.0, brain.decode(d[0]))
}

func TestReduce16RefusesWithoutTouching(t *testing.T) {
	d := outside[uint16](t, 1, 0)
	d[0] = 7
	p := []unsafe.Pointer{ptr(d)}
	for _, c := range []struct {
		srcs   []unsafe.Pointer
		n      int64
		d      op.DType
		r      op.ReduceOp
		scales []float64
		code   status.Code
	}{
		{p, 1, op.Float32, op.Sum, nil, status.Type},
		{p, 1, op.Float16, op.BAnd, nil, status.Type},
		{nil, 1, op.Float16, op.Sum, nil, status.Argument},
		{p, -1, op.Float16, op.Sum, nil, status.Argument},
		{p, 1, op.Float16, op.PremulSum, nil, status.Argument},
		{p, 1, op.Float16, op.PremulSum, []float64{1, 2}, status.Argument},
		{p, 1, op.Float16, op.Sum, []float64{2}, status.Argument},
	} {
		err := Reduce16(ptr(d), c.srcs, c.n, c.d, c.r, c.scales)
		assert.Equal(t, c.code, status.CodeOf(err), "%+v: %v", c, err)
	}
	assert.Equal(t, uint16(7), d[0])
}

func BenchmarkReduce16(b *testing.B) {
	for _, nsrc := range []int{2, 4, 16} {
		for _, n := range []int{16 << 10, 4 << 20} {
			for _, d := range types16 {
				for _, isa := range available() {
					b.Run(fmt.Sprintf("%v/%dx%dKiB/%s", d, nsrc, n>>9, isaNames[isa]), func(b *testing.B) {
						var srcs []unsafe.Pointer
						for range nsrc {
							s := outside[uint16](b, n, 0)
							fill(rand.New(rand.NewPCG(1, 1)), s, d)
							srcs = append(srcs, ptr(s))
						}
						dst := outside[uint16](b, n, 0)
						b.SetBytes(int64(2 * n * (nsrc + 1))) // bytes read and written
						for b.Loop() {
							reduce16(isa, ptr(dst), srcs, int64(n), d, kernelOp[op.Sum], nil, 1)
						}
					})
				}
			}
		}
	}
}

// BenchmarkMemcpy is what the other benchmarks are compared with: bytes read and written.
func BenchmarkMemcpy(b *testing.B) {
	for _, n := range []int{32 << 10, 8 << 20, 128 << 20} {
		b.Run(fmt.Sprintf("%dKiB", n>>10), func(b *testing.B) {
			src, dst := outside[byte](b, n, 0), outside[byte](b, n, 0)
			clear(src)
			b.SetBytes(int64(2 * n))
			for b.Loop() {
				mem.Copy(ptr(dst), ptr(src), int64(n))
			}
		})
	}
}

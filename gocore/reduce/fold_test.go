package reduce

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/reduce/fpmode"
)

// foldCase is a reduction of several sources into several destinations.
type foldCase struct {
	d          op.DType
	r          op.ReduceOp
	nsrc, ndst int
	n, skip    int
	alias      int // destination i is source alias+i, as far as there are sources; -1 for none
	scale      float64
}

const foldGuard = 16 // bytes around every destination that must not change

// folded returns what Combine, Scale and Divide make of the sources, in their order. These are tested
// against a reference of their own.
func (c foldCase) folded(t *testing.T, srcs [][]byte) []byte {
	size := c.d.Size()
	if c.nsrc == 1 && c.r != op.PremulSum {
		return srcs[0] // a NaN keeps its bits, too
	}
	if Is16(c.d) {
		rows := make([][]uint16, c.nsrc)
		for i, s := range srcs {
			rows[i] = unsafe.Slice((*uint16)(ptr(s)), c.n)
		}
		var scales []float64
		if c.r == op.PremulSum {
			for range srcs {
				scales = append(scales, c.scale)
			}
		}
		out := make([]uint16, c.n+1)
		for i := range c.n {
			out[i] = reference16(rows, i, c.d, c.r, scales)
		}
		return unsafe.Slice((*byte)(ptr(out)), c.n*size)
	}
	acc, next := outside[byte](t, c.n*size, 0), outside[byte](t, c.n*size, 0)
	for i, s := range srcs {
		copy(next, s)
		if c.r == op.PremulSum {
			require.NoError(t, Scale(ptr(next), int64(c.n), c.d, c.scale))
		}
		if i == 0 {
			copy(acc, next)
		} else {
			require.NoError(t, Combine(ptr(acc), ptr(next), int64(c.n), c.d, c.r))
		}
	}
	if c.r == op.Avg {
		require.NoError(t, Divide(ptr(acc), int64(c.n), c.d, c.nsrc))
	}
	return acc
}

// bytesOf returns n elements of every kind: numbers, special ones, and random bits.
func bytesOf(t *testing.T, rng *rand.Rand, d op.DType, n, skip int) []byte {
	b := outside[byte](t, n*d.Size()+d.Size(), skip*d.Size())[:n*d.Size()]
	for i := 0; i < n*d.Size(); i++ {
		b[i] = byte(rng.Uint32())
	}
	switch d {
	case op.Float16, op.BFloat16:
		fill(rng, unsafe.Slice((*uint16)(ptr(b)), n), d)
	case op.Float32, op.Complex64:
		for i, v := 0, unsafe.Slice((*float32)(ptr(b)), len(b)/4); i < len(v); i++ {
			v[i] = number[float32](rng)
		}
	case op.Float64, op.Complex128:
		for i, v := 0, unsafe.Slice((*float64)(ptr(b)), len(b)/8); i < len(v); i++ {
			v[i] = number[float64](rng)
		}
	}
	return b
}

// sameValues compares bit for bit, but for the payload of a NaN and the sign of the 0 that is the
// least or the greatest of two zeros.
func (c foldCase) sameValues(a, b []byte) bool {
	switch c.d {
	case op.Float32, op.Complex64:
		x, y := unsafe.Slice((*float32)(ptr(a)), len(a)/4), unsafe.Slice((*float32)(ptr(b)), len(b)/4)
		for i := range x {
			if math.Float32bits(x[i]) != math.Float32bits(y[i]) && (x[i] == x[i] || y[i] == y[i]) {
				return false
			}
		}
		return true
	case op.Float64, op.Complex128:
		x, y := unsafe.Slice((*float64)(ptr(a)), len(a)/8), unsafe.Slice((*float64)(ptr(b)), len(b)/8)
		for i := range x {
			if math.Float64bits(x[i]) != math.Float64bits(y[i]) && (x[i] == x[i] || y[i] == y[i]) {
				return false
			}
		}
		return true
	}
	return string(a) == string(b)
}

// check carries the case out on a thread with the settings mode (package fpmode).
func (c foldCase) check(t *testing.T, rng *rand.Rand, mode uint64) {
	t.Helper()
	bytes := c.n * c.d.Size()
	srcs := make([][]byte, c.nsrc)
	before := make([][]byte, c.nsrc)
	var from, to []unsafe.Pointer
	for i := range srcs {
		srcs[i] = bytesOf(t, rng, c.d, c.n, (c.skip+i)%5)
		before[i] = outside[byte](t, bytes, 0)
		copy(before[i], srcs[i])
		from = append(from, ptr(srcs[i]))
	}
	rooms := make([][]byte, c.ndst)
	results := make([][]byte, c.ndst)
	aliased := map[int]bool{}
	for i := range rooms {
		rooms[i] = outside[byte](t, bytes+2*foldGuard, 0)
		for k := range rooms[i] {
			rooms[i][k] = 0xA5
		}
		results[i] = rooms[i][foldGuard : foldGuard+bytes]
		if k := c.alias + i; c.alias >= 0 && k < c.nsrc {
			results[i], aliased[k] = srcs[k], true
		}
		to = append(to, ptr(results[i]))
	}
	want := c.folded(t, before)
	fold := NewFold(c.d, c.r, c.nsrc, c.scale)
	fold.isa = anyISA(rng) // every instruction set gives the same values
	require.Equal(t, mode, fold.runIn(mode, to, from, int64(c.n)), "%+v: the caller's settings were not put back", c)
	for i := range results {
		if !c.sameValues(want, results[i]) {
			k := 0
			for c.sameValues(want[:k*c.d.Size()], results[i][:k*c.d.Size()]) {
				k++
			}
			from := (k - 1) * c.d.Size()
			t.Fatalf("%+v, destination %d, element %d: %x, want %x", c, i, k-1, results[i][from:][:c.d.Size()], want[from:][:c.d.Size()])
		}
		for k, b := range rooms[i] {
			if (k < foldGuard || k >= foldGuard+bytes) && b != 0xA5 {
				t.Fatalf("%+v: written outside destination %d", c, i)
			}
		}
	}
	for i := range srcs {
		if !aliased[i] {
			require.Equal(t, before[i], srcs[i], "%+v: source %d was written", c, i)
		}
	}
}

// runIn is Run with several destinations, on a thread with the settings mode. It returns the settings
// afterwards.
func (f *Fold) runIn(mode uint64, dst, src []unsafe.Pointer, n int64) (after uint64) {
	return fpmode.Fold(Folder(), unsafe.Pointer(f), dst, src, n, mode)
}

// foldLengths are counts of elements around vectors and cache lines. The long ones, around pages and
// the block of 8 KiB, take turns.
func foldLengths(d op.DType, turn int) (list []int) {
	for n := range 18 {
		list = append(list, n)
	}
	block := 8192 / d.Size()
	long := []int{4095, 4096, 4097, block - 1, block, block + 1, 2*block + 3}
	return append(list, 31, 32, 33, 63, 64, 65, long[turn%len(long)])
}

func TestFold(t *testing.T) {
	rng := rand.New(rand.NewPCG(11, 12))
	turn, cases := 0, 0
	for d := op.DType(1); d.Valid(); d++ {
		for r := op.Sum; r.Valid(); r++ {
			if !op.Defined(r, d) {
				continue
			}
			for _, nsrc := range []int{1, 2, 3, 4, 5, 8} {
				turn++
				for i, n := range foldLengths(d, turn) {
					ndst := []int{1, nsrc, 1 + rng.IntN(nsrc)}[i%3]
					alias := []int{-1, 0, rng.IntN(nsrc)}[(i+turn)%3]
					foldCase{d, r, nsrc, ndst, n, i % 4, alias, 0.3}.check(t, rng, fpmode.Usual)
					cases++
				}
			}
		}
	}
	t.Logf("%d cases", cases)
	assert.Greater(t, cases, 5000)
}

// The sum of two ranks has a kernel of its own.
func TestFoldOfPairs(t *testing.T) {
	rng := rand.New(rand.NewPCG(13, 14))
	for _, d := range []op.DType{op.Float32, op.Float64} {
		for n := range 140 {
			for _, alias := range []int{-1, 0, 1} {
				foldCase{d, op.Sum, 2, 2, n, n % 4, alias, 1}.check(t, rng, fpmode.Usual)
			}
		}
	}
}

// A copy moves bytes as they are, to several places, one of which may be the source.
func TestFoldCopies(t *testing.T) {
	rng := rand.New(rand.NewPCG(15, 16))
	fold := CopyBytes()
	for _, n := range []int{0, 1, 63, 4097, 8191, 8192, 32 << 10, 32<<10 + 1, 100_003} {
		src := bytesOf(t, rng, op.UInt8, n, 1)
		before := append([]byte{}, src...)
		a, b := outside[byte](t, n, 3), outside[byte](t, n, 0)
		fold.runIn(fpmode.Usual, []unsafe.Pointer{ptr(a), ptr(src), ptr(b)}, []unsafe.Pointer{ptr(src)}, int64(n))
		for _, got := range [][]byte{a, src, b} {
			require.True(t, string(before) == string(got), "%d bytes", n)
		}
	}
}

// The caller may have subnormal numbers flushed to zero (torch.set_flush_denormal), or another
// rounding. The result has the same bits, and the caller's settings are put back.
func TestFoldHasItsOwnArithmetic(t *testing.T) {
	rng := rand.New(rand.NewPCG(17, 18))
	for name, mode := range fpmode.Odd {
		t.Run(name, func(t *testing.T) {
			// The settings do what their name says: else this would test nothing.
			require.NotEqual(t, fpmode.Sample(fpmode.Usual), fpmode.Sample(mode))
			for d := op.DType(1); d.Valid(); d++ {
				for _, r := range []op.ReduceOp{op.Sum, op.Avg, op.PremulSum, op.Min} {
					if op.Defined(r, d) {
						for _, nsrc := range []int{1, 2, 3} {
							foldCase{d, r, nsrc, nsrc, 1000, 0, -1, 0.3}.check(t, rng, mode)
						}
					}
				}
			}
			// Subnormal numbers, exactly.
			tiny := math.Float32frombits(3)
			for _, ndst := range []int{1, 2} {
				a, b, out := outside[float32](t, 65, 0), outside[float32](t, 65, 0), outside[float32](t, 65, 0)
				for i := range a {
					a[i], b[i] = tiny, math.Float32frombits(uint32(i))
				}
				to := []unsafe.Pointer{ptr(out), ptr(a)}[:ndst]
				fold := NewFold(op.Float32, op.Sum, 2, 1)
				fold.runIn(mode, to, []unsafe.Pointer{ptr(a), ptr(b)}, 65)
				for i := range out {
					require.Equal(t, uint32(3+i), math.Float32bits(out[i]), "%d destinations", ndst)
				}
			}
		})
	}
}

// AVG of integers is rounded toward zero, and their sum wraps.
func TestFoldOfIntegers(t *testing.T) {
	for _, c := range []struct {
		r    op.ReduceOp
		in   []int8
		want int8
	}{
		{op.Avg, []int8{-3, -4}, -3}, {op.Avg, []int8{3, 4}, 3}, {op.Avg, []int8{-1, 0, 0}, 0},
		{op.Avg, []int8{127, 1}, -64}, {op.Sum, []int8{127, 1}, -128}, {op.Product, []int8{64, 2, 1}, -128},
		{op.Avg, []int8{-7}, -7},
	} {
		var from []unsafe.Pointer
		for _, v := range c.in {
			s := outside[int8](t, 1, 0)
			s[0] = v
			from = append(from, ptr(s))
		}
		out := outside[int8](t, 1, 0)
		fold := NewFold(op.Int8, c.r, len(c.in), 1)
		fold.Run(ptr(out), from, 1)
		assert.Equal(t, c.want, out[0], fmt.Sprint(c.r, c.in))
	}
}

// Partial sums of 16-bit floats are of type float32. Their sum, rounded once, has the bits of a sum of all sources.
func TestFoldOfPartialSums(t *testing.T) {
	rng := rand.New(rand.NewPCG(19, 20))
	for _, d := range []op.DType{op.Float16, op.BFloat16} {
		for r := op.Sum; r.Valid(); r++ {
			if !op.Defined(r, d) {
				continue
			}
			for turn, nsrc := range []int{1, 2, 3, 5} {
				for i, n := range foldLengths(d, turn) {
					partialSums(t, rng, foldCase{d, r, nsrc, 1 + i%3, n, i % 4, -1, 0.3})
				}
			}
		}
	}
}

// partialSums sums up the first sources, and widens each of the others. Then it sums up these rows.
func partialSums(t *testing.T, rng *rand.Rand, c foldCase) {
	sources := make([][]uint16, c.nsrc)
	var from []unsafe.Pointer
	var scales []float64
	for i := range sources {
		b := bytesOf(t, rng, c.d, c.n, (c.skip+i)%5)
		from = append(from, ptr(b))
		sources[i] = unsafe.Slice((*uint16)(ptr(b)), c.n)
		if c.r == op.PremulSum {
			scales = append(scales, c.scale)
		}
	}
	first := 1 + rng.IntN(c.nsrc)
	partial, last := c.r, c.r
	if c.r == op.Avg {
		partial = op.Sum
	}
	if c.r == op.PremulSum {
		last = op.Sum
	}
	var rows []unsafe.Pointer
	for at := 0; at < c.nsrc; {
		upTo := max(first, at+1)
		var to []unsafe.Pointer
		for i := range c.ndst {
			row := outside[float32](t, c.n, i)
			to = append(to, ptr(row))
		}
		fold := NewFold(c.d, partial, upTo-at, c.scale).To(op.Float32)
		fold.isa = anyISA(rng)
		fold.runIn(fpmode.Usual, to, from[at:upTo], int64(c.n))
		rows = append(rows, to[rng.IntN(c.ndst)])
		at = upTo
	}
	fold := NewFold(op.Float32, last, c.nsrc, 0).To(c.d)
	fold.isa = anyISA(rng)
	var to []unsafe.Pointer
	results := make([][]uint16, c.ndst)
	for i := range results {
		room := outside[uint16](t, c.n+2, i)
		room[0], room[c.n+1] = 0xA5A5, 0xA5A5
		results[i] = room
		to = append(to, ptr(room[1:]))
	}
	fold.runIn(fpmode.Usual, to, rows, int64(c.n))
	for k, room := range results {
		require.True(t, room[0] == 0xA5A5 && room[c.n+1] == 0xA5A5, "%+v: written outside destination %d", c, k)
		for i, got := range room[1 : c.n+1] {
			if want := reference16(sources, i, c.d, c.r, scales); got != want {
				t.Fatalf("%+v, destination %d, element %d, first %d: %x, want %x", c, k, i, first, got, want)
			}
		}
	}
}

package route

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/reduce"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// instructionSets are those that this processor has.
func instructionSets() []string {
	return map[string][]string{"portable": {"portable"}, "avx2": {"portable", "avx2"}, "avx512": {"portable", "avx2", "avx512"}}[reduce.ISA()]
}

// tensor copies values into memory outside the Go heap.
func tensor[T any](t testing.TB, d op.DType, values []T) (*op.Buf, []T) {
	t.Helper()
	var one T
	p, err := mem.Alloc(int64(len(values)) * int64(unsafe.Sizeof(one)))
	require.NoError(t, err)
	t.Cleanup(func() { mem.Free(p) })
	inside := unsafe.Slice((*T)(p), len(values))
	copy(inside, values)
	return &op.Buf{Data: p, Count: int64(len(values)), DType: d, DeviceType: op.DeviceCPU}, inside
}

func idsOf(t testing.TB, ids []int64) *op.Buf {
	b, _ := tensor(t, op.Int64, ids)
	return b
}

func newPlan(t testing.TB, ids *op.Buf, servers int, by By, offset int) *Plan {
	t.Helper()
	p, err := New(ids, servers, by, offset)
	require.NoError(t, err)
	t.Cleanup(p.Free)
	return p
}

// naive plans with a map.
func naive(ids []int64, owner func(int64) int, servers int) (unique []int64, starts []int, inverse []int32) {
	of := make([][]int64, servers)
	for _, id := range ids {
		s := owner(id)
		seen := false
		for _, other := range of[s] {
			seen = seen || other == id
		}
		if !seen {
			of[s] = append(of[s], id)
		}
	}
	place := map[int64]int32{}
	starts = []int{0}
	for _, mine := range of {
		for _, id := range mine {
			place[id] = int32(len(unique))
			unique = append(unique, id)
		}
		starts = append(starts, len(unique))
	}
	for _, id := range ids {
		inverse = append(inverse, place[id])
	}
	return unique, starts, inverse
}

func checkPlan(t *testing.T, p *Plan, ids []int64, owner func(int64) int, servers int) {
	t.Helper()
	unique, starts, inverse := naive(ids, owner, servers)
	require.Equal(t, len(unique), len(p.Unique))
	require.Equal(t, unique, append([]int64(nil), p.Unique...))
	require.Equal(t, starts, p.Starts)
	require.Equal(t, inverse, append([]int32(nil), p.Inverse...))
}

// batches are ids of many kinds, for tests.
func batches(random *rand.Rand) map[string][]int64 {
	draw := func(n int, id func() int64) []int64 {
		ids := make([]int64, n)
		for i := range ids {
			ids[i] = id()
		}
		return ids
	}
	same := make([]int64, 100)
	all := map[string][]int64{
		"none": nil, "one": {5}, "minus one": {-1}, "the same": same,
		"ends":      {math.MinInt64, math.MaxInt64, 0, -1, math.MinInt64, 1, math.MaxInt64},
		"different": draw(3000, func() int64 { return int64(random.Uint64()) }),
		"small":     draw(3000, func() int64 { return random.Int64N(300) - 150 }),
		"lines":     draw(2000, func() int64 { return random.Int64N(500) << 40 }),
	}
	for n := range 70 {
		all[fmt.Sprintf("%d", n)] = draw(n, func() int64 { return random.Int64N(40) - 20 })
	}
	for _, n := range []int{31, 32, 33, 64, 1024, 4096} { // powers of 2: the set is exactly half full
		next := int64(0)
		all[fmt.Sprintf("%d in a row", n)] = draw(n, func() int64 { next++; return next })
	}
	return all
}

func TestPlan(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for name, ids := range batches(random) {
		t.Run(name, func(t *testing.T) {
			for _, servers := range []int{1, 2, 3, 7, 64, 1000} {
				for _, offset := range []int{0, 1, -3, 5000} {
					checkPlan(t, newPlan(t, idsOf(t, ids), servers, ByModulo, offset), ids, func(id int64) int { return ByModulo.Owner(id, servers, offset) }, servers)
					checkPlan(t, newPlan(t, idsOf(t, ids), servers, ByHash, offset), ids, func(id int64) int { return Owner(id+int64(offset), servers) }, servers)
				}
			}
		})
	}
}

func TestInt32(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	narrow := []int32{math.MinInt32, math.MaxInt32, -1, 0}
	for range 2000 {
		narrow = append(narrow, int32(random.IntN(600)-300))
	}
	var wide []int64
	for _, id := range narrow {
		wide = append(wide, int64(id))
	}
	ids, _ := tensor(t, op.Int32, narrow)
	checkPlan(t, newPlan(t, ids, 5, ByHash, 0), wide, func(id int64) int { return Owner(id, 5) }, 5)
}

// The owners of these ids are a format: rows lie there in running jobs and in checkpoints.
func TestOwnerIsFixed(t *testing.T) {
	ids := []int64{0, 1, 2, 3, -1, 1000000007, math.MinInt64, math.MaxInt64}
	for servers, want := range map[int][]int{
		1:    {0, 0, 0, 0, 0, 0, 0, 0},
		2:    {0, 0, 1, 0, 1, 1, 0, 0},
		5:    {0, 1, 4, 0, 3, 4, 0, 1},
		1000: {0, 338, 858, 118, 706, 907, 147, 353},
	} {
		var have []int
		for _, id := range ids {
			have = append(have, Owner(id, servers))
		}
		assert.Equal(t, want, have, "%d servers", servers)
	}
}

// Servers get about as many ids each, whatever the pattern of the ids.
func TestOwnersAreEven(t *testing.T) {
	const n = 60000
	for _, step := range []int64{1, 2, 64, 1 << 32, -7} {
		for _, servers := range []int{2, 3, 16} {
			count := make([]int, servers)
			for i := range int64(n) {
				count[Owner(i*step, servers)]++
			}
			for s, c := range count {
				assert.InDelta(t, n/servers, c, n/float64(servers)*0.05, "step %d, server %d of %d", step, s, servers)
			}
		}
	}
}

func TestOffset(t *testing.T) {
	assert.Equal(t, 1, ByModulo.Owner(3, 2, 0))
	assert.Equal(t, 0, ByModulo.Owner(3, 2, 1))
	assert.Equal(t, 2, ByModulo.Owner(-1, 3, 0))
	assert.Equal(t, 1, ByModulo.Owner(-1, 3, -1))
	assert.Equal(t, 1, ByModulo.Owner(math.MaxInt64, 3, 0)) // 2^63-1 is 1 modulo 3
	assert.Equal(t, 2, ByModulo.Owner(math.MaxInt64, 3, math.MaxInt))
	assert.Equal(t, Owner(12, 9), ByHash.Owner(8, 9, 4))
	assert.Equal(t, Owner(12, 9), ByHash.Owner(12, 9, 0))
}

// inverseFinalizer returns the id whose hash in Owner is h.
func inverseFinalizer(h uint64) int64 {
	inverse := func(odd uint64) uint64 { // Newton's iteration modulo 2^64
		x := odd
		for range 6 {
			x *= 2 - odd*x
		}
		return x
	}
	unshift := func(y uint64, by int) uint64 {
		x := y
		for range 64/by + 1 {
			x = y ^ x>>by
		}
		return x
	}
	h = unshift(h, 31) * inverse(0x94d049bb133111eb)
	h = unshift(h, 27) * inverse(0xbf58476d1ce4e5b9)
	return int64(unshift(h, 30))
}

// Whoever chooses ids can send all of them to one server, because Owner is public, but cannot slow
// the search for equal ids: its hash has a random key. A set in which they collided would need
// hours.
func TestIDsThatCollideUnderOwner(t *testing.T) {
	const n = 1 << 20
	ids := make([]int64, 0, n+1)
	for i := range uint64(n) {
		ids = append(ids, inverseFinalizer(i))
	}
	ids = append(ids, ids[0])
	p := newPlan(t, idsOf(t, ids), 8, ByHash, 0)
	assert.Equal(t, []int{0, n, n, n, n, n, n, n, n}, p.Starts)
	for i, id := range ids[:n] {
		if p.Unique[i] != id || p.Inverse[i] != int32(i) {
			t.Fatalf("id %d: unique[%d] is %d, inverse %d", id, i, p.Unique[i], p.Inverse[i])
		}
	}
	assert.EqualValues(t, 0, p.Inverse[n])
}

// With a known key, ids are chosen whose searches begin in few places of the set, and go around its
// end.
func TestSearchesThatCollide(t *testing.T) {
	known := key()
	known[0], known[1] = 0, 1 // small ids: the hash is the id times the constant of the golden ratio
	for _, begin := range []uint64{0, 1 << 40, math.MaxUint64 - 200<<50} {
		var ids []int64
		x := uint64(0xf1de83e19937733d) // the inverse of the constant: id * constant = begin + i
		require.EqualValues(t, 1, x*0x9e3779b97f4a7c15)
		for i := range uint64(300) {
			ids = append(ids, int64((begin+i%200<<50)*x&math.MaxUint64))
		}
		p, err := planWith(known, idsOf(t, ids), 3, ByHash, 0)
		require.NoError(t, err)
		checkPlan(t, p, ids, func(id int64) int { return Owner(id, 3) }, 3)
		p.Free()
	}
}

func TestOf(t *testing.T) {
	random := rand.New(rand.NewPCG(9, 10))
	ids := make([]int64, 3000)
	for i := range ids {
		ids[i] = random.Int64N(500)
	}
	p := newPlan(t, idsOf(t, ids), 3, ByHash, 0)
	assert.True(t, p.Of(idsOf(t, ids)))
	short := make([]int32, len(ids))
	for i, id := range ids {
		short[i] = int32(id)
	}
	same, _ := tensor(t, op.Int32, short)
	assert.True(t, p.Of(same), "of int32")
	assert.False(t, p.Of(idsOf(t, ids[:2999])))
	assert.False(t, p.Of(idsOf(t, append(ids[:3000:3000], 1))))
	for _, at := range []int{0, 511, 512, 2999} {
		other := append([]int64(nil), ids...)
		other[at] += 1 << 40
		assert.False(t, p.Of(idsOf(t, other)), "the id at %d differs", at)
		other[at] = ids[at] ^ 1
		assert.False(t, p.Of(idsOf(t, other)), "the id at %d differs", at)
	}
	floats, _ := tensor(t, op.Float32, make([]float32, 3000))
	assert.False(t, p.Of(floats))
	device := *idsOf(t, ids)
	device.DeviceType = op.DeviceCUDA
	assert.False(t, p.Of(&device))
	p.Free()
	assert.False(t, p.Of(idsOf(t, ids)))
}

func TestKeyIsRandomAndOdd(t *testing.T) {
	assert.EqualValues(t, 1, key()[1]&1)
	assert.NotZero(t, key()[0])
	assert.Equal(t, key(), key())
}

func TestGather(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	const n, guard = 700, 64
	ids := make([]int64, n)
	for i := range ids {
		ids[i] = random.Int64N(200)
	}
	p := newPlan(t, idsOf(t, ids), 3, ByHash, 0)
	for _, isa := range instructionSets() {
		p.isa = isas[isa]
		for _, bytes := range []int{0, 1, 2, 3, 4, 6, 8, 12, 15, 16, 20, 31, 32, 33, 63, 64, 65, 100, 127, 128, 130, 256, 1000, 4096} {
			source := make([]byte, len(p.Unique)*bytes)
			for i := range source {
				source[i] = byte(random.Uint32())
			}
			rows, _ := tensor(t, op.UInt8, source)
			_, room := tensor(t, op.UInt8, make([]byte, n*bytes+2*guard))
			for i := range room {
				room[i] = 0xa5
			}
			out := &op.Buf{Data: unsafe.Pointer(&room[guard]), Count: int64(n * bytes), DType: op.UInt8}
			p.Gather(out, rows.Data, int64(bytes))
			for i, u := range p.Inverse {
				require.Equal(t, source[int(u)*bytes:(int(u)+1)*bytes], room[guard+i*bytes:guard+(i+1)*bytes], "%s, %d bytes, row %d", isa, bytes, i)
			}
			for _, b := range append(append([]byte(nil), room[:guard]...), room[guard+n*bytes:]...) {
				require.EqualValues(t, 0xa5, b, "%s, %d bytes: written outside", isa, bytes)
			}
		}
	}
}

// float returns an element of a 16-bit type as a float32.
func float(d op.DType, h uint16) float32 {
	if d == op.BFloat16 {
		return math.Float32frombits(uint32(h) << 16)
	}
	sign, exponent, fraction := 1-2*float64(h>>15), int(h>>10&31), float64(h&1023)
	switch exponent {
	case 0:
		return float32(sign * math.Ldexp(fraction, -24))
	case 31:
		if fraction != 0 {
			return float32(math.NaN())
		}
		return float32(sign * math.Inf(1))
	}
	return float32(sign * math.Ldexp(1024+fraction, exponent-25))
}

func same(a, b float32) bool {
	return math.Float32bits(a) == math.Float32bits(b) || a != a && b != b
}

// The sums are those of a loop, bit for bit: with all kinds of numbers, and elements behind the
// last whole vector.
func TestSum(t *testing.T) {
	random := rand.New(rand.NewPCG(7, 8))
	const n, guard = 400, 16
	ids := make([]int64, n)
	for i := range ids {
		ids[i] = int64(random.ExpFloat64() * 12)
	}
	p := newPlan(t, idsOf(t, ids), 4, ByHash, 0)
	for _, dim := range []int{1, 2, 3, 7, 8, 15, 16, 17, 31, 32, 40, 64, 100, 128, 300, 1100} {
		for _, d := range []op.DType{op.Float32, op.Float16, op.BFloat16} {
			wide := make([]float32, n*dim)
			narrow := make([]uint16, n*dim)
			for i := range wide {
				narrow[i] = uint16(random.Uint32())
				if d == op.Float32 {
					wide[i] = float32(random.NormFloat64())
					switch random.IntN(100) {
					case 0:
						wide[i] = float32(math.Copysign(0, -1))
					case 1:
						wide[i] = math.Float32frombits(random.Uint32())
					case 2:
						wide[i] = math.SmallestNonzeroFloat32 * float32(random.IntN(9)-4)
					}
				} else {
					if random.IntN(4) > 0 {
						narrow[i] &= 0xbfff // small numbers: their sums seldom overflow
					}
					wide[i] = float(d, narrow[i])
				}
			}
			want := make([]float32, len(p.Unique)*dim)
			seen := make([]bool, len(p.Unique))
			for i, u := range p.Inverse {
				for j := range dim {
					if g := wide[i*dim+j]; seen[u] {
						want[int(u)*dim+j] += g
					} else {
						want[int(u)*dim+j] = g
					}
				}
				seen[u] = true
			}
			gradients, _ := tensor(t, d, wide)
			if d != op.Float32 {
				gradients, _ = tensor(t, d, narrow)
			}
			for _, isa := range instructionSets() {
				p.isa = isas[isa]
				_, room := tensor(t, op.Float32, make([]float32, len(want)+2*guard))
				for i := range room {
					room[i] = 12345
				}
				p.Sum(room[guard:guard+len(want)], gradients, int64(dim))
				for i, w := range want {
					if !same(w, room[guard+i]) {
						t.Fatalf("%s, %v, dim %d: sums[%d, %d] is %v, not %v", isa, d, dim, i/dim, i%dim, room[guard+i], w)
					}
				}
				for _, x := range append(append([]float32(nil), room[:guard]...), room[guard+len(want):]...) {
					require.EqualValues(t, 12345, x, "%s, dim %d: written outside", isa, dim)
				}
			}
		}
	}
}

// The order of the additions decides on the result here: 1 is lost beside 2^24, but 1+1 is not.
func TestOrderOfAppearance(t *testing.T) {
	const big = 1 << 24
	gradients, _ := tensor(t, op.Float32, []float32{1, big, 1, 1, -big, big, 1, 1})
	p := newPlan(t, idsOf(t, []int64{7, 8, 7, 8, 7, 7, 8, 8}), 2, ByHash, 0)
	_, sums := tensor(t, op.Float32, make([]float32, 2))
	p.Sum(sums, gradients, 1)
	assert.EqualValues(t, 2, sums[p.Inverse[0]])
	assert.EqualValues(t, big, sums[p.Inverse[1]])
}

func TestEmptyBatches(t *testing.T) {
	for _, d := range []op.DType{op.Int64, op.Int32} {
		for _, servers := range []int{1, 4} {
			p, err := New(&op.Buf{DType: d}, servers, ByHash, 0)
			require.NoError(t, err)
			assert.Empty(t, p.Unique)
			assert.Empty(t, p.Inverse)
			assert.Equal(t, make([]int, servers+1), p.Starts)
			p.Gather(&op.Buf{DType: op.Float32}, nil, 256)
			p.Widen(&op.Buf{DType: op.Float32}, nil, op.Float16, 64)
			assert.True(t, p.Sum(nil, &op.Buf{DType: op.BFloat16}, 64))
			p.Free()
			p.Free()
		}
	}
}

func TestWrongBatches(t *testing.T) {
	ids := idsOf(t, []int64{1, 2, 3, 4})
	floats, _ := tensor(t, op.Float32, make([]float32, 4))
	device, strided, huge := *ids, *ids, *ids
	device.DeviceType = op.DeviceCUDA
	shape, _ := tensor(t, op.Int64, []int64{2, 2})
	steps, _ := tensor(t, op.Int64, []int64{1, 2})
	strided.NDim, strided.Shape, strided.Strides = 2, shape.Data, steps.Data
	huge.Count = MostIDs + 1
	for _, wrong := range []struct {
		ids     *op.Buf
		servers int
		by      By
		code    status.Code
		text    string
	}{
		{floats, 2, ByHash, status.Type, "ids are of float32"},
		{&device, 2, ByHash, status.Unsupported, "device memory"},
		{&strided, 2, ByHash, status.Argument, "not contiguous"},
		{&huge, 2, ByHash, status.Argument, "more than one call takes"},
		{ids, 0, ByHash, status.Argument, "servers=0"},
		{ids, MostServers + 1, ByHash, status.Argument, "servers="},
		{ids, 2, 7, status.Argument, "by=7"},
	} {
		_, err := New(wrong.ids, wrong.servers, wrong.by, 0)
		assert.ErrorContains(t, err, wrong.text)
		assert.Equal(t, wrong.code, status.CodeOf(err))
	}
	p := newPlan(t, ids, 2, ByHash, 0)
	rows, _ := tensor(t, op.Float32, make([]float32, 8))
	assert.Panics(t, func() { p.Gather(rows, rows.Data, 4) })
	assert.Panics(t, func() { p.Gather(rows, rows.Data, -8) })
	assert.Panics(t, func() { p.Sum(make([]float32, 7), rows, 2) })
	assert.Panics(t, func() { p.Sum(make([]float32, 12), rows, 3) })
	assert.Panics(t, func() { p.Sum(make([]float32, 4), ids, 1) })
}

func TestNotFinite(t *testing.T) {
	values := make([]float32, 5000)
	for i := range values {
		values[i] = math.MaxFloat32
	}
	assert.EqualValues(t, -1, NotFinite(values))
	assert.EqualValues(t, -1, NotFinite(nil))
	for _, at := range []int{4999, 4096, 1023, 0} {
		values[at] = float32(math.Inf(-1))
		assert.EqualValues(t, at, NotFinite(values))
		values[at] = float32(math.NaN())
		assert.EqualValues(t, at, NotFinite(values))
	}
}

// Whether sums are finite is found wherever they are not, for every way to add a row.
func TestSumTellsWhetherAllIsFinite(t *testing.T) {
	const n = 300
	random := rand.New(rand.NewPCG(11, 12))
	ids := make([]int64, n)
	for i := range ids {
		ids[i] = random.Int64N(100)
	}
	p := newPlan(t, idsOf(t, ids), 3, ByHash, 0)
	for _, isa := range instructionSets() {
		p.isa = isas[isa]
		for _, dim := range []int{1, 3, 4, 8, 15, 16, 20, 33} {
			gradients, values := tensor(t, op.Float32, make([]float32, n*dim))
			for i := range values {
				values[i] = float32(random.Float64()) - 0.5
			}
			sums := make([]float32, len(p.Unique)*dim)
			assert.True(t, p.Sum(sums, gradients, int64(dim)), "%s, dim %d", isa, dim)
			for _, bad := range []float32{float32(math.Inf(-1)), float32(math.NaN())} {
				for range 20 {
					at := random.IntN(n * dim)
					before := values[at]
					values[at] = bad
					assert.False(t, p.Sum(sums, gradients, int64(dim)), "%s, dim %d, %v at %d", isa, dim, bad, at)
					assert.EqualValues(t, int(p.Inverse[at/dim])*dim+at%dim, NotFinite(sums))
					values[at] = before
				}
			}
			halves, bits := tensor(t, op.Float16, make([]uint16, n*dim))
			assert.True(t, p.Sum(sums, halves, int64(dim)))
			bits[n*dim-1] = 0x7c00
			assert.False(t, p.Sum(sums, halves, int64(dim)), "%s, dim %d", isa, dim)
		}
	}
	twice := newPlan(t, idsOf(t, []int64{7, 7}), 1, ByHash, 0)
	large, _ := tensor(t, op.Float32, []float32{math.MaxFloat32, math.MaxFloat32})
	assert.False(t, twice.Sum(make([]float32, 1), large, 1), "the sum is infinite")
}

func TestWiden(t *testing.T) {
	random := rand.New(rand.NewPCG(13, 14))
	const n, guard = 500, 16
	ids := make([]int64, n)
	for i := range ids {
		ids[i] = random.Int64N(150)
	}
	p := newPlan(t, idsOf(t, ids), 3, ByHash, 0)
	for _, isa := range instructionSets() {
		p.isa = isas[isa]
		for _, d := range []op.DType{op.Float16, op.BFloat16} {
			for _, dim := range []int{1, 2, 3, 4, 5, 8, 15, 16, 17, 20, 33, 64, 300} {
				rows, source := tensor(t, d, make([]uint16, len(p.Unique)*dim))
				for i := range source {
					source[i] = uint16(random.Uint32())
				}
				_, room := tensor(t, op.Float32, make([]float32, n*dim+2*guard))
				for i := range room {
					room[i] = -1.5
				}
				out := &op.Buf{Data: unsafe.Pointer(&room[guard]), Count: int64(n * dim), DType: op.Float32}
				p.Widen(out, rows.Data, d, int64(dim))
				for i, u := range p.Inverse {
					for j := range dim {
						if want, got := float(d, source[int(u)*dim+j]), room[guard+i*dim+j]; !same(want, got) {
							t.Fatalf("%s, %v, dim %d: %v instead of %v", isa, d, dim, got, want)
						}
					}
				}
				for i := range guard {
					require.True(t, room[i] == -1.5 && room[guard+n*dim+i] == -1.5, "%s, dim %d: written outside", isa, dim)
				}
			}
		}
	}
	out, _ := tensor(t, op.Float32, make([]float32, n))
	assert.Panics(t, func() { p.Widen(out, out.Data, op.Float32, 1) })
	assert.Panics(t, func() { p.Widen(out, out.Data, op.Float16, 2) })
}

func TestSharesAddUp(t *testing.T) {
	for _, n := range []int64{0, 1, 2, 3, 7, 1 << 40} {
		for servers := 1; servers < 6; servers++ {
			var sum int64
			for server := range servers {
				share := Share(n, server, servers)
				assert.GreaterOrEqual(t, share, n/int64(servers))
				assert.LessOrEqual(t, share, n/int64(servers)+1)
				assert.True(t, server == 0 || share <= Share(n, server-1, servers))
				sum += share
			}
			assert.Equal(t, n, sum)
		}
	}
}

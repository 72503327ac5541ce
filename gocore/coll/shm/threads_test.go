package shm

import (
	"math/rand"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/reduce/fpmode"
	"github.com/paddlempi/paddlempi/gocore/threads"
)

// use sets how many threads a rank has while a test runs.
func use(t *testing.T, n int) {
	before := threads.Count()
	threads.Use(n, true)
	t.Cleanup(func() { threads.Use(before, true) })
}

// Threads of a rank claim chunks at once: every one is done once. Ranks have different numbers of threads, and only one of them gets the
// helpers of this process at a time.
func TestThreadsClaimAtOnce(t *testing.T) {
	g := newTeam(t, 3, 200_000)
	for round := range 60 {
		use(t, 1+round%5)
		ops := g.next(t)
		did := make([]int, g.size)
		each(g.size, func(r int) {
			rng := rand.New(rand.NewSource(int64(round*8 + r)))
			for ops[r].State(0) == Pending {
				nap(rng)
				did[r] += ops[r].Work(All)
			}
		})
		total := 0
		for r := range ops {
			total += did[r]
			require.NoError(t, g.check(r))
		}
		require.Equal(t, int(ops[0].c.chunks), total)
		freeAll(ops)
	}
}

// A call whose work is no more than a helper's waking takes none.
func TestShortCallsHaveOneThread(t *testing.T) {
	use(t, 8)
	for count, want := range map[int]int{65_535: 1, 65_536: 2, 131_072: 4, 4 << 20: 8} {
		g := newTeam(t, 2, count)
		ops := g.next(t)
		assert.EqualValues(t, want, ops[0].c.threads, "%d bytes", 4*count)
		freeAll(ops)
	}
}

// Sums of helpers have the same bits, whatever the floating point settings of the thread that made them, or that calls.
func TestThreadsHaveTheUsualArithmetic(t *testing.T) {
	for name, mode := range fpmode.Odd {
		t.Run(name, func(t *testing.T) {
			var sums [2][]float32
			for i, n := range []int{1, 6} { // more than there were before: some are made now
				use(t, n)
				sums[i] = subnormalSums(t, mode)
			}
			assert.Equal(t, sums[0], sums[1])
		})
	}
}

// subnormalSums returns what one rank of two sums up of numbers whose sums are subnormal, or are rounded, on a thread with such settings.
func subnormalSums(t *testing.T, mode uint64) []float32 {
	const count = 1 << 18
	words := outside[uint64](t, teamChunks)
	o, err := New(&Collective{Seq: 1, Code: op.AllReduce, DType: op.Float32, Reduce: op.Sum, Count: count,
		Size: 2, Parts: 4, Words: unsafe.Pointer(&words[0]), Chunks: teamChunks})
	require.NoError(t, err)
	defer o.Free()
	var tensors [2][]float32
	for r := range tensors {
		tensors[r] = outside[float32](t, count)
		for i := range tensors[r] {
			tensors[r][i] = [...][2]float32{{0x1p-126, -0x1.8p-127}, {1, 0x1p-24}, {-1, -0x1.8p-24}}[i%3][r]
		}
		o.Add(In, r, unsafe.Pointer(&tensors[r][0]), count)
		o.Add(Out, r, unsafe.Pointer(&tensors[r][0]), count)
	}
	fpmode.With(mode, func() { o.Work(All) })
	require.Equal(t, Done, o.State(0))
	assert.Equal(t, []float32{0x1p-128, 1, -1 - 0x1p-23}, tensors[0][:3], "in the usual arithmetic")
	return tensors[0]
}

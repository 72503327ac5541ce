package shm

import (
	"fmt"
	"math/rand"
	"runtime"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/work/worktest"
)

// outside returns n zeros of T outside the Go heap.
func outside[T any](t testing.TB, n int) []T {
	t.Helper()
	p, err := mem.Alloc(int64(max(n, 1)) * int64(unsafe.Sizeof(*new(T))))
	require.NoError(t, err)
	t.Cleanup(func() { mem.Free(p) })
	s := unsafe.Slice((*T)(p), n)
	clear(s)
	return s
}

// team is the ranks of a node, whose tensors all have the same length. The ranks are goroutines of one
// process; each sees the tensors at the same addresses.
type team struct {
	size, count int
	words       []uint64
	tensors     [][]int32
	seq         uint64
}

const teamChunks = 40

func newTeam(t testing.TB, size, count int) *team {
	g := &team{size: size, count: count, words: outside[uint64](t, teamChunks)}
	for range size {
		g.tensors = append(g.tensors, outside[int32](t, count))
	}
	return g
}

// next makes the operations of the next all_reduce, in place, of inputs that depend on the rank and on
// the collective.
func (g *team) next(t testing.TB) []*Op {
	t.Helper()
	g.seq++
	var ops []*Op
	for me := range g.size {
		o, err := g.op(me)
		require.NoError(t, err)
		ops = append(ops, o)
		for i := range g.tensors[me] {
			g.tensors[me][i] = g.input(me, i)
		}
	}
	return ops
}

// op makes the operation of a rank.
func (g *team) op(me int) (*Op, error) {
	o, err := New(&Collective{Seq: g.seq, Code: op.AllReduce, DType: op.Int32, Reduce: op.Sum, Count: int64(g.count),
		Rank: me, Size: g.size, Parts: 2 * g.size, Words: unsafe.Pointer(&g.words[0]), Chunks: len(g.words), YieldEvery: 4})
	for r := range g.size {
		if err == nil {
			o.Add(In, r, unsafe.Pointer(&g.tensors[r][0]), int64(g.count))
			o.Add(Out, r, unsafe.Pointer(&g.tensors[r][0]), int64(g.count))
		}
	}
	return o, err
}

func (g *team) input(rank, i int) int32 { return int32(rank*1_000_003+i) + int32(g.seq)*77 }

func (g *team) result(i int) (sum int32) {
	for r := range g.size {
		sum += g.input(r, i)
	}
	return sum
}

// check looks at the tensor of a rank whose operation is done.
func (g *team) check(rank int) error {
	for i, v := range g.tensors[rank] {
		if v != g.result(i) {
			return fmt.Errorf("collective %d: element %d of rank %d is %d, not %d", g.seq, i, rank, v, g.result(i))
		}
	}
	return nil
}

func freeAll(ops []*Op) {
	for _, o := range ops {
		o.Free()
	}
}

// finish works until the operation is over.
func finish(o *Op, most int) State {
	for {
		o.Work(most)
		if s := o.State(5); s != Pending && s != Closing {
			return s
		} else if s == Closing {
			o.Close()
		}
		runtime.Gosched()
	}
}

// One rank that waits does the work of all. A rank that comes late finds it done.
func TestOneRankDoesAllTheWork(t *testing.T) {
	for _, size := range []int{1, 2, 3, 5, 8} {
		g := newTeam(t, size, 60_000)
		for worker := range size {
			ops := g.next(t)
			assert.Equal(t, Pending, ops[worker].State(0))
			assert.Equal(t, int(ops[worker].c.chunks), ops[worker].Work(All), "all chunks")
			for r, o := range ops {
				assert.Equal(t, 0, o.Work(All), "nothing is left")
				assert.Equal(t, Done, o.State(0))
				assert.Equal(t, Done, o.Close(), "too late to give it up")
				assert.Empty(t, o.Closers())
				assert.Equal(t, -1, o.Worker())
				require.NoError(t, g.check(r))
			}
			freeAll(ops)
		}
	}
}

// A rank claims its own share first.
func TestOwnShareFirst(t *testing.T) {
	g := newTeam(t, 4, 60_000)
	ops := g.next(t)
	defer freeAll(ops)
	chunks := int(ops[0].c.chunks)
	require.Equal(t, 4, chunks)
	for _, r := range []int{2, 0, 3, 1} {
		assert.Equal(t, 1, ops[r].Work(1))
		first, length := r*g.count/chunks, g.count/chunks
		for _, i := range []int{first + 16, first + length - 16} {
			assert.Equal(t, g.result(i), g.tensors[r][i], "rank %d, element %d", r, i)
		}
	}
	for _, o := range ops {
		assert.Equal(t, Done, o.State(0))
	}
}

// Ranks on threads of their own claim at once, with random delays: every chunk is done once. A chunk
// that was done twice would reduce results.
func TestRanksClaimAtOnce(t *testing.T) {
	for _, size := range []int{2, 3, 5} {
		g := newTeam(t, size, 9_000)
		for round := range 150 {
			ops := g.next(t)
			did := make([]int, size)
			each(size, func(r int) {
				rng := rand.New(rand.NewSource(int64(round*8 + r)))
				for ops[r].State(0) == Pending {
					nap(rng)
					did[r] += ops[r].Work(1 + rng.Intn(3))
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
}

// each runs f for every rank at the same time.
func each(size int, f func(r int)) {
	var wg sync.WaitGroup
	for r := range size {
		wg.Add(1)
		go func() {
			defer wg.Done()
			runtime.LockOSThread() // a rank is a thread
			defer runtime.UnlockOSThread()
			f(r)
		}()
	}
	wg.Wait()
}

func nap(rng *rand.Rand) {
	switch rng.Intn(6) {
	case 0:
		time.Sleep(time.Duration(rng.Intn(60)) * time.Microsecond)
	case 1:
		runtime.Gosched()
	}
}

// Some ranks give up at a random moment. All ranks see the same end, and once a rank has seen it, no
// rank writes into its tensor any more.
func TestClosingAtAnyMoment(t *testing.T) {
	ends := map[State]int{}
	const size = 3
	g := newTeam(t, size, 20_000)
	for round := range 400 {
		ops := g.next(t)
		states := make([]State, size)
		changed := make([]int, size)
		each(size, func(r int) {
			rng := rand.New(rand.NewSource(int64(round*8 + r)))
			giveUp := r > 0 && rng.Intn(2) == 0
			for range rng.Intn(3) {
				nap(rng)
				ops[r].Work(1)
			}
			if giveUp {
				states[r] = ops[r].Close()
				for states[r] == Closing {
					runtime.Gosched()
					states[r] = ops[r].Close()
				}
			}
			if states[r] == Pending {
				states[r] = finish(ops[r], 1)
			}
			// This rank's call is over. It may use its tensor, while others may not have seen the end.
			mine := g.tensors[r]
			for i := range mine {
				if states[r] == Done && mine[i] != g.result(i) {
					changed[r]++
				}
				mine[i] = -7
			}
			nap(rng)
			for i := range mine {
				if mine[i] != -7 {
					changed[r]++
				}
			}
		})
		require.Equal(t, []int{0, 0, 0}, changed, "round %d, %v", round, states)
		for r := range states {
			require.Equal(t, states[0], states[r], "round %d", round)
			require.Equal(t, states[0] == Closed, len(ops[r].Closers()) > 0)
			require.NotContains(t, ops[r].Closers(), 0, "rank 0 closes nothing but after another one")
		}
		ends[states[0]]++
		freeAll(ops)
	}
	t.Logf("%d done, %d closed", ends[Done], ends[Closed])
	assert.NotZero(t, ends[Done])
	assert.NotZero(t, ends[Closed])
}

// take claims a chunk for a rank as if it were at work on it.
func (g *team) take(rank, chunk int) { g.words[1+chunk] = g.seq<<20 | uint64(rank)<<4 | 1 }

// A rank that gives up waits for the chunks that others work on. Nobody can end those of a dead rank:
// they are buried.
func TestADeadRankIsBuried(t *testing.T) {
	g := newTeam(t, 3, 60_000)
	ops := g.next(t)
	defer freeAll(ops)
	chunks := int(ops[0].c.chunks)
	require.Equal(t, 6, chunks)
	g.take(2, 4)
	assert.Equal(t, 1, ops[0].Work(1))
	assert.Equal(t, 2, ops[0].Worker())
	assert.Equal(t, 2, ops[1].Worker())
	assert.Equal(t, 0, ops[0].FailPeer(1), "rank 1 has claimed nothing")
	assert.Equal(t, Closing, ops[0].Close())
	assert.Equal(t, []int{0}, ops[1].Closers())
	assert.Equal(t, Closing, ops[1].State(0), "the others see it")
	assert.Equal(t, 0, ops[1].Work(All))
	assert.Equal(t, 1, ops[1].FailPeer(2))
	assert.Equal(t, 0, ops[0].FailPeer(2), "it is buried once")
	assert.Equal(t, Closed, ops[0].Close())
	assert.Equal(t, Closed, ops[1].State(0))
	assert.Equal(t, []int{0, 2}, ops[1].Closers())
	assert.Equal(t, -1, ops[1].Worker())

	// The burial alone closes the operation, if everything else is done.
	next := g.next(t)
	defer freeAll(next)
	g.take(2, 1)
	assert.Equal(t, chunks-1, next[0].Work(All))
	assert.Equal(t, Pending, next[0].State(0))
	assert.Equal(t, Pending, next[0].Close(), "nothing can be given up: the owner will end it")
	assert.Equal(t, 1, next[0].FailPeer(2))
	assert.Equal(t, Closed, next[0].State(0))
	assert.Equal(t, Closed, next[1].State(0))
	assert.Equal(t, []int{2}, next[1].Closers())
}

// A thread that comes with an earlier collective finds the words taken, and claims nothing.
func TestALateThreadClaimsNothing(t *testing.T) {
	g := newTeam(t, 2, 60_000)
	old := g.next(t)
	assert.Equal(t, Done, finish(old[0], All))
	g.seq++ // a collective whose chunks lie in the other slot
	ops := g.next(t)
	assert.Equal(t, 1, ops[0].Work(1))
	assert.Equal(t, 0, old[1].Work(All))
	assert.Equal(t, Done, finish(ops[1], All))
	assert.Equal(t, 0, old[1].Work(All))
	assert.NoError(t, g.check(0))
	assert.NoError(t, g.check(1))
	freeAll(old)
	freeAll(ops)
}

// Some ranks cannot map a tensor: they claim nothing, and the others do the work. If no rank can, all
// see that nothing was done.
func TestRanksThatCannotMap(t *testing.T) {
	const size = 3
	g := newTeam(t, size, 9_000)
	for round := range 60 {
		for blind := 1; blind < 1<<size; blind++ {
			ops := g.next(t)
			states := make([]State, size)
			each(size, func(r int) {
				rng := rand.New(rand.NewSource(int64(round*64 + blind*8 + r)))
				nap(rng)
				if blind>>r&1 != 0 {
					ops[r].CannotMap()
					assert.Equal(t, 0, ops[r].Work(All))
				}
				states[r] = finish(ops[r], 1)
			})
			for r := range size {
				if blind == 1<<size-1 {
					require.Equal(t, Blind, states[r])
					require.Equal(t, g.input(r, 17), g.tensors[r][17])
				} else {
					require.Equal(t, Done, states[r], "blind %03b, rank %d", blind, r)
					require.NoError(t, g.check(r))
				}
			}
			freeAll(ops)
		}
	}
}

// The chunks of a piece cover it without a gap, for every length around a boundary, and every chunk
// but the last begins at a cache line.
func TestChunksCoverTheTensor(t *testing.T) {
	for _, size := range []int{1, 2, 3, 8} {
		for _, bytes := range []int{0, 1, 63, 64, 65, 512*size - 1, 512 * size, 512*size + 1, 64 << 10, 64<<10 + 1, 3<<20 + 5} {
			n := cuts(int64(bytes), size, teamChunks-1)
			assert.LessOrEqual(t, n, teamChunks-1)
			if bytes >= 512*size {
				assert.Zero(t, n%size, "%d bytes on %d ranks: %d chunks", bytes, size, n)
			}
		}
		g := newTeam(t, size, 1)
		for _, count := range []int{1, 15, 16, 17, 128 * size, 128*size + 1, 16<<10 + 3, 1<<18 + 1} {
			g.count, g.tensors = count, nil
			for range size {
				x := outside[int32](t, count+32)
				g.tensors = append(g.tensors, x[:count])
				for i := range x[count:] {
					x[count+i] = 9
				}
			}
			ops := g.next(t)
			last := size - 1
			ops[last].Work(1)
			first := 0
			for first < count-1 && size > 1 && g.tensors[0][first] == g.input(0, first) {
				first++
			}
			require.Zero(t, first%16, "a chunk begins within a cache line")
			for r, o := range ops {
				require.Equal(t, Done, finish(o, All))
				require.NoError(t, g.check(r))
				for _, v := range g.tensors[r][count : count+32] {
					require.EqualValues(t, 9, v, "written beyond the tensor")
				}
			}
			freeAll(ops)
		}
	}
}

// A rank rings when it has done chunks, and when it gives the work up.
func TestChunksRing(t *testing.T) {
	g := newTeam(t, 2, 100_000)
	ops := g.next(t)
	defer freeAll(ops)
	assert.True(t, worktest.Rings(t, func() { ops[0].Work(1) }), "a chunk is done")
	assert.False(t, worktest.Rings(t, func() { ops[1].State(0) }), "a look")
	assert.True(t, worktest.Rings(t, func() { ops[1].Close() }), "the rest is closed")
	assert.False(t, worktest.Rings(t, func() { ops[0].Work(All) }), "there is none to be done")
}

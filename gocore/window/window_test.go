package window

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/group"
	"github.com/paddlempi/paddlempi/gocore/heap"
	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/mpi"
	"github.com/paddlempi/paddlempi/gocore/mpi/mpifake"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/trace"
	"github.com/paddlempi/paddlempi/gocore/work/worktest"
	"github.com/paddlempi/paddlempi/gocore/world"
)

var _ Calls = (*group.Group)(nil)

// member is one rank of a test.
type member struct {
	*testing.T
	env     *world.Env
	group   *group.Group
	rank    int
	windows *Windows
}

// ranks runs f on every rank of a fake world with these nodes.
func ranks(t *testing.T, nodes []int, f func(m *member)) {
	t.Helper()
	var wg sync.WaitGroup
	for _, lib := range mpifake.New(len(nodes), mpifake.Nodes(nodes)) {
		wg.Add(1)
		go func(lib mpi.Library) {
			defer wg.Done()
			e, err := world.NewEnv(mpifake.World(lib), 20*time.Second, nil)
			if !assert.NoError(t, err) {
				return
			}
			g, err := group.World(e, 0, 10*time.Second)
			if !assert.NoError(t, err) {
				return
			}
			m := &member{T: t, env: e, group: g, rank: g.Rank, windows: Of(Group{g.Members(), g})}
			f(m)
			assert.NoError(t, collective{Group{g.Members(), g}, -1, false}.barrier(), "rank %d", g.Rank)
			m.windows.Close(false)
			settled, _ := e.Destroy()
			assert.True(t, settled, "rank %d", g.Rank)
		}(lib)
	}
	wg.Wait()
}

var worlds = map[string][]int{
	"alone":     {0},
	"one node":  {0, 0, 0},
	"two nodes": {0, 1},
	"mixed":     {0, 0, 1, 1, 0},
	"many":      {0, 0, 1, 1, 0, 1}, // more than have receives posted
}

func everywhere(t *testing.T, f func(m *member)) {
	for name, nodes := range worlds {
		t.Run(name, func(t *testing.T) { ranks(t, nodes, f) })
	}
}

// tensor makes a tensor of some values in the heap.
func tensor[T any](d op.DType, values ...T) op.Buf {
	h, err := heap.OfProcess()
	if err != nil {
		panic(err)
	}
	p, err := h.Alloc(int64(max(1, len(values)) * d.Size()))
	if err != nil {
		panic(err)
	}
	copy(unsafe.Slice((*T)(p), len(values)), values)
	return op.Buf{Data: p, Count: int64(len(values)), DType: d, DeviceType: op.DeviceCPU}
}

func valuesOf[T any](b op.Buf) []T { return unsafe.Slice((*T)(b.Data), b.Count) }

// make makes a window of some values on this rank.
func (m *member) make(memory op.Buf) *Window {
	w, err := m.windows.New(&memory, -1, false)
	require.NoError(m, err)
	return w
}

// call carries out a call, first by pw_quick as capi does.
func (w *Window) test(o Op) error {
	o.Size, o.Window = uint32(unsafe.Sizeof(o)), w.id
	if o.TimeoutNS == 0 {
		o.TimeoutNS = -1
	}
	if quick(&o) {
		return nil
	}
	return w.Call(&o, false)
}

func (w *Window) fenced(t *testing.T) { require.NoError(t, w.test(Op{Code: Fence})) }

func sequence(n int, from float32) []float32 {
	s := make([]float32, n)
	for i := range s {
		s[i] = from + float32(i)
	}
	return s
}

func TestPutAndGet(t *testing.T) {
	everywhere(t, func(m *member) {
		for _, n := range []int{1, 5, 100, 200_000} {
			size := m.group.Size
			own := tensor(op.Float32, make([]float32, n*size+m.rank)...)
			w := m.make(own)
			for r := range size {
				x := tensor(op.Float32, sequence(n, float32(1000*m.rank+r))...)
				require.NoError(m, w.test(Op{Code: Put, Rank: int32(r), Offset: int64(n * m.rank), Send: x}))
			}
			w.fenced(m.T)
			for r := range size {
				assert.Equal(m, sequence(n, float32(1000*r+m.rank)), valuesOf[float32](own)[n*r:n*(r+1)])
			}
			for r := range size {
				out := tensor(op.Float32, make([]float32, n)...)
				require.NoError(m, w.test(Op{Code: Get, Rank: int32(r), Offset: int64(n * m.rank), Recv: out}))
				assert.Equal(m, sequence(n, float32(1000*m.rank+r)), valuesOf[float32](out))
			}
			require.NoError(m, w.Free(-1, false))
			assert.False(m, w.InUse())
			assert.ErrorContains(m, w.test(Op{Code: Flush, Rank: All}), "the window was freed")
		}
	})
}

// Every rank adds to the same elements of every rank, from two threads.
func TestAtomicity(t *testing.T) {
	everywhere(t, func(m *member) {
		const times = 200
		for _, d := range []op.DType{op.Int8, op.Int64, op.Float16, op.Float32, op.Float64, op.Complex64, op.Complex128} {
			one := map[op.DType]op.Buf{op.Int8: tensor(d, int8(1), 1), op.Int64: tensor(d, int64(1), 1), op.Float16: tensor(d, uint16(0x3c00), 0x3c00), op.Float32: tensor(d, float32(1), 1),
				op.Float64: tensor(d, float64(1), 1), op.Complex64: tensor(d, complex64(1), 1), op.Complex128: tensor(d, complex128(1), 1)}[d]
			own := tensor(d, make([]byte, 2*d.Size())...)
			own.Count = 2
			w := m.make(own)
			var threads sync.WaitGroup
			for range 2 {
				threads.Add(1)
				go func() {
					defer threads.Done()
					for i := range times {
						o := Op{Code: Accumulate, Rank: int32(i % m.group.Size), Reduce: op.Sum, Send: one}
						if !assert.NoError(m, w.test(o)) {
							return
						}
					}
				}()
			}
			threads.Wait()
			w.fenced(m.T)
			want := 0
			for i := range times {
				if i%m.group.Size == m.rank {
					want += 2 * m.group.Size
				}
			}
			var got any
			switch d {
			case op.Int8:
				got, want = int(uint8(valuesOf[int8](own)[0])), want%256
			case op.Int64:
				got = int(valuesOf[int64](own)[1])
			case op.Float16:
				got, want = int(valuesOf[uint16](own)[1]), int(half(want))
			case op.Float32:
				got = int(valuesOf[float32](own)[1])
			case op.Float64:
				got = int(valuesOf[float64](own)[1])
			case op.Complex64:
				got = int(real(valuesOf[complex64](own)[1]))
			case op.Complex128:
				got = int(real(valuesOf[complex128](own)[1]))
			}
			assert.Equal(m, want, got, "%v", d)
			require.NoError(m, w.Free(-1, false))
		}
	})
}

// half returns the float16 of a small integer above 0.
func half(n int) uint16 {
	e := 0
	for n>>(e+1) > 0 {
		e++
	}
	return uint16((e+15)<<10 | (n-1<<e)<<(10-e))
}

// Numbers that all ranks draw from one counter are different.
func TestFetchAndOp(t *testing.T) {
	everywhere(t, func(m *member) {
		own := tensor(op.Int32, int32(0))
		w := m.make(own)
		const each = 50
		drawn := tensor(op.Int32, make([]int32, m.group.Size*each)...)
		all := m.make(drawn)
		for i := range each {
			before := tensor(op.Int32, int32(-1))
			require.NoError(m, w.test(Op{Code: GetAccumulate, Rank: 0, Reduce: op.Sum, Send: tensor(op.Int32, int32(1)), Recv: before}))
			require.NoError(m, all.test(Op{Code: Put, Rank: 0, Offset: int64(m.rank*each + i), Send: before}))
		}
		all.fenced(m.T)
		if m.rank == 0 {
			list := slices.Sorted(slices.Values(valuesOf[int32](drawn)))
			for i, v := range list {
				assert.EqualValues(m, i, v)
			}
			assert.EqualValues(m, len(list), valuesOf[int32](own)[0])
		}
		w.fenced(m.T)
		// Of a compare and swap only one rank succeeds.
		before := tensor(op.Int32, int32(-1))
		expected := int32(m.group.Size * each)
		require.NoError(m, w.test(Op{Code: CompareAndSwap, Rank: 0, Compare: tensor(op.Int32, expected), Send: tensor(op.Int32, int32(-5-m.rank)), Recv: before}))
		w.fenced(m.T)
		now := tensor(op.Int32, int32(0))
		require.NoError(m, w.test(Op{Code: GetAccumulate, Rank: 0, Reduce: NoOp, Send: now, Recv: now}))
		assert.Equal(m, valuesOf[int32](before)[0] == expected, valuesOf[int32](now)[0] == int32(-5-m.rank))
	})
}

// box returns the fields of a target.
func boxed(o Op, offset int64, shape, steps []int64) Op {
	o.Offset, o.NDim, o.Shape, o.Strides = offset, int32(len(shape)), tensor(op.Int64, shape...).Data, tensor(op.Int64, steps...).Data
	return o
}

func TestBoxes(t *testing.T) {
	everywhere(t, func(m *member) {
		next := int32((m.rank + 1) % m.group.Size)
		own := tensor(op.Int64, make([]int64, 6*8)...)
		w := m.make(own)
		// [1:5:2, 7:0:-3] of 6 x 8
		shape, steps := []int64{2, 3}, []int64{16, -3}
		x := tensor(op.Int64, int64(1), 2, 3, 4, 5, 6)
		require.NoError(m, w.test(boxed(Op{Code: Put, Rank: next, Send: x}, 15, shape, steps)))
		w.fenced(m.T)
		require.NoError(m, w.test(boxed(Op{Code: Accumulate, Rank: next, Reduce: op.Sum, Send: x}, 15, shape, steps)))
		w.fenced(m.T)
		want := make([]int64, 48)
		for i := range 2 {
			for j := range 3 {
				want[15+16*i-3*j] = 2 * int64(3*i+j+1)
			}
		}
		assert.Equal(m, want, valuesOf[int64](own))
		w.fenced(m.T)
		out, before := tensor(op.Int64, make([]int64, 6)...), tensor(op.Int64, make([]int64, 6)...)
		require.NoError(m, w.test(boxed(Op{Code: Get, Rank: next, Recv: out}, 15, shape, steps)))
		assert.Equal(m, []int64{2, 4, 6, 8, 10, 12}, valuesOf[int64](out))
		require.NoError(m, w.test(boxed(Op{Code: GetAccumulate, Rank: next, Reduce: Replace, Send: x, Recv: before}, 15, shape, steps)))
		assert.Equal(m, []int64{2, 4, 6, 8, 10, 12}, valuesOf[int64](before))
		w.fenced(m.T)
		assert.EqualValues(m, 6, valuesOf[int64](own)[15+16-6])
		for _, wrong := range []Op{
			boxed(Op{}, 15, []int64{2, 4}, steps), boxed(Op{}, 48, shape, []int64{0, 0}), boxed(Op{}, -1, shape, steps), boxed(Op{}, 2, shape, steps),
			boxed(Op{}, 0, []int64{3, 2}, []int64{1 << 62, 1}), boxed(Op{}, 0, []int64{3, 2}, []int64{-1 << 63, 1}), boxed(Op{}, 0, []int64{-2, -3}, steps),
			boxed(Op{}, 40, []int64{6}, []int64{2}),
		} {
			wrong.Code, wrong.Rank, wrong.Send = Put, next, x
			assert.Equal(m, status.Argument, status.CodeOf(w.test(wrong)), "%+v", wrong)
		}
	})
}

// Random boxes of large windows are as those of a model, in pieces too.
func TestRandomBoxes(t *testing.T) {
	everywhere(t, func(m *member) {
		const rows, cols = 300, 500
		own := tensor(op.Float64, make([]float64, rows*cols)...)
		w := m.make(own)
		model := make([]float64, rows*cols)
		random := rand.New(rand.NewPCG(1, 2)) // the same on all ranks
		for turn := range 12 {
			from, to := random.IntN(m.group.Size), random.IntN(m.group.Size)
			shape, steps := []int64{1 + random.Int64N(rows), 1 + random.Int64N(cols)}, []int64{cols, 1}
			offset := random.Int64N(rows-shape[0]+1)*cols + random.Int64N(cols-shape[1]+1)
			if turn%3 == 1 { // transposed
				shape[0], shape[1], steps[0], steps[1] = shape[1], shape[0], 1, cols
			}
			value := float64(turn + 1)
			code := []Code{Put, Accumulate}[turn%2]
			n := shape[0] * shape[1]
			if to == m.rank {
				for i := range n {
					at := offset + i/shape[1]*steps[0] + i%shape[1]*steps[1]
					if code == Put {
						model[at] = 0
					}
					model[at] += value + float64(i)
				}
			}
			if from == m.rank {
				values := make([]float64, n)
				for i := range values {
					values[i] = value + float64(i)
				}
				x := tensor(op.Float64, values...)
				require.NoError(m, w.test(boxed(Op{Code: code, Rank: int32(to), Reduce: op.Sum, Send: x}, offset, shape, steps)))
				if code == Put {
					out := tensor(op.Float64, make([]float64, n)...)
					require.NoError(m, w.test(boxed(Op{Code: Get, Rank: int32(to), Recv: out}, offset, shape, steps)))
					assert.True(m, slices.Equal(values, valuesOf[float64](out)))
				}
			}
			w.fenced(m.T)
		}
		assert.True(m, slices.Equal(model, valuesOf[float64](own)))
	})
}

func TestWrongCalls(t *testing.T) {
	everywhere(t, func(m *member) {
		own := tensor(op.Float32, make([]float32, 8)...)
		w := m.make(own)
		last := int32(m.group.Size - 1)
		x := tensor(op.Float32, float32(1), 2, 3)
		for text, o := range map[string]Op{
			"rank=-1 is no rank of the window's group":        {Code: Put, Rank: -1, Send: x},
			fmt.Sprintf("has ranks 0 to %d", last):            {Code: Get, Rank: last + 1, Recv: x},
			"offset=6 and the 3 elements of x are not within": {Code: Put, Rank: last, Offset: 6, Send: x},
			"offset=-1 and the 3 elements of out":             {Code: Get, Rank: last, Offset: -1, Recv: x},
			"x is of float64, and the window of float32":      {Code: Put, Rank: last, Send: tensor(op.Float64, 1.0)},
			"op=BAND is not defined for float32":              {Code: Accumulate, Rank: last, Reduce: op.BAnd, Send: x},
			"op=AVG is for all ranks of a group together":     {Code: Accumulate, Rank: last, Reduce: op.Avg, Send: x},
			"op=LAND is not defined for float32":              {Code: Accumulate, Rank: last, Reduce: LAnd, Send: x},
			"value has 3 elements":                            {Code: CompareAndSwap, Rank: last, Send: x, Recv: x, Compare: x},
			"rank=0 is not locked by this rank":               {Code: Unlock, Rank: 0},
			"there is no window operation 99":                 {Code: 99, Rank: 0},
		} {
			assert.ErrorContains(m, w.test(o), text)
		}
		w.fenced(m.T)
		assert.Equal(m, make([]float32, 8), valuesOf[float32](own))
	})
}

func TestOrdinaryMemoryIsRefused(t *testing.T) {
	ranks(t, []int{0, 0}, func(m *member) {
		p, err := mem.Alloc(64)
		require.NoError(m, err)
		ordinary := op.Buf{Data: p, Count: 8, DType: op.Float64, DeviceType: op.DeviceCPU}
		if m.rank == 0 {
			_, err = m.windows.New(&ordinary, -1, false)
			assert.Equal(m, status.Unsupported, status.CodeOf(err))
			assert.ErrorContains(m, err, "is in no heap")
		} else {
			own := tensor(op.Float64, 1.0)
			_, err = m.windows.New(&own, -1, false)
			assert.Equal(m, status.Refused, status.CodeOf(err))
		}
		d := []op.DType{op.Int32, op.Float32}[m.rank]
		own := tensor(d, int32(0))
		_, err = m.windows.New(&own, -1, false)
		assert.Equal(m, status.Mismatch, status.CodeOf(err))
		again := tensor(op.Int32, int32(0))
		m.make(again).fenced(m.T)
	})
}

func TestSignals(t *testing.T) {
	everywhere(t, func(m *member) {
		own := tensor(op.Int64, int64(0))
		w := m.make(own)
		next, before := int32((m.rank+1)%m.group.Size), int32((m.rank+m.group.Size-1)%m.group.Size)
		for i := range 20 {
			require.NoError(m, w.test(Op{Code: Put, Rank: next, Send: tensor(op.Int64, int64(100*i+m.rank))}))
			require.NoError(m, w.test(Op{Code: Signal, Rank: next}))
			require.NoError(m, w.test(Op{Code: WaitSignal, Rank: before}))
			assert.EqualValues(m, 100*i+int(before), valuesOf[int64](own)[0])
			w.fenced(m.T)
		}
		err := w.test(Op{Code: WaitSignal, Rank: before, TimeoutNS: int64(10 * time.Millisecond)})
		assert.Equal(m, status.Timeout, status.CodeOf(err))
		assert.ErrorContains(m, err, "Window.wait_signal")
		w.fenced(m.T)
	})
}

// Under the lock a rank reads, waits and writes, and nobody comes between.
func TestLocks(t *testing.T) {
	everywhere(t, func(m *member) {
		own := tensor(op.Int64, int64(0), 0)
		w := m.make(own)
		last := int32(m.group.Size - 1)
		const times = 10
		for range times {
			require.NoError(m, w.test(Op{Code: Lock, Rank: last}))
			assert.ErrorContains(m, w.test(Op{Code: Lock, Rank: last}), "is locked already by this rank")
			v := tensor(op.Int64, int64(-1))
			require.NoError(m, w.test(Op{Code: Get, Rank: last, Recv: v}))
			time.Sleep(100 * time.Microsecond)
			valuesOf[int64](v)[0]++
			require.NoError(m, w.test(Op{Code: Put, Rank: last, Send: v}))
			require.NoError(m, w.test(Op{Code: Unlock, Rank: last}))
			require.NoError(m, w.test(Op{Code: LockShared, Rank: All}))
			require.NoError(m, w.test(Op{Code: Unlock, Rank: All}))
		}
		w.fenced(m.T)
		if m.rank == int(last) {
			assert.EqualValues(m, times*m.group.Size, valuesOf[int64](own)[0])
		}
		if m.group.Size == 1 {
			return
		}
		// All hold it shared at once: each sees the others' numbers before it lets go.
		require.NoError(m, w.test(Op{Code: LockShared, Rank: last}))
		w.fenced(m.T)
		if m.rank == 0 {
			err := w.Free(-1, false)
			assert.ErrorContains(m, err, "holds the lock of rank")
		} else {
			assert.Equal(m, status.Argument, status.CodeOf(w.Free(-1, false)))
		}
		require.NoError(m, w.test(Op{Code: Unlock, Rank: last}))
		if m.rank == 0 {
			require.NoError(m, w.test(Op{Code: Lock, Rank: last}))
		}
		w.fenced(m.T)
		if m.rank == 1 {
			err := w.test(Op{Code: Lock, Rank: last, TimeoutNS: int64(20 * time.Millisecond)})
			assert.Equal(m, status.Timeout, status.CodeOf(err))
		}
		w.fenced(m.T)
		if m.rank == 0 {
			require.NoError(m, w.test(Op{Code: Unlock, Rank: last}))
		}
		w.fenced(m.T)
		require.NoError(m, w.test(Op{Code: Lock, Rank: last}))
		require.NoError(m, w.test(Op{Code: Unlock, Rank: last}))
		w.fenced(m.T)
	})
}

// A window that a member has closed gives the others errors, whichever way they come.
func TestAWindowThatWasClosedElsewhere(t *testing.T) {
	for name, nodes := range map[string][]int{"one node": {0, 0}, "two nodes": {0, 1}} {
		t.Run(name, func(t *testing.T) {
			ranks(t, nodes, func(m *member) {
				own := tensor(op.Int64, int64(0))
				w := m.make(own)
				meet := func() { require.NoError(m, collective{Group{m.group.Members(), m.group}, -1, false}.barrier()) }
				if m.rank == 0 {
					w.Close()
				}
				meet()
				if m.rank == 1 {
					err := w.test(Op{Code: Put, Rank: 0, Send: tensor(op.Int64, int64(1))})
					if err == nil {
						err = w.test(Op{Code: Flush, Rank: 0})
					}
					assert.Equal(m, status.GroupDestroyed, status.CodeOf(err))
					assert.ErrorContains(m, err, "rank 0 has freed the window")
				}
				meet()
				assert.Zero(m, valuesOf[int64](own)[0])
			})
		})
	}
}

func TestTheRecorderKnowsTheNames(t *testing.T) {
	names := map[Code]string{Put: "put", Get: "get", Accumulate: "accumulate", GetAccumulate: "get_accumulate", CompareAndSwap: "compare_and_swap",
		Flush: "flush", Fence: "fence", Signal: "signal", WaitSignal: "wait_signal", Lock: "lock", LockShared: "lock", Unlock: "unlock", Free: "free"}
	for code, name := range names {
		assert.Equal(t, "Window."+name, trace.Accesses[code])
		assert.Equal(t, "Window."+name, code.String())
	}
	assert.Len(t, trace.Accesses, len(names)+1)
	for _, code := range []Code{0, Free + 1, -1} {
		assert.Equal(t, fmt.Sprintf("window operation %d", code), code.String())
	}
}

func TestALongWaitIsReported(t *testing.T) {
	ranks(t, []int{0, 1}, func(m *member) {
		w := m.make(tensor(op.Int64, int64(0)))
		if m.rank == 0 {
			lines := make(chan string, 10)
			m.env.Reports.After, m.env.Reports.Write = 50*time.Millisecond, func(line string) { lines <- line }
			err := w.test(Op{Code: WaitSignal, Rank: 1, TimeoutNS: int64(2 * time.Second)})
			assert.Equal(m, status.Timeout, status.CodeOf(err))
			assert.Contains(m, <-lines, "Window.wait_signal on the group of ranks [0 1]")
			assert.Empty(m, lines)
		}
		w.fenced(m.T)
	})
}

// Who gives a lock back rings, and who waits for it no longer. A look does not.
func TestLocksRing(t *testing.T) {
	ranks(t, []int{0, 0}, func(m *member) {
		w := m.make(tensor(op.Int64, int64(0)))
		if own := w.members.memoryOf(m.rank); m.rank == 0 { // bells of a test are of one rank of the process
			for _, shared := range []bool{false, true} {
				taken, _ := own.tryLock(0, shared, 2)
				require.True(m, taken)
				assert.False(m, worktest.Rings(m, func() { _, _ = own.tryLock(1, false, 2) }), "a look")
				assert.True(m, worktest.Rings(m, func() { own.unlock(1) }), "it waits no longer")
				assert.True(m, worktest.Rings(m, func() { own.unlock(0) }), "it is given back")
			}
		}
		w.fenced(m.T)
	})
}

// A signal rings.
func TestASignalRings(t *testing.T) {
	ranks(t, []int{0}, func(m *member) {
		w := m.make(tensor(op.Int64, int64(0)))
		assert.True(m, worktest.Rings(m, func() { require.NoError(m, w.test(Op{Code: Signal, Rank: 0})) }))
		require.NoError(m, w.test(Op{Code: WaitSignal, Rank: 0}))
	})
}

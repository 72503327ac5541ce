package table

import (
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/reduce"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func best() string { return reduce.ISA() }

// has tells whether this processor has an instruction set.
func has(isa string) bool {
	return isa == "portable" || isa == best() || best() == "avx512"
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

func newTable(t testing.TB, isa string, c Config) *Table {
	t.Helper()
	table, err := newFor(c, isa)
	require.NoError(t, err)
	t.Cleanup(table.Free)
	return table
}

func config(optimizer string, dim int64) Config {
	value, norm := 1.5, 4.0
	return Config{Dim: dim, DType: "float32", Seed: 7, Initializer: Initializer{"normal", 0.1, 0.5},
		Optimizer: Optimizer{Name: optimizer, LearningRate: 0.1, WeightDecay: 0.01, ClipValue: &value, ClipNorm: &norm, Momentum: 0.9,
			Nesterov: true, Beta1: 0.9, Beta2: 0.99, Epsilon: 1e-6, InitialAccumulator: 0.1}}
}

// bits trains a table and returns the bits of its rows and states.
func bits(t *testing.T, isa string, c Config, gradients op.DType) []uint32 {
	table := newTable(t, isa, c)
	random := rand.New(rand.NewPCG(1, 2))
	const n = 500
	for step := range 4 {
		ids, of := tensor(t, op.Int64, make([]int64, n))
		for i := range of {
			of[i] = int64(random.IntN(200)) - 50
		}
		var values *op.Buf
		if gradients == op.Float32 {
			floats := make([]float32, n*c.Dim)
			for i := range floats {
				floats[i] = float32(random.NormFloat64())
			}
			values, _ = tensor(t, gradients, floats)
		} else {
			halves := make([]uint16, n*c.Dim)
			for i := range halves {
				halves[i] = uint16(random.IntN(0x3c00)) | uint16(random.IntN(2))<<15 // finite in both
			}
			values, _ = tensor(t, gradients, halves)
		}
		require.NoError(t, table.Push(Batch{IDs: ids, Values: values}, math.NaN(), int64(step)*2))
	}
	info, err := table.Info()
	require.NoError(t, err)
	ids, list := tensor(t, op.Int64, make([]int64, info.Rows))
	rows, err := table.IDs(ids)
	require.NoError(t, err)
	require.Equal(t, info.Rows, rows)
	slices.Sort(list)
	values, row := tensor(t, op.Float32, make([]float32, rows*c.Dim))
	states, state := tensor(t, op.Float32, make([]float32, rows*info.StateBytes/4))
	require.NoError(t, table.Read(Batch{IDs: ids, Values: values, States: states}))
	pulled, other := tensor(t, op.Float32, make([]float32, rows*c.Dim))
	require.NoError(t, table.Pull(Batch{IDs: ids, Values: pulled}))
	assert.Equal(t, row, other)
	var all []uint32
	for _, f := range append(slices.Clone(row), state...) {
		all = append(all, math.Float32bits(f))
	}
	return all
}

// Every instruction set gives the same bits, in all optimizers, dtypes and lengths of rows.
func TestInstructionSetsAgree(t *testing.T) {
	for name := range optimizers {
		for _, dim := range []int64{1, 15, 16, 40, 130} {
			for _, dtype := range []op.DType{op.Float32, op.Float16, op.BFloat16} {
				for _, gradients := range []op.DType{op.Float32, dtype} {
					c := config(name, dim)
					c.DType = dtype.String()
					want := bits(t, "portable", c, gradients)
					for _, isa := range []string{"avx2", "avx512"} {
						if has(isa) && reduce.ISA() != "portable" {
							assert.Equal(t, want, bits(t, isa, c, gradients), "%s %s dim %d %v %v", isa, name, dim, dtype, gradients)
						}
					}
				}
			}
		}
	}
}

// Ids that fall into few bins, so that searches go on to the next bin and around the end.
func TestFullBins(t *testing.T) {
	for _, isa := range []string{"portable", "avx2", "avx512"} {
		if !has(isa) {
			continue
		}
		table := newTable(t, isa, config("sgd", 3))
		table.t.c.secret[0], table.t.c.secret[1] = 0, 1 // small ids differ in the low bits of the hash only
		want := map[int64][]float32{}
		for round := range 20 {
			ids, of := tensor(t, op.Int64, make([]int64, 300))
			for i := range of {
				of[i] = int64(round*150+i) * 89 // multiples of a Fibonacci number lie close together
			}
			values, row := tensor(t, op.Float32, make([]float32, 900))
			require.NoError(t, table.Pull(Batch{IDs: ids, Values: values}))
			for i, id := range of {
				mine := slices.Clone(row[3*i : 3*i+3])
				if before, seen := want[id]; seen {
					require.Equal(t, before, mine, "id %d", id)
				}
				want[id] = mine
			}
		}
		info, err := table.Info()
		require.NoError(t, err)
		assert.EqualValues(t, len(want), info.Rows)
	}
}

// Pushes of several threads, some of them past the limit, and a Free in between.
func TestFreeUnderCalls(t *testing.T) {
	c := config("adagrad", 8)
	c.MemoryLimit = 2 << 20
	table := newTable(t, best(), c)
	var threads sync.WaitGroup
	for thread := range 4 {
		ids, of := tensor(t, op.Int64, make([]int64, 2000))
		values, _ := tensor(t, op.Float32, make([]float32, 16000))
		threads.Add(1)
		go func() {
			defer threads.Done()
			for round := range 60 {
				for i := range of {
					of[i] = int64(thread*1000000 + round*500 + i)
				}
				if err := table.Push(Batch{IDs: ids, Values: values}, 0.1, 0); err != nil {
					assert.Contains(t, []status.Code{status.NoMemory, status.Argument}, status.CodeOf(err), "%v", err)
				}
				if info, err := table.Info(); err == nil {
					assert.LessOrEqual(t, info.Bytes, c.MemoryLimit)
				}
				if round == 50 && thread == 0 {
					table.Free()
				}
			}
		}()
	}
	threads.Wait()
	ids, _ := tensor(t, op.Int64, []int64{1})
	_, err := table.IDs(ids)
	assert.ErrorContains(t, err, "closed")
	_, err = table.Info()
	assert.ErrorContains(t, err, "closed")
}

func TestWrongBatches(t *testing.T) {
	table := newTable(t, best(), config("row_wise_adagrad", 2))
	ids, _ := tensor(t, op.Int64, []int64{1, 2})
	values, _ := tensor(t, op.Float32, make([]float32, 4))
	short, _ := tensor(t, op.Float32, make([]float32, 3))
	doubles, _ := tensor(t, op.Float64, make([]float64, 4))
	device := *values
	device.DeviceType = op.DeviceCUDA
	for _, wrong := range []struct {
		batch Batch
		code  status.Code
		text  string
	}{
		{Batch{IDs: values, Values: values}, status.Type, "ids are of float32"},
		{Batch{IDs: ids, Values: doubles}, status.Type, "rows are of float64"},
		{Batch{IDs: ids, Values: short}, status.Argument, "rows have 3 elements"},
		{Batch{IDs: ids, Values: values, States: short}, status.Argument, "states have 3 elements; 2 ids need 2"},
		{Batch{IDs: ids, Values: values, States: doubles}, status.Type, "states are of float64"},
		{Batch{IDs: ids, Values: &device}, status.Unsupported, "device memory"},
		{Batch{IDs: ids, Values: values}, status.Argument, "which has no row"},
	} {
		err := table.Read(wrong.batch)
		assert.ErrorContains(t, err, wrong.text)
		assert.Equal(t, wrong.code, status.CodeOf(err))
	}
}

// An addition goes past the optimizer, and past its states.
func TestFindAndAdd(t *testing.T) {
	for _, dtype := range []string{"float32", "bfloat16"} {
		c := config("adam", 3)
		c.DType, c.Initializer, c.Refuse = dtype, Initializer{Name: "zeros"}, true
		table := newTable(t, best(), c)
		ids, _ := tensor(t, op.Int64, []int64{5, 9})
		gains, _ := tensor(t, op.Float32, []float32{1, -2, 4, 0.5, 8, -16})
		states, before := tensor(t, op.Float32, make([]float32, 12))
		after, same := tensor(t, op.Float32, make([]float32, 12))
		rows, got := tensor(t, op.Float32, make([]float32, 6))
		require.NoError(t, table.Push(Batch{IDs: ids, Values: gains}, math.NaN(), 0))
		require.NoError(t, table.Read(Batch{IDs: ids, Values: rows, States: states}))
		want := slices.Clone(got)
		for range 2 {
			u, err := table.Prepare(Batch{IDs: ids, Values: gains}, math.NaN())
			require.NoError(t, err)
			require.NoError(t, u.Add())
			u.End()
		}
		require.NoError(t, table.Read(Batch{IDs: ids, Values: rows, States: after}))
		for i, gain := range []float32{1, -2, 4, 0.5, 8, -16} {
			assert.InDelta(t, want[i]+2*gain, got[i], 0.2, dtype)
		}
		assert.Equal(t, before, same)
		assert.EqualValues(t, 1, table.Steps())

		some, _ := tensor(t, op.Int32, []int32{4, 9, 5, 4})
		found, values := tensor(t, op.Float32, slices.Repeat([]float32{7}, 12))
		_, there := tensor(t, op.UInt8, make([]byte, 4))
		require.NoError(t, table.Find(Batch{IDs: some, Values: found}, there))
		assert.Equal(t, []byte{0, 1, 1, 0}, there)
		assert.Equal(t, slices.Concat([]float32{7, 7, 7}, got[3:], got[:3], []float32{7, 7, 7}), values)
		clear(there)
		require.NoError(t, table.Find(Batch{IDs: some}, there))
		assert.Equal(t, []byte{0, 1, 1, 0}, there)
		assert.Error(t, table.Find(Batch{IDs: some}, there[:3]))
		info, err := table.Info()
		require.NoError(t, err)
		assert.EqualValues(t, 2, info.Rows, "to find makes none")
	}
	huge := []float32{math.MaxFloat32, -math.MaxFloat32, 4, float32(math.NaN())}
	Delta(huge, []float32{-math.MaxFloat32, math.MaxFloat32, 1, 0}, 1)
	assert.Equal(t, []float32{math.MaxFloat32, -math.MaxFloat32, 3}, huge[:3])
	assert.True(t, math.IsNaN(float64(huge[3])))
	g := []float32{2, 3, 2, 3}
	Compensate(g, []float32{5, 6, 5, 6}, []float32{4, 8, 4, 8}, nil, []byte{1, 0}, 0.5, 0, 2)
	assert.Equal(t, []float32{4, -6, 2, 3}, g)
	g, squares := []float32{2, 4}, []float32{8, 12}
	Compensate(g, []float32{5, 6}, []float32{4, 8}, squares, []byte{1, 0}, 0.5, 0.5, 1)
	assert.InDeltaSlice(t, []float32{2 + 0.5/float32(math.Sqrt(6))*4, 4}, g, 1e-6)
	assert.InDeltaSlice(t, []float32{6, 14}, squares, 1e-6)
}

// What few rows take of the machine is little more than rows and states: a shard with one row of
// 32 KiB has no room for more, and a table of one small row takes a page. Each table also has locks
// and lists of some 30 KiB at most.
func TestMemoryOfFewRows(t *testing.T) {
	for _, optimizer := range []string{"sgd", "row_wise_adagrad", "momentum", "adam"} {
		for _, of := range []struct{ dim, rows, ids int64 }{{8192, 1, 1}, {8192, 7, 14}, {8192, 100, 100}, {8192, 300, 0}, {1, 1, 1}, {600, 1, 1},
			{16, 1000, 1000}, {64, 5000, 5000}, {1024, 640, 640}, {1 << 16, 40, 0}} {
			c := config(optimizer, of.dim)
			c.IDs, c.Initializer = of.ids, Initializer{Name: "zeros"}
			table := newTable(t, best(), c)
			ids, each := tensor(t, op.Int64, make([]int64, of.rows))
			for i := range each {
				each[i] = int64(i)
			}
			require.NoError(t, table.Make(ids))
			info, err := table.Info()
			require.NoError(t, err)
			needed := of.rows * (info.RowBytes + info.StateBytes)
			shards := 64 * min(64, of.rows) * 8 // an index of four bins and a list of slabs, of each that has rows
			assert.LessOrEqual(t, info.Bytes, needed*4/3+shards+of.rows*40+(16<<10), "%s, %+v: %d bytes of rows and states", optimizer, of, needed)
		}
	}
}

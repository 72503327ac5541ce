package table

import (
	"math"
	"slices"
	"testing"

	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A lookup makes no row, and gives the bits that the row has when it is made later.
func TestLook(t *testing.T) {
	for _, initializer := range []Initializer{{"zeros", 0, 0}, {"uniform", -0.25, 0.25}, {"normal", 0.1, 0.5}} {
		for _, dtype := range []op.DType{op.Float32, op.Float16, op.BFloat16} {
			for _, isa := range []string{"portable", best()} {
				c := config("adam", 7)
				c.Initializer, c.DType = initializer, dtype.String()
				table := newTable(t, isa, c)
				some, _ := tensor(t, op.Int64, []int64{5, -9})
				gradients, _ := tensor(t, op.Float32, slices.Repeat([]float32{1}, 14))
				require.NoError(t, table.Push(Batch{IDs: some, Values: gradients}, math.NaN(), 0))
				trained, pushed := tensor(t, op.Float32, make([]float32, 14))
				require.NoError(t, table.Read(Batch{IDs: some, Values: trained}))

				ids, _ := tensor(t, op.Int32, []int32{4, 5, 4, math.MinInt32, -9})
				looked, got := tensor(t, op.Float32, slices.Repeat([]float32{3}, 35))
				short, bits := tensor(t, op.UInt16, slices.Repeat([]uint16{3}, 35))
				require.NoError(t, table.Look(Batch{IDs: ids, Values: looked}, true))
				zeros := make([]float32, 7)
				assert.Equal(t, slices.Concat(zeros, pushed[:7], zeros, zeros, pushed[7:]), got)
				require.NoError(t, table.Look(Batch{IDs: ids, Values: looked}, false))
				short.DType = dtype
				if dtype != op.Float32 {
					require.NoError(t, table.Look(Batch{IDs: ids, Values: short}, false))
				}
				info, err := table.Info()
				require.NoError(t, err)
				assert.EqualValues(t, 2, info.Rows)

				rows, want := tensor(t, op.Float32, make([]float32, 35))
				require.NoError(t, table.Pull(Batch{IDs: ids, Values: rows}))
				assert.Equal(t, want, got, "%v %v %s", initializer, dtype, isa)
				again, wanted := tensor(t, op.UInt16, make([]uint16, 35))
				again.DType = dtype
				if dtype != op.Float32 {
					require.NoError(t, table.Pull(Batch{IDs: ids, Values: again}))
					assert.Equal(t, wanted, bits, "%v %v %s", initializer, dtype, isa)
				}
			}
		}
	}
}

// A table that is full answers lookups, also by several threads; an id out of range is refused.
func TestLookInAFullTable(t *testing.T) {
	c := config("sgd", sharedDim)
	c.MemoryLimit, c.IDs = 4<<20, 2*sharedIDs
	table := newTable(t, best(), c)
	table.Threads = 3
	ids, of := tensor(t, op.Int64, make([]int64, sharedIDs))
	for i := range of {
		of[i] = int64(2 * i)
	}
	values, got := tensor(t, op.Float32, make([]float32, sharedIDs*sharedDim))
	require.Equal(t, status.NoMemory, status.CodeOf(table.Make(ids)))
	before, err := table.Info()
	require.NoError(t, err)
	require.NoError(t, table.Look(Batch{IDs: ids, Values: values}, false))
	after, err := table.Info()
	require.NoError(t, err)
	assert.Equal(t, before, after)

	free := newTable(t, "portable", config("sgd", sharedDim))
	rows, want := tensor(t, op.Float32, make([]float32, sharedIDs*sharedDim))
	require.NoError(t, free.Pull(Batch{IDs: ids, Values: rows}))
	assert.True(t, slices.Equal(want, got))

	of[7] = c.IDs
	err = table.Look(Batch{IDs: ids, Values: values}, true)
	assert.ErrorContains(t, err, "lookup: ids[7] is 40000; the table takes ids from 0 to 39999 (num_ids)")
}

package neighbours

import (
	"math"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/grid"
	"github.com/paddlempi/paddlempi/gocore/op"
)

// lineOf returns a call of a halo of one row at each end of 2 x 20,000 elements on rank 0 of two, which lie at data.
func lineOf(t *testing.T, patterns *Patterns, data []float32, shape []int64) *Call {
	number, err := patterns.NewHalo(2, &grid.Halo{Grid: grid.Grid{Dims: []int{2, 1}, Periodic: []bool{false, false}},
		Widths: []grid.Width{{Before: 1, After: 1}, {}}})
	require.NoError(t, err)
	b := op.Buf{Data: unsafe.Pointer(unsafe.SliceData(data)), Count: int64(len(data)), DType: op.Float32, DeviceType: op.DeviceCPU,
		NDim: 2, Shape: unsafe.Pointer(unsafe.SliceData(shape))}
	c := &Call{Code: op.HaloExchange}
	require.NoError(t, c.Check(patterns, number, nil, []op.Buf{b}))
	return c
}

// What a pattern makes of tensors of one shape is made once.
func TestAPlanIsKept(t *testing.T) {
	var patterns Patterns
	data := make([]float32, 4*20_000)
	first := lineOf(t, &patterns, data, []int64{4, 20_000})
	again := lineOf(t, &patterns, data, []int64{4, 20_000})
	other := lineOf(t, &patterns, data[:3*20_000], []int64{3, 20_000})
	assert.Same(t, first.Neighbours, again.Neighbours)
	assert.NotSame(t, first.Neighbours, other.Neighbours)
	assert.Equal(t, int64(4*20_000), first.Neighbours.OutBytes)
}

// What a rank says of its tensor may be anything.
func TestLayoutsThatCannotBe(t *testing.T) {
	var patterns Patterns
	lend := lineOf(t, &patterns, make([]float32, 4*20_000), []int64{4, 20_000}).Neighbours.Lend
	require.True(t, lend.Worth)
	good := []int64{5, 20_000, 20_000, 1}
	boxes, err := lend.From(1, good, 0, 4*5*20_000)
	require.NoError(t, err)
	require.Len(t, boxes, 1)
	for _, bad := range [][]int64{
		{5, 20_001, 20_001, 1, 0, 4 * 5 * 20_001},        // of another length
		{5, 20_000, 20_000, 1, 0, 4*5*20_000 - 4},        // shorter than it
		{5, 20_000, 20_000, 1, 4, 4 * 5 * 20_000},        // begins elsewhere
		{5, 20_000, 20_000, 1, -4, 4 * 5 * 20_000},       // the same
		{5, 20_000, -20_000, 1, 0, 4 * 5 * 20_000},       // before its memory
		{0, 20_000, 20_000, 1, 0, 4 * 20_000},            // no rows
		{-5, 20_000, 20_000, 1, 0, 4 * 5 * 20_000},       //
		{1, 20_000, 20_000, 1, 0, 4 * 20_000},            // no row within the border
		{5, 20_000, math.MinInt64, 1, 0, 4 * 5 * 20_000}, // beyond all memory
		{math.MaxInt64, 20_000, 20_000, 1, 0, 4 * 5 * 20_000},
		{5, 20_000, math.MaxInt64, 1, 0, 4 * 5 * 20_000},
		{5, 20_000, 1 << 61, 1, 0, 0},
	} {
		_, err := lend.From(1, bad[:4], bad[4], bad[5])
		assert.Error(t, err, "%v", bad)
	}
	again, err := lend.From(1, good, 0, 4*5*20_000)
	require.NoError(t, err)
	assert.Equal(t, boxes, again)
}

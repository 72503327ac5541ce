package mem

import (
	"os"
	"strconv"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/cuda"
	"github.com/paddlempi/paddlempi/gocore/cuda/cudafake"
	"github.com/paddlempi/paddlempi/gocore/op"
)

const enough = 8 << 20 // bytes of pinned memory that the fake driver has

// device returns device 0 of the fake driver. The driver is loaded once for the process, and a copy
// takes up to a tenth of a second.
func device(t *testing.T) *cuda.Device {
	t.Helper()
	if cuda.Loaded() == nil {
		for name, value := range map[string]string{"PMPI_FAKECUDA_DELAY": "100000", "PMPI_FAKECUDA_SEED": "7",
			"PMPI_FAKECUDA_PINNED": strconv.Itoa(enough), cuda.Setting: cudafake.Build(t)} {
			require.NoError(t, os.Setenv(name, value)) // for the process, because the driver is loaded once
		}
	}
	driver, err := cuda.Open()
	require.NoError(t, err)
	d, err := driver.Device(0)
	require.NoError(t, err)
	return d
}

func TestAPinnedBlockIsNotGivenAwayWhileTheDeviceReadsIt(t *testing.T) {
	if testing.Short() {
		t.Skip("long: make test-ci runs it")
	}
	d := device(t)
	defer TrimPinned()
	first, err := GetPinned(d, 1000)
	require.NoError(t, err)
	assert.True(t, first.Locked)
	on, err := d.Alloc(1000)
	require.NoError(t, err)
	defer func() { assert.NoError(t, d.Free(on)) }()

	require.NoError(t, d.Copy(on, first.Data, 1000, d.In)) // it ends late, so the block is read after PutPinned
	PutPinned(first, d.In)
	second, err := GetPinned(d, 1000)
	require.NoError(t, err)
	assert.NotEqual(t, first.Data, second.Data)
	PutPinned(second, 0)

	require.NoError(t, d.StreamSync(d.In))
	third, err := GetPinned(d, 1000)
	require.NoError(t, err)
	assert.Equal(t, second.Data, third.Data, "the latest first")
	fourth, err := GetPinned(d, 1000)
	require.NoError(t, err)
	assert.Equal(t, first.Data, fourth.Data)
	PutPinned(third, 0)
	PutPinned(fourth, 0)
}

func TestAPinnedBlockServesOneDeviceAfterAnother(t *testing.T) {
	zero := device(t)
	one, err := cuda.Loaded().Device(1)
	require.NoError(t, err)
	defer TrimPinned()
	first, err := GetPinned(zero, 1000)
	require.NoError(t, err)
	PutPinned(first, 0)
	block, err := GetPinned(one, 1000)
	require.NoError(t, err)
	assert.Equal(t, first.Data, block.Data)
	on, err := one.Alloc(1000)
	require.NoError(t, err)
	defer func() { assert.NoError(t, one.Free(on)) }()
	require.NoError(t, one.Copy(on, block.Data, 1000, one.In))
	PutPinned(block, one.In)
	next, err := GetPinned(zero, 1000)
	require.NoError(t, err)
	assert.NotEqual(t, block.Data, next.Data, "device 1 reads it")
	PutPinned(next, 0)
	require.NoError(t, one.StreamSync(one.In))
}

func TestWithoutPinnedMemoryThereIsPageable(t *testing.T) {
	d := device(t)
	defer TrimPinned()
	idle, err := GetPinned(d, enough/2)
	require.NoError(t, err)
	PutPinned(idle, 0)
	whole, err := GetPinned(d, enough) // the idle block has to be freed first
	require.NoError(t, err)
	assert.True(t, whole.Locked)
	pageable, err := GetPinned(d, enough)
	require.NoError(t, err)
	assert.False(t, pageable.Locked)
	unsafe.Slice((*byte)(pageable.Data), enough)[enough-1] = 1
	PutPinned(pageable, d.Out)
	PutPinned(whole, 0)
}

func TestStridedTensorsMoveToFlatMemoryAndBack(t *testing.T) {
	d := device(t)
	const rows, columns = 5, 4
	on, err := d.Alloc(rows * columns * 2 * 4)
	require.NoError(t, err)
	defer func() { assert.NoError(t, d.Free(on)) }()
	block, err := GetPinned(d, 4096)
	require.NoError(t, err)
	defer PutPinned(block, 0)
	values := unsafe.Slice((*float32)(block.Data), 100)
	for i := range values {
		values[i] = float32(i)
	}
	shape, strides := [2]int64{rows, columns}, [2]int64{1, 2 * rows} // every second column of a transposed tensor
	b := &op.Buf{Data: on, Count: rows * columns, DType: op.Float32, NDim: 2, Shape: unsafe.Pointer(&shape), Strides: unsafe.Pointer(&strides)}
	require.NoError(t, MoveStrided(d, block.Data, b, 0, b.Count, true, d.In))
	require.NoError(t, d.StreamSync(d.In))
	clear(values)
	require.NoError(t, MoveStrided(d, block.Data, b, 3, 10, false, d.In))
	require.NoError(t, MoveStrided(d, unsafe.Add(block.Data, 40*4), b, 0, 0, false, d.In)) // copies nothing
	require.NoError(t, d.StreamSync(d.In))
	for i := range 10 {
		assert.Equal(t, float32(i+3), values[i])
	}
	assert.Zero(t, values[10])
	// The strides say where an element is.
	require.NoError(t, d.Copy(block.Data, on, rows*columns*2*4, d.In))
	require.NoError(t, d.StreamSync(d.In))
	for i := range rows {
		for j := range columns {
			assert.Equal(t, float32(i*columns+j), values[i+2*rows*j], "row %d, column %d", i, j)
		}
	}
}

func TestPinnedBlocksAreKeptUpToTheLimit(t *testing.T) {
	d := device(t)
	defer TrimPinned()
	TrimPinned()
	first, err := GetPinned(d, 1000)
	require.NoError(t, err)
	second, err := GetPinned(d, 1000)
	require.NoError(t, err)
	PutPinned(first, 0)
	PutPinned(second, 0)
	drop := func(limit int64) []*Pinned {
		pinned.Lock()
		defer pinned.Unlock()
		return dropPinned(limit)
	}
	both := first.Bytes + second.Bytes
	assert.Empty(t, drop(both))
	oldest := drop(both - 1)
	assert.Equal(t, []*Pinned{first}, oldest)
	releasePinned(oldest)
}

package table

import (
	"math"
	"testing"

	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// see pushes ids from first on, each once, and returns how many rows there are then.
func see(t testing.TB, table *Table, first, n int64) int64 {
	ids, of := tensor(t, op.Int64, make([]int64, n))
	for i := range of {
		of[i] = first + int64(i)
	}
	values, _ := tensor(t, op.Float32, make([]float32, n*table.Dim))
	require.NoError(t, table.Push(Batch{IDs: ids, Values: values}, math.NaN(), 0))
	info, err := table.Info()
	require.NoError(t, err)
	return info.Rows
}

func counting(t testing.TB, after int64) *Table {
	c := lives(after, 0, 0)
	c.Dim, c.Initializer = 1, Initializer{Name: "zeros"}
	return newTable(t, best(), c)
}

// Counters are halved after 2^20 counted ids, before the next push.
func TestSketchForgets(t *testing.T) {
	table := counting(t, 4)
	see(t, table, 0, 10) // once
	for range 3 {
		see(t, table, 100, 10) // three times
	}
	table.t.counted = 1<<20 - 1
	see(t, table, 1000, 1)
	see(t, table, 2000, 1) // halves, so that 0 to 9 are forgotten and the others were seen once
	assert.EqualValues(t, 1, table.t.counted)
	for range 2 {
		assert.Zero(t, see(t, table, 100, 10))
	}
	assert.EqualValues(t, 10, see(t, table, 100, 10))
	for range 3 {
		assert.EqualValues(t, 10, see(t, table, 0, 10))
	}
	assert.EqualValues(t, 20, see(t, table, 0, 10))
}

// What a full sketch admits too early is about what sketch.c says: of the last ids before it is
// halved 2.4 %, and less of those before.
func TestSketchErrors(t *testing.T) {
	table := counting(t, 2)
	const n = 1 << 16
	var before, last int64
	for i := range int64(16) {
		before, last = last, see(t, table, i*n, n)
	}
	assert.EqualValues(t, 1<<20, table.t.counted)
	assert.InDelta(t, 0.006, float64(last)/(1<<20), 0.003)
	assert.InDelta(t, 0.022, float64(last-before)/n, 0.006)
}

// A sketch goes to another table of the seed: what it has seen is known there, and all counters are
// the same.
func TestSketchMoves(t *testing.T) {
	one, other := counting(t, 2), counting(t, 2)
	see(t, one, 0, 3000)
	see(t, other, 3000, 10)
	for _, from := range []*Table{one, other, one} { // once more is not twice
		bytes, err := from.Sketch()
		require.NoError(t, err)
		to := counting(t, 2)
		require.NoError(t, to.AddSketch(bytes))
		again, err := to.Sketch()
		require.NoError(t, err)
		assert.Equal(t, bytes, again)
	}
	both := counting(t, 3)
	for _, from := range []*Table{one, other, one} {
		bytes, err := from.Sketch()
		require.NoError(t, err)
		require.NoError(t, both.AddSketch(bytes))
	}
	assert.Zero(t, see(t, both, 0, 3010))
	assert.EqualValues(t, 3010, see(t, both, 0, 3010))
	none := newTable(t, best(), lives(1, 3, 0))
	bytes, err := none.Sketch()
	require.NoError(t, err)
	assert.Nil(t, bytes)
	assert.ErrorContains(t, none.AddSketch(bytes), "admit_after is off")
}

// Bytes that are no sketch are refused by what is wrong with them, and change nothing.
func TestWrongSketches(t *testing.T) {
	table := counting(t, 2)
	see(t, table, 0, 2)
	good, err := table.Sketch()
	require.NoError(t, err)

	with := func(at int, bytes ...byte) []byte {
		wrong := append([]byte(nil), good...)
		copy(wrong[at:], bytes)
		return wrong
	}
	for text, wrong := range map[string][]byte{
		"fewer than its head":                      good[:39],
		`begins with "XMSK"`:                       with(0, 'X'),
		"of version 2; this one reads 1":           with(4, 2),
		"it has 5 rows of 2^21 counters":           with(8, 5),
		"4 rows of 2^20 counters":                  with(12, 20),
		"and seed 8; the table":                    with(16, 8),
		"it says that":                             with(32, 0xff, 0xff, 0xff, 0xff),
		"ends after 8 of 9 counters":               with(32, 9),
		"bytes are left after its 7 counters":      with(32, 7),
		"counter 0 of 8 is at no place of its own": with(40, 0),
		"ends after 7 of 8 counters":               good[:len(good)-1],
		"is at no place":                           append(with(0)[:sketchHeadBytes], 0xff, 0xff, 0xff, 0xff, 0xff, 1, 1),
	} {
		err := table.AddSketch(wrong)
		assert.ErrorContains(t, err, text)
		assert.Equal(t, status.Argument, status.CodeOf(err))
	}
	after, err := table.Sketch()
	require.NoError(t, err)
	assert.Equal(t, good, after)
}

// Whatever the bytes are, a sketch that is taken gives the same counters again.
func FuzzSketch(f *testing.F) {
	table := counting(f, 2)
	see(f, table, 0, 2)
	good, err := table.Sketch()
	require.NoError(f, err)
	f.Add(good)
	f.Add(good[:sketchHeadBytes])
	f.Fuzz(func(t *testing.T, bytes []byte) {
		fresh := counting(t, 2)
		if fresh.AddSketch(bytes) != nil {
			return
		}
		again, err := fresh.Sketch()
		require.NoError(t, err)
		once := counting(t, 2)
		require.NoError(t, once.AddSketch(again))
		twice, err := once.Sketch()
		require.NoError(t, err)
		require.Equal(t, again, twice)
		fresh.Free()
		once.Free()
	})
}

package table

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// What WriteStates has set is what Read and ReadStates give, and rows stay.
func TestStatesOfRows(t *testing.T) {
	c := config("adagrad", 3)
	table := newTable(t, best(), c)
	ids, _ := tensor(t, op.Int64, []int64{5, -2, 5})
	states, state := tensor(t, op.Float32, make([]float32, 9))
	steps, err := table.ReadStates(ids, states)
	require.NoError(t, err)
	assert.Zero(t, steps)
	first := float32(c.Optimizer.InitialAccumulator)
	assert.Equal(t, []float32{first, first, first, first, first, first, first, first, first}, state)
	info, err := table.Info()
	require.NoError(t, err)
	assert.Zero(t, info.Rows, "a read makes no row")

	two, _ := tensor(t, op.Int64, []int64{5, 9})
	rows, row := tensor(t, op.Float32, []float32{1, 2, 3, 4, 5, 6})
	require.NoError(t, table.Write(Batch{IDs: two, Values: rows}))
	given, _ := tensor(t, op.Float32, []float32{7, 8, 9, -1, -2, -3})
	other, _ := tensor(t, op.Int64, []int64{5, -2})
	require.NoError(t, table.WriteStates(other, given, 12))
	require.ErrorContains(t, table.WriteStates(other, given, -1), "steps=-1")
	steps, err = table.ReadStates(ids, states)
	require.NoError(t, err)
	assert.EqualValues(t, 12, steps)
	assert.Equal(t, []float32{7, 8, 9, -1, -2, -3, 7, 8, 9}, state)
	require.NoError(t, table.Read(Batch{IDs: two, Values: rows, States: given}))
	assert.Equal(t, []float32{1, 2, 3, 4, 5, 6}, row)

	// A row that was made for its state is the one that a pull makes.
	fresh, now := tensor(t, op.Float32, make([]float32, 6))
	require.NoError(t, table.Pull(Batch{IDs: other, Values: fresh}))
	wanted, want := tensor(t, op.Float32, make([]float32, 6))
	require.NoError(t, newTable(t, best(), c).Pull(Batch{IDs: other, Values: wanted}))
	assert.Equal(t, want[3:], now[3:])
}

func TestStatesThatATableDoesNotTake(t *testing.T) {
	c := config("momentum", 2)
	c.IDs, c.MemoryLimit = 1<<20, 64<<10
	table := newTable(t, best(), c)
	many := make([]int64, 4096)
	for i := range many {
		many[i] = int64(i)
	}
	ids, _ := tensor(t, op.Int64, many)
	states, _ := tensor(t, op.Float32, make([]float32, 2*len(many)))
	err := table.WriteStates(ids, states, 3)
	assert.Equal(t, status.NoMemory, status.CodeOf(err), "%v", err)
	assert.Zero(t, table.Steps())
	_, err = table.ReadStates(ids, states)
	require.NoError(t, err, "a full table answers")
	short, _ := tensor(t, op.Float32, make([]float32, 3))
	_, err = table.ReadStates(ids, short)
	assert.Equal(t, status.Argument, status.CodeOf(err))
	out, _ := tensor(t, op.Int64, []int64{1 << 20})
	one, _ := tensor(t, op.Float32, make([]float32, 2))
	_, err = table.ReadStates(out, one)
	require.ErrorContains(t, err, "num_ids")

	plain := newTable(t, best(), config("sgd", 2)) // has no states: nothing is read or written
	none, _ := tensor(t, op.Float32, []float32{})
	require.NoError(t, plain.WriteStates(out, none, 5))
	steps, err := plain.ReadStates(out, none)
	require.NoError(t, err)
	assert.EqualValues(t, 5, steps)
}

// Where ids come and go, states obey the cap, and those of a row that has expired are the first.
func TestStatesWhereIdsComeAndGo(t *testing.T) {
	c := config("momentum", 2)
	c.MaxRows, c.ExpireAfter, c.Optimizer.InitialAccumulator = 4, 3, 0
	table := newTable(t, best(), c)
	ids, _ := tensor(t, op.Int64, []int64{0, 1, 2, 3, 4, 5, 6})
	given := make([]float32, 14)
	for i := range given {
		given[i] = float32(i + 1)
	}
	states, state := tensor(t, op.Float32, given)
	require.NoError(t, table.WriteStates(ids, states, 1))
	info, err := table.Info()
	require.NoError(t, err)
	assert.EqualValues(t, 4, info.Rows)
	_, err = table.ReadStates(ids, states)
	require.NoError(t, err)
	kept := 0
	for i := range 7 {
		if state[2*i] != 0 {
			kept++
			assert.Equal(t, given[2*i:2*i+2], state[2*i:2*i+2])
		}
	}
	assert.Equal(t, 4, kept)
	table.SetSteps(9)
	_, err = table.ReadStates(ids, states)
	require.NoError(t, err)
	assert.Equal(t, make([]float32, 14), state)
}

package client

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/ps/request"
	"github.com/paddlempi/paddlempi/gocore/ps/server"
	"github.com/paddlempi/paddlempi/gocore/ps/table"
	"github.com/paddlempi/paddlempi/gocore/status"
)

var adam = table.Optimizer{Name: "adam", LearningRate: 0.1, Beta1: 0.9, Beta2: 0.99, Epsilon: 1e-8}

// withAdam makes servers whose table t has Adam, and their trainer.
func withAdam(t *testing.T, limit int64) (*trainer, []*server.Server) {
	c := table.Config{Dim: dim, DType: "float32", MemoryLimit: limit, Initializer: table.Initializer{Name: "normal", B: 1}, Optimizer: adam}
	var servers []*server.Server
	for i := range 2 {
		s := server.New(server.Config{Index: i, Servers: 2, Trainers: []int{0}})
		t.Cleanup(s.Tables.Free)
		_, err := s.Declare(0, server.Meta{Name: "t", By: "modulo", Config: c})
		require.NoError(t, err)
		servers = append(servers, s)
	}
	one := newTrainer(t, 0, servers, nil)
	one.t.Config, one.t.States, one.t.Limit = c, c.StateLen(), limit > 0
	return one, servers
}

// states is what a call has of ids: the states, which begin with the given ones.
func (one *trainer) states(of []float32, ids ...int64) TableRows {
	all := make([]float32, int64(len(ids))*one.t.States)
	copy(all, of)
	return TableRows{Table: one.t, IDs: idsOf(one.T, ids...), Values: floats(one.T, all...)}
}

func (one *trainer) read(ids ...int64) ([]float32, int64) {
	one.Helper()
	r := one.states(nil, ids...)
	steps, err := one.ReadStates(r)
	require.NoError(one, err)
	return valuesOf(r.Values), steps
}

// What was read of one table and written to another has it go on alike, with the rows.
func TestStatesMove(t *testing.T) {
	for _, limit := range []int64{0, 1 << 20} {
		one, servers := withAdam(t, limit)
		none, steps := one.read(4, 1, 1)
		assert.Equal(t, make([]float32, 3*one.t.States), none)
		assert.Zero(t, steps)
		assert.Zero(t, rowsOn(servers), "a read makes nothing")
		for range 3 {
			require.NoError(t, one.push(0.5, 1, 2))
		}
		require.NoError(t, one.push(-2, 4)) // of one server; the other counts the step, too
		got, steps := one.read(4, 1, 9, 2, 4)
		assert.EqualValues(t, 4, steps)
		n := one.t.States
		assert.InDelta(t, -0.2, got[0], 1e-6)
		assert.Equal(t, got[:n], got[4*n:])
		assert.Equal(t, got[n:2*n], got[3*n:4*n])
		assert.Equal(t, make([]float32, n), got[2*n:3*n])

		other, _ := withAdam(t, limit)
		require.NoError(t, other.WriteStates(other.states(slices.Concat(got[n:2*n], got[:n]), 1, 4), steps, 0))
		again, steps := other.read(4, 1)
		assert.Equal(t, got[:2*n], again)
		assert.EqualValues(t, 4, steps)
		fresh, err := other.pull(4, 5)
		require.NoError(t, err)
		first, _ := withAdam(t, limit)
		want, err := first.pull(4, 5)
		require.NoError(t, err)
		assert.Equal(t, want, fresh, "a row that was made for its states is what it would be at first")
		rows := one.rows(one.t, 0, 1, 4)
		require.NoError(t, one.Pull([]TableRows{rows}))
		rows.Table = other.t
		require.NoError(t, other.Write([]TableRows{rows}))
		for _, who := range []*trainer{one, other} {
			require.NoError(t, who.push(1, 1))
			require.NoError(t, who.push(1, 4, 1))
		}
		want, err = one.pull(1, 4)
		require.NoError(t, err)
		now, err := other.pull(1, 4)
		require.NoError(t, err)
		assert.Equal(t, want, now)
	}
}

// All servers get the steps, also those that have none of the ids.
func TestStepsMoveToAllServers(t *testing.T) {
	one, _ := withAdam(t, 0)
	require.NoError(t, one.WriteStates(one.states(nil, 2), 41, 0))
	for _, e := range one.link.ends {
		assert.Equal(t, request.WriteStates, e.last().Op)
	}
	_, steps := one.read(3)
	assert.EqualValues(t, 41, steps)
	require.NoError(t, one.push(1, 2))
	_, steps = one.read(3)
	assert.EqualValues(t, 42, steps)
}

func TestStatesThatAreRefused(t *testing.T) {
	one, servers := withAdam(t, 0)
	require.ErrorContains(t, one.WriteStates(one.states(nil, 1, 1), 0, 0), `ids of table "t" appear several times`)
	require.ErrorContains(t, one.WriteStates(one.states(nil, 1), -1, 0), "steps=-1")
	short := one.states(nil, 1)
	short.Values.Count--
	_, err := one.ReadStates(short)
	require.ErrorContains(t, err, `read of states: 1 ids of table "t", of states of length 4, need 4 elements, and there are 3`)
	half := one.states(nil, 1)
	half.Values.DType = op.Float16
	_, err = one.ReadStates(half)
	require.ErrorContains(t, err, "must be of float32")
	one.t.States = 0
	_, err = one.ReadStates(one.states(nil, 1))
	assert.Equal(t, status.Argument, status.CodeOf(err))
	require.ErrorContains(t, err, `the optimizer of table "t" has no states`)
	assert.Zero(t, rowsOn(servers))
}

// In geo training the states are those of this trainer's copy, before and after exchanges.
func TestStatesOfACopy(t *testing.T) {
	all, _ := inGeo(t, 2, adam, 1<<20, 0)
	one := all[0]
	one.t.States = one.t.Config.StateLen()
	for range 3 {
		require.NoError(t, one.push(0.5, 1))
	}
	got, steps := one.read(1, 3)
	assert.EqualValues(t, 3, steps)
	assert.NotZero(t, got[0])
	more, _ := inGeo(t, 2, adam, 1<<20, 0)
	other := more[0]
	other.t.States = one.t.States
	rows := one.rows(one.t, 0, 1)
	require.NoError(t, one.Flush(0))
	require.NoError(t, one.Pull([]TableRows{rows}))
	rows.Table = other.t
	require.NoError(t, other.Write([]TableRows{rows}))
	require.NoError(t, other.WriteStates(other.states(got[:one.t.States], 1), steps, 0))
	for range 3 {
		require.NoError(t, one.push(1, 1))
		require.NoError(t, other.push(1, 1))
		want, err := one.pull(1)
		require.NoError(t, err)
		now, err := other.pull(1)
		require.NoError(t, err)
		assert.InDeltaSlice(t, want, now, 1e-6)
	}
}

package client

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/ps/server"
	"github.com/paddlempi/paddlempi/gocore/ps/table"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// look returns the first elements of what is looked up in table t.
func (one *trainer) look(zeros bool, ids ...int64) (firsts []float32) {
	one.Helper()
	r := one.rows(one.t, -99, ids...)
	require.NoError(one, one.Look([]TableRows{r}, zeros))
	for i, v := range valuesOf(r.Values) {
		if i%dim == 0 {
			firsts = append(firsts, v)
		}
	}
	return firsts
}

func rowsOn(servers []*server.Server) (rows int64) {
	for _, s := range servers {
		for _, t := range s.Statistics().Tables {
			rows += t.Rows
		}
	}
	return rows
}

// In every kind of training a lookup brings what a pull would, and makes nothing on the servers.
func TestLookupsAreSentAndMakeNothing(t *testing.T) {
	for _, every := range []int64{0, 3} {
		all, servers := inGeo(t, every, plainSGD, 0, 0, 1)
		one, other := all[0], all[1]
		assert.Equal(t, []float32{0, 0}, one.look(false, 4, 1))
		require.NoError(t, one.push(2, 0, 1))
		assert.Equal(t, []float32{-2, 0, -2}, one.look(true, 1, 4, 0), "also rows that are in the trainer's copy")
		u := one.rows(one.u, -99, 2, 5, 1)
		mine := one.rows(one.t, -99, 3, 0)
		require.NoError(t, one.Look([]TableRows{u, mine}, false))
		assert.Equal(t, make([]float32, 3*dim), valuesOf(u.Values))
		assert.Equal(t, []float32{0, 0, -2, -2}, valuesOf(mine.Values))
		other.look(false, 9)
		assert.EqualValues(t, 2, rowsOn(servers))

		wide := one.rows(one.t, 0, 1)
		wide.Values.DType = op.BFloat16
		assert.ErrorContains(t, one.Look([]TableRows{wide}, false), `lookup: out of table "t" is of bfloat16`)
		one.t.NumIDs = 5
		assert.ErrorContains(t, one.Look([]TableRows{one.rows(one.t, 0, 5)}, true), `lookup: id 5 is not in table "t"`)
	}
}

// The staleness of a push is that of the rows that were pulled, whatever was looked up since.
func TestALookupIsNotTheLastPull(t *testing.T) {
	servers := newServers(t, false, 0, 1)
	one, other := newTrainer(t, 0, servers, nil), newTrainer(t, 1, servers, nil)
	one.pulled([]float32{0, 0}, 0, 1)
	for range 3 {
		require.NoError(t, other.push(1, 0, 1))
	}
	assert.Equal(t, []float32{-3, -3}, one.look(false, 0, 1))
	require.NoError(t, one.push(1, 0, 1))
	assert.Equal(t, 3.0, one.Staleness())
}

// A table with a limit: a push of rows that were only looked up reserves their memory first, so that
// it is on all servers or on none.
func TestAPushAfterALookupReserves(t *testing.T) {
	c := table.Config{Dim: dim, DType: "float32", MemoryLimit: 1 << 20, Initializer: table.Initializer{Name: "zeros"}, Optimizer: table.Optimizer{Name: "sgd", LearningRate: 1}}
	var servers []*server.Server
	for i := range 2 {
		s := server.New(server.Config{Index: i, Servers: 2, Trainers: []int{0}})
		t.Cleanup(s.Tables.Free)
		_, err := s.Declare(0, server.Meta{Name: "t", By: "modulo", Config: c})
		require.NoError(t, err)
		servers = append(servers, s)
	}
	one := newTrainer(t, 0, servers, nil)
	one.t.Limit = true
	one.look(false, 0, 1)
	came := one.link.ends[0].came()
	require.NoError(t, one.push(1, 0, 1))
	assert.Equal(t, came+2, one.link.ends[0].came(), "a reservation, and the push")

	many := make([]int64, 60_000) // more rows than the limit has room for, as many on each server
	for i := range many {
		many[i] = int64(i)
	}
	assert.Equal(t, status.NoMemory, status.CodeOf(one.push(1, many...)))
	assert.Len(t, one.look(false, many...), len(many), "a full table answers")
	one.pulled([]float32{-1, -1}, 0, 1)
}

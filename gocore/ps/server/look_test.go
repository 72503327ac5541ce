package server

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/ps/request"
	"github.com/paddlempi/paddlempi/gocore/ps/table"
)

// look returns what a lookup brings, and the version that it has seen.
func look(t *testing.T, s *Server, what request.Op, from int, ids ...int64) ([]float32, int64) {
	out := memory[float32](dim * len(ids))
	r := <-send(s, from, request.Head{Op: what, Seen: -1}, ids, nil, out)
	require.NoError(t, r.err)
	return out, r.answer.Version
}

// A lookup leaves a server as it was, but for the counts of what it has sent.
func TestLookupsMakeNothing(t *testing.T) {
	s := New(Config{Servers: 1, Trainers: []int{0, 1}, Rule: Rule{Mode: "dc_asgd", Lambda: 1, Backups: 100}})
	t.Cleanup(s.Tables.Free)
	m := meta("t")
	m.Config.Initializer = table.Initializer{Name: "normal", B: 1}
	_, err := s.Declare(0, m)
	require.NoError(t, err)
	ids := outside[int64](3, 8)
	first, version := look(t, s, request.Look, 0, ids...)
	assert.Zero(t, version)
	assert.NotZero(t, first[dim])
	zeros, _ := look(t, s, request.LookZeros, 0, ids...)
	assert.Equal(t, make([]float32, 2*dim), zeros)
	told := s.Statistics().Tables[0]
	assert.Zero(t, told.Rows)
	assert.Zero(t, told.Backups)
	assert.EqualValues(t, 4, told.Pulled)
	assert.Equal(t, first, pull(t, s, 0, ids...), "the row is made with what the lookup has said")
	assert.EqualValues(t, 2, s.Statistics().Tables[0].Backups)

	// The gradient is compensated by what was pulled, not by what was looked up since.
	require.NoError(t, (<-push(s, 1, 0, ids[:1], outside[float32](10, 10, 10, 10))).err)
	rows, version := look(t, s, request.LookZeros, 0, ids...)
	assert.EqualValues(t, 1, version)
	assert.Equal(t, first[dim:], rows[dim:])
	assert.InDelta(t, first[0]-1, rows[0], 1e-6)
	require.NoError(t, (<-push(s, 0, 0, ids[:1], outside[float32](1, 1, 1, 1))).err)
	after, _ := look(t, s, request.Look, 0, ids[:1]...)
	assert.InDelta(t, rows[0], after[0], 1e-6, "g + g g (w - backup) is 0, because w - backup is -1")
}

// Who evaluates may be ahead of trainers that wait for him.
func TestALookupDoesNotWaitForSlowTrainers(t *testing.T) {
	s := bounded(t, 0, 0, 1)
	ids := outside[int64](7)
	require.NoError(t, (<-push(s, 0, 0, ids, memory[float32](dim))).err)
	_, waits := ask(s, 0, ids)
	assert.False(t, isOver(waits))
	look(t, s, request.Look, 0, 7)
	require.NoError(t, (<-push(s, 1, 0, ids, memory[float32](dim))).err)
	assert.True(t, isOver(waits))
}

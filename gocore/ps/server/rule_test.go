package server

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/ps/request"
	"github.com/paddlempi/paddlempi/gocore/status"
)

func TestARuleChangesBetweenTwoSteps(t *testing.T) {
	s := newServer(t, true, 0, 1)
	ids, ones := outside[int64](7), outside[float32](1, 1, 1, 1)
	add := func(from int) error {
		return (<-send(s, from, request.Head{Op: request.Add, Seen: -1}, ids, ones, nil)).err
	}
	assert.ErrorContains(t, add(0), "which is in mode sync")
	first := push(s, 0, 1, ids, ones)
	for _, err := range []error{s.MayChange(), s.SetRule(Rule{Mode: "async"})} {
		assert.Equal(t, status.Argument, status.CodeOf(err))
		assert.ErrorContains(t, err, "step 1 of rank 0 waits for other trainers")
	}
	require.NoError(t, (<-push(s, 1, 1, ids, ones)).err)
	require.NoError(t, (<-first).err)

	require.NoError(t, s.SetRule(Rule{Mode: "async"}))
	for range 3 {
		require.NoError(t, (<-push(s, 0, 0, ids, ones)).err)
	}
	require.NoError(t, add(1))
	assert.InDelta(t, -0.2-0.3+1, pull(t, s, 0, 7)[0], 1e-6)

	// The bound counts from here. A pull that waits goes on when there is no bound any more.
	require.NoError(t, s.SetRule(Rule{Mode: "ssp", Bounded: true}))
	pull(t, s, 0, 7)
	require.NoError(t, (<-push(s, 0, 0, ids, ones)).err)
	_, waits := ask(s, 0, ids)
	assert.False(t, isOver(waits))
	told := s.Statistics().Trainers
	assert.Equal(t, []int64{5, 1}, []int64{told[0].Steps, told[0].Since})
	assert.Equal(t, []int64{2, 0}, []int64{told[1].Steps, told[1].Since})
	require.NoError(t, s.SetRule(Rule{Mode: "sync", Sync: true}))
	assert.NoError(t, (<-waits).err)

	// Steps go on being numbered for each trainer.
	first = push(s, 0, 6, ids, ones)
	assert.False(t, isOver(first))
	require.NoError(t, (<-push(s, 1, 3, ids, ones)).err)
	require.NoError(t, (<-first).err)
	assert.InDelta(t, 0.5-0.1-0.2, pull(t, s, 0, 7)[0], 1e-6)

	why := status.New(status.PeerDied, "rank 1 died").WithRanks(1)
	s.Fail(why)
	assert.Equal(t, error(why), s.SetRule(Rule{}))
}

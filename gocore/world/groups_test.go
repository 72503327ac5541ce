package world

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/paddlempi/paddlempi/gocore/arrive"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/trace"
)

// spanning is a group that spans nodes, as Env sees it.
type spanning struct {
	Group
	standing arrive.Standing
}

func (s *spanning) Standing() arrive.Standing { return s.standing }
func (s *spanning) Member() int               { return 1 }

// Members may ask about groups that this rank has freed. It answers for the last ones, and keeps nothing of the others.
func TestGroupsThatWereFreed(t *testing.T) {
	e := &Env{byKey: map[uint64]Group{}, live: map[Group]about{}}
	const groups = 3 * mostFreed
	for k := range uint64(groups) {
		g := &spanning{standing: arrive.Standing{Announced: k}}
		e.Remember(g, trace.Group{ID: int64(k), Key: k}, true)
		_, _, ok := e.standingOf(k)
		assert.True(t, ok)
		assert.Same(t, g, e.groupOf(k))
		g.standing.GaveUp = &arrive.Withdrawal{Seq: k + 1, By: 1, Reason: status.GroupDestroyed}
		e.Forget(g)
		e.Forget(g) // as one that was never used, and is freed
		assert.Nil(t, e.groupOf(k))
	}
	assert.Empty(t, e.byKey)
	assert.Empty(t, e.live)
	assert.Len(t, e.freed.byKey, mostFreed)
	assert.Len(t, e.freed.order, mostFreed)
	for k := range uint64(groups) {
		s, member, ok := e.standingOf(k)
		assert.Equal(t, k >= groups-mostFreed, ok)
		if ok {
			says, because := standing(s, member, k, false)
			assert.Equal(t, answerHere, says)
			says, because = standing(s, member, k+1, false)
			assert.Equal(t, answerNever, says)
			assert.Equal(t, status.GroupDestroyed, because.Reason)
		}
	}
}

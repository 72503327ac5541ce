package memory

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/transport"
)

// A rank that gives up a round knows whose words have not come. Nothing of the round is left, whether words that it has sent were
// read or not, and the next round of another Comm is like any.
func TestRoundsThatAreGivenUp(t *testing.T) {
	late := errors.New("late")
	ranks := world(t, 3)
	var parts [3]transport.Comm
	for r, c := range ranks {
		part, err := c.Create([]int{0, 1, 2}, 5)
		require.NoError(t, err)
		parts[r] = part
	}
	gives := func(r int) *Comm {
		c := parts[r].(*Comm)
		began := time.Now()
		c.WaitBy(func(done func() bool) error {
			for !done() {
				if time.Since(began) > 20*time.Millisecond {
					return late
				}
			}
			return nil
		})
		return c
	}
	_, err := gives(0).Gather([]int64{1, 2}, nil)
	assert.Equal(t, late, err)
	assert.Equal(t, []int{1, 2}, gives(0).Missing())
	assert.Equal(t, late, gives(2).Min([]int64{3, 4}))
	assert.Equal(t, []int{1}, gives(2).Missing())
	for r := range ranks {
		assert.Empty(t, ranks[r].o.rounds)
		require.NoError(t, parts[r].Free())
	}
	each(ranks, func(c *Comm) {
		words := []int64{int64(c.Rank()) + 7}
		assert.NoError(t, c.Min(words))
		assert.Equal(t, int64(7), words[0])
	})
}

// A round that is given up while its words wait for room in a ring ends when there is some.
func TestARoundThatIsGivenUpBeforeItsWordsAreSent(t *testing.T) {
	ranks := world(t, 2)
	full, _ := room(t, mostWhole)
	var sends []*transport.Request
	for ranks[0].o.pairs[1].queued == 0 {
		r, err := ranks[0].Send(full, mostWhole, 1, 3)
		require.NoError(t, err)
		sends = append(sends, r)
	}
	part, err := ranks[0].Create([]int{0, 1}, 5)
	require.NoError(t, err)
	c := part.(*Comm)
	c.WaitBy(func(func() bool) error { return errors.New("late") })
	assert.Error(t, c.Min([]int64{1}))
	assert.Equal(t, []int{1}, c.Missing())
	assert.Len(t, ranks[0].o.rounds, 1)
	require.NoError(t, c.Free())
	into, _ := room(t, mostWhole)
	for range sends {
		r, err := ranks[1].Receive(into, mostWhole, 0, 3)
		require.NoError(t, err)
		for !transport.Over(ranks[1], r) {
			ranks[0].Poller().Poll(nil)
		}
		ranks[1].Release(r)
	}
	finish(t, ranks[0], sends...)
	assert.Empty(t, ranks[0].o.rounds)
}

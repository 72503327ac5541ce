package memory

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// The way that took less time is taken, and the other one now and then, for each class of lengths by itself.
func TestTheWayOfALongMessage(t *testing.T) {
	var c costs
	assert.Equal(t, reading, c.choose(1<<20))
	c.learn(reading, 1<<20, 100*time.Microsecond)
	assert.Equal(t, asking, c.choose(1<<20))
	c.learn(asking, 1<<20, 50*time.Microsecond)
	send := func(messages, read, asked int) (taken [2]int) {
		for range messages {
			w := c.choose(1 << 20)
			taken[w]++
			c.learn(w, 1<<20, time.Duration([]int{read, asked}[w])*time.Microsecond)
		}
		return taken
	}
	taken := send(3*trialEvery, 90, 50)
	assert.Equal(t, [2]int{3 * trialOf[reading], 3 * (trialEvery - trialOf[reading])}, taken)
	send(2*trialEvery, 45, 50)
	taken = send(trialEvery, 45, 50)
	assert.Equal(t, [2]int{trialEvery - trialOf[asking], trialOf[asking]}, taken, "the way changes")
	taken = send(trialEvery, 45, 200)
	assert.Equal(t, [2]int{trialEvery - trialEarly, trialEarly}, taken, "what takes twice as long is given up")
	send(2*trialEvery, 90, 50)
	assert.Equal(t, reading, c.choose(longer), "nothing is known of it")
	// One slow message changes little, many change the way.
	c.learn(asking, 1<<20, time.Second)
	assert.Equal(t, asking, c.choose(1<<20))
	for range 20 {
		c.learn(asking, 1<<20, time.Second)
	}
	assert.Equal(t, reading, c.choose(1<<20))
}

// Both sides claim pieces of one message until none is left, and none of another one.
func TestClaims(t *testing.T) {
	ranks := world(t, 2)
	here, there := &ranks[1].o.in[0].ring, &ranks[0].o.out[1].ring
	here.claims.Store(7 << claimBits)
	const bytes = 5*piece + 3
	for i, side := range []*ring{here, there, here, there} {
		from, n := side.claim(7, bytes, 2)
		assert.Equal(t, [][2]int64{{0, 2 * piece}, {2 * piece, 2 * piece}, {4 * piece, piece + 3}, {0, 0}}[i], [2]int64{from, n})
	}
	here.claims.Store(8 << claimBits)
	_, n := there.claim(7, bytes, 1)
	assert.Zero(t, n)
}

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
	taken := map[way]int{}
	for range 320 {
		w := c.choose(1 << 20)
		taken[w]++
		c.learn(w, 1<<20, time.Duration(100-50*int(w))*time.Microsecond)
	}
	assert.Equal(t, map[way]int{reading: 10, asking: 310}, taken)
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

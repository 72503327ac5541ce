package heap

import (
	"math/rand"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestTakeIsBestFit(t *testing.T) {
	f := spans{{0, 100}, {200, 230}, {300, 400}}
	from, ok := f.take(30)
	assert.True(t, ok)
	assert.Equal(t, int64(200), from)
	assert.Equal(t, spans{{0, 100}, {300, 400}}, f)
	_, ok = f.take(101)
	assert.False(t, ok)
}

func TestGiveJoinsNeighbours(t *testing.T) {
	f := spans{}
	for _, s := range []span{{20, 30}, {0, 10}, {40, 50}} {
		f.give(s)
	}
	assert.Equal(t, spans{{0, 10}, {20, 30}, {40, 50}}, f)
	f.give(span{10, 20})
	assert.Equal(t, spans{{0, 30}, {40, 50}}, f)
	f.give(span{50, 60})
	f.give(span{35, 40})
	assert.Equal(t, spans{{0, 30}, {35, 60}}, f)
	f.give(span{30, 35})
	assert.Equal(t, spans{{0, 60}}, f)
	assert.Equal(t, int64(60), f.largest())
}

// Random calls are compared with a table of bytes.
func TestSpansAgainstATable(t *testing.T) {
	const size = 256
	rng := rand.New(rand.NewSource(1))
	f, used := spans{{0, size}}, make([]bool, size)
	var held []span
	for range 20000 {
		if rng.Intn(2) == 0 {
			n := int64(1 + rng.Intn(24))
			from, ok := f.take(n)
			if !ok {
				longest, run := 0, 0
				for _, u := range used {
					if run++; u {
						run = 0
					}
					longest = max(longest, run)
				}
				assert.Less(t, int64(longest), n)
				continue
			}
			for i := from; i < from+n; i++ {
				assert.False(t, used[i])
				used[i] = true
			}
			held = append(held, span{from, from + n})
		} else if len(held) > 0 {
			i := rng.Intn(len(held))
			for j := held[i].from; j < held[i].to; j++ {
				used[j] = false
			}
			f.give(held[i])
			held[i] = held[len(held)-1]
			held = held[:len(held)-1]
		}
		var free int64
		for i, s := range f {
			free += s.size()
			assert.True(t, i == 0 || f[i-1].to < s.from)
		}
		for _, u := range used {
			if u {
				free++
			}
		}
		if !assert.Equal(t, int64(size), free) {
			return
		}
	}
}

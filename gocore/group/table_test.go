package group

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/tune"
	"github.com/paddlempi/paddlempi/gocore/world"
)

// A group of all ranks begins with the table of rank 0, whatever other ranks have; a group of some ranks, and a world that is told
// something else than a table, begin with none.
func TestAGroupBeginsWithTheTableOfRank0(t *testing.T) {
	ranks(t, 3, []int{0, 1, 2}, func(t *testing.T, e *world.Env, g *Group) {
		first := func(members ...int) tune.Chosen {
			made, err := New(e, int64(10*len(members)), members, 20*time.Second)
			if !assert.NoError(t, err) {
				return tune.Chosen{}
			}
			b, free := tensor(t, false, 1<<18, func(int) float32 { return 1 })
			defer free()
			_, err = submit(made, allReduce(b))
			assert.NoError(t, err)
			c := made.Tuner.Chosen()[0]
			assert.Equal(t, c.Ways[c.Best], made.Tuner.Last())
			return c
		}
		assert.True(t, e.Tunes())
		assert.NoError(t, e.MeasureLatency())
		latency := []int64{int64(e.Groups.Tuning.Latency), -int64(e.Groups.Tuning.Latency)}
		assert.Positive(t, latency[0])
		assert.NoError(t, e.Base.Min(latency))
		assert.Zero(t, latency[0]+latency[1], "it is the same on all ranks")
		usual := first(0, 1, 2)
		best := len(usual.Ways) - 1
		text := []byte("a table of another rank")
		if g.Rank == 0 {
			var err error
			text, err = json.Marshal(map[string]any{"format": tune.Format, "rows": []any{map[string]any{
				"operation": "all_reduce", "from": 1 << 20, "best": usual.Ways[best], "ways": usual.Ways, "times": make([]float64, best+1),
			}}})
			assert.NoError(t, err)
		}
		assert.NoError(t, e.ShareTable(text))
		assert.Equal(t, 1, e.Groups.Tuning.Table.Rows())
		seeded := first(0, 1, 2)
		assert.True(t, seeded.Given && seeded.Tuned)
		assert.Equal(t, best, seeded.Best)
		if g.Rank < 2 {
			assert.False(t, first(0, 1).Given)
		}

		e.Groups.Tuning.Table = nil
		assert.NoError(t, e.ShareTable([]byte("damaged")))
		assert.Nil(t, e.Groups.Tuning.Table)
		if g.Rank > 0 {
			text = []byte("only other ranks have one")
		} else {
			text = nil
		}
		assert.NoError(t, e.ShareTable(text))
		assert.Nil(t, e.Groups.Tuning.Table)
		err := e.ShareTable(make([]byte, tune.MostBytes+1))
		assert.Equal(t, status.Mismatch, status.CodeOf(err))
	})
}

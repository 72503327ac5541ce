package group

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/world"
)

// A call that repeats one that was checked has the result of its own tensor, also where only some members repeat.
func TestARepeatedCall(t *testing.T) {
	ranks(t, 3, nil, func(t *testing.T, _ *world.Env, g *Group) {
		for turn := range 20 {
			b := floats(float32(turn), float32(g.Rank))
			d := allReduce(b)
			if (turn+g.Rank)%4 == 0 { // is checked each time
				d = desc(op.AllReduce, []op.Buf{b}, []op.Buf{b})
				d.ReduceOp = op.Sum
			}
			_, err := submit(g, d)
			require.NoError(t, err)
			assert.Equal(t, []float32{float32(3 * turn), 3}, values(b))
			assert.Equal(t, "inline", g.Algorithm())
			mem.Free(b.Data)
		}
	})
}

// Members that repeat different calls get the same errors as others.
func TestRepeatedCallsThatDiffer(t *testing.T) {
	ranks(t, 2, nil, func(t *testing.T, _ *world.Env, g *Group) {
		calls := []*op.Desc{allReduce(floats(1)), allReduce(floats(1, 2))}
		for range 2 {
			for _, d := range calls {
				_, err := submit(g, d)
				require.NoError(t, err)
			}
		}
		_, err := submit(g, calls[g.Rank])
		assert.Equal(t, status.Mismatch, status.CodeOf(err))
		_, err = submit(g, calls[0])
		assert.NoError(t, err)
	})
}

// An asynchronous call that comes last, and repeats another one, is over when Submit returns. Nothing of it gets into the engine.
func TestARepeatedCallThatComesLastIsOver(t *testing.T) {
	came := make(chan struct{})
	ranks(t, 2, nil, func(t *testing.T, e *world.Env, g *Group) {
		for turn := range 4 {
			b := floats(float32(turn), 1)
			d := allReduce(b)
			d.Flags = op.FlagAsync
			if g.Rank == 0 {
				<-came
			}
			h, _, err := g.Submit(d, false)
			require.NoError(t, err)
			if g.Rank == 0 && turn > 0 {
				assert.True(t, h.Done())
				assert.Zero(t, e.Engine.Active())
			}
			if g.Rank == 1 {
				came <- struct{}{}
			}
			_, err = h.Wait(5*time.Second, nil)
			require.NoError(t, err)
			assert.Equal(t, []float32{float32(2 * turn), 2}, values(b))
			assert.Equal(t, "inline", g.Algorithm())
			mem.Free(b.Data)
		}
	})
}

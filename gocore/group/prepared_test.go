package group

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/collective"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/world"
)

// again submits a call of a prepared operation, and waits for it if it is asynchronous.
func again(p *collective.Prepared, d *op.Desc) error {
	h, _, err := p.Submit(d, false)
	if h != nil && err == nil {
		_, err = h.Wait(time.Minute, nil)
	}
	return err
}

func TestPreparedMeetsPlain(t *testing.T) {
	everywhere(t, func(t *testing.T, n int, nodes []int) {
		ranks(t, n, nodes, func(t *testing.T, _ *world.Env, g *Group) {
			b := floats(0, 0)
			d := allReduce(b)
			p, err := g.Prepare(d)
			require.NoError(t, err)
			for turn := range 30 {
				values(b)[0], values(b)[1] = float32(turn), float32(g.Rank)
				if (turn+g.Rank)%3 == 0 {
					_, err = submit(g, allReduce(b))
				} else {
					d.Flags = uint32(turn/3%2) * op.FlagAsync
					err = again(p, d)
				}
				require.NoError(t, err)
				assert.Equal(t, []float32{float32(n * turn), float32(n * (n - 1) / 2)}, values(b))
			}
		})
	})
}

// What is known of other memory does not count, and neither does what is announced of another length.
func TestPreparedOfOtherMemory(t *testing.T) {
	ranks(t, 2, nil, func(t *testing.T, _ *world.Env, g *Group) {
		d := allReduce(floats(1))
		p, err := g.Prepare(d)
		require.NoError(t, err)
		other := floats(1, 2, 3)
		moved := allReduce(other)
		assert.NoError(t, again(p, moved))
		assert.Equal(t, []float32{2, 4, 6}, values(other))
		err = again(p, map[int]*op.Desc{0: d, 1: moved}[g.Rank])
		assert.Equal(t, status.Mismatch, status.CodeOf(err))
		assert.NoError(t, again(p, d))
	})
}

func TestToPrepareIsLocal(t *testing.T) {
	ranks(t, 2, nil, func(t *testing.T, _ *world.Env, g *Group) {
		if g.Rank == 0 {
			d := allReduce(floats(1))
			d.ReduceOp = op.BAnd
			_, err := g.Prepare(d)
			assert.Equal(t, status.Type, status.CodeOf(err))
			d = desc(op.Send, []op.Buf{floats(1)}, nil)
			d.Peer = 7
			_, err = g.Prepare(d)
			assert.Equal(t, status.Argument, status.CodeOf(err))
			_, err = g.Prepare(desc(op.Probe, nil, nil))
			assert.Equal(t, status.Argument, status.CodeOf(err))
		}
		_, err := submit(g, allReduce(floats(1)))
		assert.NoError(t, err)
	})
}

// Calls of several threads share what is known, and nothing else.
func TestPreparedByThreads(t *testing.T) {
	ranks(t, 2, nil, func(t *testing.T, _ *world.Env, g *Group) {
		b := floats(0)
		p, err := g.Prepare(allReduce(b))
		require.NoError(t, err)
		var all sync.WaitGroup
		for range 4 {
			all.Add(1)
			go func() {
				defer all.Done()
				for range 100 {
					assert.NoError(t, again(p, allReduce(b)))
				}
			}()
		}
		all.Wait()
	})
}

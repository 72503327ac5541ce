package group

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/heap"
	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/world"
)

// heaped returns a copy of a tensor of float32 that others can map.
func heaped(t *testing.T, b op.Buf) op.Buf {
	own, err := heap.OfProcess()
	require.NoError(t, err)
	p, err := own.Alloc(4 * b.Count)
	require.NoError(t, err)
	t.Cleanup(func() { _ = own.Free(p) })
	mem.Copy(p, b.Data, 4*b.Count)
	b.Data = p
	return b
}

// Each rank decides by itself whether it lends: long rows are, single columns are not, nor is memory that is not in the heap.
func TestLentHalos(t *testing.T) {
	if testing.Short() {
		t.Skip("long: make test-ci runs it")
	}
	for _, n := range []int{2, 3} {
		ranks(t, n, nil, func(t *testing.T, e *world.Env, g *Group) {
			g.Lends = true // on a machine with fewer CPUs, too
			const columns = 20_000
			for _, periodic := range []bool{false, true} {
				pattern := newLine(t, g, periodic, 1)
				for turn := range 12 {
					what := fmt.Sprintf("periodic %t, turn %d", periodic, turn)
					b := line(g.Rank, 1+g.Rank, columns)
					if (turn>>g.Rank)&1 == 0 {
						b = heaped(t, b)
					}
					d := halo(b, pattern)
					if turn >= 8 {
						d.Flags |= op.FlagAsync
					}
					h, _, err := g.Submit(d, false)
					require.NoError(t, err, what)
					if h != nil {
						_, err = h.Wait(-1, nil)
						require.NoError(t, err, what)
					}
					checkLine(t, g, b, columns, periodic, what)
					// It may be changed at once: the others have read it.
					clear(values(b))
				}
			}
		})
	}
}

func TestALentTensorIsNotPacked(t *testing.T) {
	ranks(t, 2, nil, func(t *testing.T, e *world.Env, g *Group) {
		g.Lends = true // on a machine with fewer CPUs, too
		pattern := newLine(t, g, false, 1)
		own, err := heap.OfProcess()
		require.NoError(t, err)
		b := heaped(t, line(g.Rank, 2, 20_000))
		_, err = submit(g, desc(op.Barrier, nil, nil))
		require.NoError(t, err)
		_, before, _ := own.Sizes() // of both ranks, which are one process
		_, err = submit(g, desc(op.Barrier, nil, nil))
		require.NoError(t, err)
		for range 3 {
			_, err = submit(g, halo(b, pattern))
			require.NoError(t, err)
		}
		_, after, _ := own.Sizes()
		assert.Equal(t, before, after)
		assert.Equal(t, "blocks", g.Algorithm())
		checkLine(t, g, b, 20_000, false, "lent")
	})
}

// A rank that has come and does not read what is lent is named at the deadline. The tensor is kept until it has read.
func TestALentTensorThatIsNotRead(t *testing.T) {
	ranks(t, 2, nil, func(t *testing.T, e *world.Env, g *Group) {
		g.Lends = true // on a machine with fewer CPUs, too
		pattern := newLine(t, g, false, 1)
		b := heaped(t, line(g.Rank, 2, 20_000))
		d := halo(b, pattern)
		if g.Rank == 1 {
			e.Engine.StartProgress()
			e.Engine.StopProgress() // for good
			d.Flags |= op.FlagAsync
			h, _, err := g.Submit(d, false) // it announces; nobody goes on with it
			require.NoError(t, err)
			time.Sleep(400 * time.Millisecond)
			_, err = h.Wait(-1, nil)
			require.NoError(t, err, "rank 0 had lent its tensor, and it is not changed")
			checkLine(t, g, b, 20_000, false, "what rank 0 has lent")
			return
		}
		time.Sleep(20 * time.Millisecond) // it finds that all have come
		d.TimeoutNS = int64(100 * time.Millisecond)
		h, _, err := g.Submit(d, false)
		require.Equal(t, status.Timeout, status.CodeOf(err), "%v", err)
		assert.ErrorContains(t, err, "rank(s) [1] have not read this rank's tensor")
		require.NotNil(t, h, "the tensor may be read")
		assert.False(t, h.Settled())
		assert.Eventually(t, h.Settled, 10*time.Second, time.Millisecond, "it was read")
		_, err = submit(g, halo(b, pattern))
		assert.Equal(t, status.GroupBroken, status.CodeOf(err))
	})
}

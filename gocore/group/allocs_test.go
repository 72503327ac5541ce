package group

import (
	"math"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/world"
)

// leastAllocs returns how many blocks the process allocates in 20 calls, at the least. The wait for a rank that comes late allocates, and so
// do other goroutines. testing.AllocsPerRun sets GOMAXPROCS, which the ranks of these tests share.
func leastAllocs(call func()) uint64 {
	least := uint64(math.MaxUint64)
	for range 50 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range 20 {
			call()
		}
		runtime.ReadMemStats(&after)
		least = min(least, after.Mallocs-before.Mallocs)
	}
	return least
}

// Calls in turn that want one place among those that are kept allocate nothing either: one of them is checked each time.
func TestCallsThatWantOnePlaceAllocateNothing(t *testing.T) {
	ranks(t, 2, nil, func(t *testing.T, _ *world.Env, g *Group) {
		calls := []*op.Desc{allReduce(floats(make([]float32, 2)...)), allReduce(floats(make([]float32, 2+32)...))}
		var err error
		both := func() {
			for _, d := range calls {
				if _, _, e := g.Submit(d, false); e != nil {
					err = e
				}
			}
		}
		for range 10 {
			both()
		}
		got := leastAllocs(both)
		require.NoError(t, err)
		assert.Zero(t, got)
	})
}

// A collective whose input lies in its payload allocates nothing, prepared or not.
func TestAShortCollectiveAllocatesNothing(t *testing.T) {
	calls := map[string]func(b op.Buf) *op.Desc{
		"all_reduce": allReduce,
		"broadcast": func(b op.Buf) *op.Desc {
			d := desc(op.Broadcast, nil, []op.Buf{b})
			d.Root = 0
			return d
		},
		"barrier": func(op.Buf) *op.Desc { return desc(op.Barrier, nil, nil) },
	}
	for name, call := range calls {
		t.Run(name, func(t *testing.T) {
			ranks(t, 2, nil, func(t *testing.T, _ *world.Env, g *Group) {
				d := call(floats(1, 2))
				p, err := g.Prepare(d)
				require.NoError(t, err)
				for _, one := range []func(){
					func() { _, _, err = g.Submit(d, false) },
					func() { _, _, err = p.Submit(d, false) },
				} {
					for range 10 { // what is kept is made by the first calls
						one()
					}
					got := leastAllocs(one)
					require.NoError(t, err)
					assert.Zero(t, got)
				}
			})
		})
	}
}

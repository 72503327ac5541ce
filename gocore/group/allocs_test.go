package group

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/world"
)

// A collective whose input lies in its payload allocates nothing, prepared or not.
func TestAShortCollectiveAllocatesNothing(t *testing.T) {
	const runs = 200
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
					// AllocsPerRun counts what the whole process allocates, and rounds down. A call waits for the other rank.
					got := testing.AllocsPerRun(runs, one)
					require.NoError(t, err)
					assert.Zero(t, got)
				}
			})
		})
	}
}

package group

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/paddlempi/paddlempi/gocore/coll"
	"github.com/paddlempi/paddlempi/gocore/mpi/mpifake"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/world"
)

// halves makes a bfloat16 buffer of zeros.
func halves(n int64) op.Buf {
	b := floats(make([]float32, (n+1)/2)...)
	b.Count, b.DType = n, op.BFloat16
	return b
}

func TestAGroupForcesWhatTheVariableSaidWhenItWasMade(t *testing.T) {
	t.Setenv("PADDLEMPI_ALGO", "all_reduce:slices16")
	everywhere(t, func(t *testing.T, n int, nodes []int) {
		ranks(t, n, nodes, func(t *testing.T, _ *world.Env, g *Group) {
			assert.Empty(t, g.Algorithm())
			for range 2 {
				_, err := submit(g, allReduce(halves(4)))
				assert.NoError(t, err)
			}
			if n == 1 {
				assert.Equal(t, "single", g.Algorithm())
				return
			}
			assert.Equal(t, "slices16", g.Algorithm())
			_, err := submit(g, allReduce(floats(1)))
			assert.NoError(t, err)
			assert.Equal(t, "inline", g.Algorithm())
		})
	})
	t.Setenv("PADDLEMPI_ALGO", "")
	ranks(t, 2, nil, func(t *testing.T, _ *world.Env, g *Group) {
		_, err := submit(g, allReduce(halves(4)))
		assert.NoError(t, err)
		assert.Equal(t, "inline", g.Algorithm())
		_, err = submit(g, allReduce(halves(4096)))
		assert.NoError(t, err)
		assert.Equal(t, "bounce", g.Algorithm())
	})
}

// A large tensor over nodes goes by the usual algorithm of a group, unless levels and slices were off when it was made.
func TestAGroupWithoutLevels(t *testing.T) {
	for _, levels := range []string{"0", "1", ""} {
		t.Setenv("PADDLEMPI_LEVELS", levels)
		for usual, nodes := range map[string][]int{"levels": {0, 0, 1, 1}, "slices": {0, 1, 2}} {
			ranks(t, len(nodes), nodes, func(t *testing.T, _ *world.Env, g *Group) {
				want := usual
				if levels == "0" {
					want = "mpi"
				}
				b := large()
				_, err := submit(g, allReduce(b))
				assert.NoError(t, err)
				assert.Equal(t, want, g.Algorithm())
				rows := g.Served()
				assert.Contains(t, rows, coll.Served{Operation: "all_reduce", DType: "float32", From: 4, Algorithm: "inline"})
				assert.Equal(t, levels != "0", slices.ContainsFunc(rows, func(row coll.Served) bool { return row.Algorithm == usual }), "%v", rows)
			})
		}
	}
	ranks(t, 2, nil, func(t *testing.T, _ *world.Env, g *Group) { assert.Nil(t, g.Served(), "on one node") })
}

func TestAWrongVariableOfForcedAlgorithms(t *testing.T) {
	for variable, value := range map[string]string{"PADDLEMPI_ALGO": "all_reduce:fast", "PADDLEMPI_LEVELS": "no"} {
		t.Run(variable, func(t *testing.T) {
			t.Setenv(variable, value)
			lib := mpifake.New(1)[0]
			_, err := world.NewEnv(mpifake.World(lib), time.Second, nil)
			assert.Equal(t, status.Argument, status.CodeOf(err))
			assert.ErrorContains(t, err, "init: "+variable+"="+value)
		})
	}
}

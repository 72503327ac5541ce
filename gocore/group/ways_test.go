package group

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/paddlempi/paddlempi/gocore/coll"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/tune"
	"github.com/paddlempi/paddlempi/gocore/work"
	"github.com/paddlempi/paddlempi/gocore/world"
)

// While the ways of a call are measured, it gives the same bits as before, on all ranks: with ranks that come late, calls of several
// lengths in turn, asynchronous ones, calls on which the ranks do not agree, and another group at the same time.
func TestBitsDoNotChangeWhileWaysAreTried(t *testing.T) {
	for name, nodes := range map[string][]int{"two nodes": {0, 1}, "three nodes": {0, 1, 2}, "two of two": {0, 0, 1, 1}, "two and one": {0, 0, 1}} {
		if leftOut(len(nodes) > 3) {
			continue
		}
		t.Run(name, func(t *testing.T) {
			var mu sync.Mutex
			taken := map[uint64][]string{} // by number of the call: what each rank took
			ranks(t, len(nodes), nodes, func(t *testing.T, e *world.Env, g *Group) {
				second, err := New(e, 1, g.Ranks, 20*time.Second)
				if !assert.NoError(t, err) {
					return
				}
				lengths := []int{16<<8 + 3, 70_001, 1<<18 + 5, 1<<20 + 1} // float32
				first := map[int][]float32{}
				rng := rand.New(rand.NewSource(int64(g.Rank)))
				for k := range 100 {
					count := lengths[k%len(lengths)]
					b, free := tensor(t, (k+g.Rank)%3 == 0, count, func(i int) float32 { return float32(math.Sin(float64(g.Rank*7919 + i))) })
					d := allReduce(b)
					if k%10 == 7 && g.Rank == k/10%g.Size {
						d.ReduceOp = op.Max
					}
					if rng.Intn(10) == 0 {
						time.Sleep(time.Duration(rng.Intn(2000)) * time.Microsecond)
					}
					var other *work.Handle
					if k%9 == 4 {
						small, freeSmall := tensor(t, false, 50_000, func(int) float32 { return 1 })
						defer freeSmall()
						o := allReduce(small)
						o.Flags = op.FlagAsync
						other, _, err = second.Submit(o, false)
						assert.NoError(t, err)
					}
					if k%4 == 1 {
						d.Flags = op.FlagAsync
					}
					h, _, err := g.Submit(d, false)
					if h != nil && err == nil {
						_, err = h.Wait(time.Minute, nil)
					}
					if other != nil {
						_, failed := other.Wait(time.Minute, nil)
						assert.NoError(t, failed)
					}
					if k%10 == 7 {
						assert.Equal(t, status.Mismatch, status.CodeOf(err))
						free()
						continue
					}
					if !assert.NoError(t, err) {
						return
					}
					mu.Lock()
					taken[uint64(k)] = append(taken[uint64(k)], g.Tuner.Last())
					mu.Unlock()
					got := slices.Clone(values(b))
					if first[count] == nil {
						first[count] = got
					}
					if !assert.True(t, slices.Equal(first[count], got), "call %d of %d elements has other bits by %s", k, count, g.Tuner.Last()) {
						return
					}
					free()
				}
				assert.NotEmpty(t, g.Tuner.Chosen())
				for _, c := range g.Tuner.Chosen() {
					assert.GreaterOrEqual(t, len(c.Ways), 2)
				}
			})
			ways := map[string]bool{}
			for k, list := range taken {
				assert.Len(t, list, len(nodes))
				assert.Len(t, slices.Compact(list), 1, "call %d: ranks took different ways", k)
				ways[list[0]] = true
			}
			assert.Greater(t, len(ways), 3, "%v", ways)
		})
	}
}

// PADDLEMPI_TUNE=off takes the usual way always.
func TestNothingIsTriedWithoutTuning(t *testing.T) {
	t.Setenv("PADDLEMPI_TUNE", "off")
	ranks(t, 2, []int{0, 1}, func(t *testing.T, _ *world.Env, g *Group) {
		assert.NotZero(t, g.Forced&coll.WithoutTuning)
		for k := range 20 {
			b, free := tensor(t, false, 200_000, func(int) float32 { return 1 })
			_, err := submit(g, allReduce(b))
			assert.NoError(t, err)
			assert.Equal(t, "doubling", g.Algorithm(), fmt.Sprint(k))
			free()
		}
		assert.Empty(t, g.Tuner.Chosen())
	})
}

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

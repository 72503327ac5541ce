package group

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

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

// Between two nodes levels may exchange whole sums, with the same bits: also where they are wider than the tensors, or divided.
func TestLevelsByDoubling(t *testing.T) {
	const count = 300_001
	for name, nodes := range map[string][]int{"two of two": {0, 0, 1, 1}, "two and one": {0, 1, 1}} {
		t.Run(name, func(t *testing.T) {
			ranks(t, len(nodes), nodes, func(t *testing.T, e *world.Env, g *Group) {
				call := func(dtype op.DType, reduction op.ReduceOp) (bits []uint16, c tune.Chosen) {
					made, err := New(e, int64(dtype)<<8|int64(reduction), g.Ranks, 20*time.Second)
					if !assert.NoError(t, err) {
						return nil, c
					}
					value := func(i int) float32 { return float32(math.Sin(float64(g.Rank*7919 + i))) }
					b, free := tensor(t, g.Rank == 1, count, value)
					if dtype == op.BFloat16 {
						free()
						b, free = half(t, dtype, g.Rank == 1, 2*count, func(i int) uint16 { return halved(dtype, []float32{value(i)})[0] })
					}
					defer free()
					d := allReduce(b)
					d.ReduceOp, d.Scale = reduction, 3
					_, err = submit(made, d)
					assert.NoError(t, err)
					c = made.Tuner.Chosen()[0]
					assert.Equal(t, c.Ways[c.Best], made.Tuner.Last())
					return slices.Clone(unsafe.Slice((*uint16)(b.Data), 2*count)), c
				}
				for _, dtype := range []op.DType{op.Float32, op.BFloat16} {
					for _, reduction := range []op.ReduceOp{op.Sum, op.Avg, op.PremulSum} {
						usual, c := call(dtype, reduction)
						best := slices.IndexFunc(c.Ways, func(way string) bool { return strings.HasPrefix(way, "levels by doubling") })
						if !assert.Positive(t, best) || !assert.Zero(t, c.Best) {
							return
						}
						text, err := json.Marshal(map[string]any{"format": tune.Format, "rows": []any{map[string]any{
							"operation": "all_reduce", "half": c.Half, "from": 1 << 20, "best": c.Ways[best], "ways": c.Ways, "times": make([]float64, len(c.Ways)),
						}}})
						assert.NoError(t, err)
						e.Groups.Tuning.Table, err = tune.Decode(text)
						assert.NoError(t, err)
						other, c := call(dtype, reduction)
						assert.Equal(t, best, c.Best)
						assert.True(t, slices.Equal(usual, other), "%s of %s", reduction, dtype)
						e.Groups.Tuning.Table = nil
					}
				}
			})
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

// The time of a call counts once all members have agreed on it, and if no other collective over nodes was under way on any of them.
func TestWhichTimesCount(t *testing.T) {
	ranks(t, 2, []int{0, 1}, func(t *testing.T, e *world.Env, g *Group) {
		calls := func(n, count int, reductions ...op.ReduceOp) {
			for range n {
				b, free := tensor(t, false, count, func(int) float32 { return 1 })
				d := allReduce(b)
				d.ReduceOp = reductions[g.Rank%len(reductions)]
				_, err := submit(g, d)
				assert.Equal(t, len(reductions) > 1, err != nil)
				free()
			}
		}
		calls(3, 30_000, op.Sum, op.Max)
		assert.Empty(t, g.Tuner.Chosen())

		mark := uint64(0)
		if g.Rank == 1 {
			mark = e.Groups.Overlap.Begin()
		}
		calls(6, 30_000, op.Sum)
		if g.Rank == 1 {
			assert.False(t, e.Groups.Overlap.End(mark))
		}
		chosen := g.Tuner.Chosen()
		if !assert.Len(t, chosen, 1) {
			return
		}
		for _, d := range chosen[0].Times {
			assert.Zero(t, d)
		}
		counted := func() bool {
			return slices.ContainsFunc(g.Tuner.Chosen(), func(c tune.Chosen) bool {
				return slices.ContainsFunc(c.Times, func(d time.Duration) bool { return d > 0 })
			})
		}
		for count := 30_000; count < 4_000_000 && !counted(); count *= 2 { // on a busy machine all of a class may be accidents
			calls(12, count, op.Sum)
		}
		assert.True(t, counted())
		calls(90, 30_000, op.Sum) // after 72 trials of four ways no more follow, whatever their times were
		assert.True(t, g.Tuner.Chosen()[0].Tuned)
	})
}

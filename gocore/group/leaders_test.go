package group

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/world"
)

// Tensors that are too short for levels are summed up by the leader of each node when they arrive. The sums are those of the levels: in rank order on a node,
// and in the order of the nodes between them; those of 16-bit floats are rounded once.
func TestAllReduceByLeaders(t *testing.T) {
	t.Setenv("PADDLEMPI_TUNE", "off")
	for name, nodes := range severalNodes() {
		t.Run(name, func(t *testing.T) {
			ranks(t, len(nodes), nodes, func(t *testing.T, _ *world.Env, g *Group) {
				given := func(rank, count int) []float32 {
					list := make([]float32, count)
					for i := range list {
						list[i] = float32(math.Sin(float64(rank*7919 + i)))
					}
					return list
				}
				short, most := int(g.Payloads.Rooms().Payload/4), int(g.Payloads.Rooms().Sum/4)
				for _, count := range []int{short + 1, (short + most) / 2, most} {
					for _, reduction := range []op.ReduceOp{op.Sum, op.Avg, op.PremulSum, op.Max} {
						what := fmt.Sprintf("%s of %d", reduction, count)
						mine := given(g.Rank, count)
						b, free := tensor(t, g.Rank%2 == 0, count, func(i int) float32 { return mine[i] })
						d := allReduce(b)
						d.ReduceOp, d.Scale = reduction, 2
						_, err := submit(g, d)
						assert.NoError(t, err, what)
						assert.Equal(t, "leaders", g.Algorithm())
						want := sumInLevels(g.Levels.Nodes, reduction, 2, func(rank int) []float32 { return given(rank, count) })
						same(t, what, b, func(i int) float32 { return want[i] })
						free()
					}
				}
				// A tensor of bfloat16: 1 and 2^-9 of every other rank, which a rounding on each node would lose.
				b, free := half(t, op.BFloat16, false, most-1, func(int) uint16 { return []uint16{0x3f80, 0x3b00}[g.Rank%2] })
				defer free()
				_, err := submit(g, allReduce(b))
				assert.NoError(t, err)
				assert.Equal(t, "leaders", g.Algorithm())
				sameHalves(t, "bfloat16", b, halved(op.BFloat16, []float32{float32((g.Size+1)/2) + float32(g.Size/2)/512}), 0)
			})
		})
	}
}

// Several tensors are summed up as if they were one, also where some have no elements.
func TestSeveralTensorsByLeaders(t *testing.T) {
	ranks(t, 4, []int{0, 0, 1, 1}, func(t *testing.T, _ *world.Env, g *Group) {
		first, most := int(g.Payloads.Rooms().Payload/4), int(g.Payloads.Rooms().Sum/4)
		var list []op.Buf
		at := 0
		for _, count := range []int{first, 0, 1, most - first - 1} {
			begin := at
			b, free := tensor(t, g.Rank == 1, count, func(i int) float32 { return float32((g.Rank + 1) * (begin + i)) })
			defer free()
			list, at = append(list, b), at+count
		}
		d := desc(op.AllReduceCoalesced, nil, list)
		d.ReduceOp = op.Sum
		_, err := submit(g, d)
		assert.NoError(t, err)
		assert.Equal(t, "leaders", g.Algorithm())
		at = 0
		for k, b := range list {
			begin := at
			same(t, fmt.Sprint(k), b, func(i int) float32 { return float32(10 * (begin + i)) })
			at += int(b.Count)
		}
	})
}

// A reduce_scatter and a reduce of two nodes have the same sums, and no other payload crosses the wire than the sum of what the other node
// gets.
func TestSharesAndRootsByLeaders(t *testing.T) {
	t.Setenv("PADDLEMPI_TUNE", "off")
	for name, nodes := range severalNodes() {
		if slices.Max(nodes) > 1 {
			continue
		}
		t.Run(name, func(t *testing.T) {
			n := len(nodes)
			ranks(t, n, nodes, func(t *testing.T, _ *world.Env, g *Group) {
				rooms := g.Payloads.Rooms()
				given := func(rank, count int) []float32 {
					list := make([]float32, count)
					for i := range list {
						list[i] = float32(math.Sin(float64(rank*7919 + i)))
					}
					return list
				}
				lengths := []int{int(rooms.Payload)/4/n + 1, int(rooms.Sum) / 4 / n}
				if n == 4 { // half of an input crosses the wire
					lengths = append(lengths, int(rooms.Sum)/2/n)
				}
				for _, share := range lengths {
					count := share * n
					for _, reduction := range []op.ReduceOp{op.Sum, op.Avg, op.PremulSum, op.Max} {
						what := fmt.Sprintf("%s of %d", reduction, count)
						want := sumInLevels(g.Levels.Nodes, reduction, 2, func(rank int) []float32 { return given(rank, count) })
						mine := given(g.Rank, count)
						parts, freeParts := shares(t, false, reduction != op.Max, n, func(int) int { return share })
						for r, b := range parts {
							copy(values(b), mine[r*share:])
						}
						if reduction == op.Avg { // one buffer
							parts = []op.Buf{{Data: parts[0].Data, Count: int64(count), DType: op.Float32, DeviceType: op.DeviceCPU}}
						}
						result, free := tensor(t, g.Rank == 1, share, nil)
						d := desc(op.ReduceScatter, parts, []op.Buf{result})
						d.ReduceOp, d.Scale = reduction, 2
						_, err := submit(g, d)
						assert.NoError(t, err, what)
						assert.Equal(t, "leaders", g.Algorithm(), what)
						same(t, what, result, func(i int) float32 { return want[g.Rank*share+i] })
						there := g.Levels.Nodes[1-nodes[g.Rank]]
						_, told := g.Payloads.Payload(0, there[0])
						assert.Equal(t, int64(4*share*(n-len(there))), told, what)
						free()
						freeParts()

						if 4*count > int(rooms.Sum) {
							continue
						}
						root := int(reduction) % n
						b, free := tensor(t, false, count, func(i int) float32 { return mine[i] })
						d = desc(op.Reduce, []op.Buf{b}, []op.Buf{b})
						if g.Rank == root {
							d = desc(op.Reduce, nil, []op.Buf{b})
						}
						d.Root, d.ReduceOp, d.Scale = int32(root), reduction, 2
						_, err = submit(g, d)
						assert.NoError(t, err, what)
						assert.Equal(t, "leaders", g.Algorithm(), what)
						if g.Rank == root {
							same(t, what, b, func(i int) float32 { return want[i] })
						}
						_, told = g.Payloads.Payload(0, there[0])
						assert.Equal(t, nodes[root] == nodes[g.Rank], told == int64(4*count), what)
						assert.Equal(t, nodes[root] != nodes[g.Rank], told == 0, what)
						free()
					}
				}
				// Tensors of bfloat16: 1 and 2^-9 of every other rank, which a rounding on each node would lose.
				count := int(rooms.Sum) / 4 / n * n
				b, free := half(t, op.BFloat16, false, count, func(int) uint16 { return []uint16{0x3f80, 0x3b00}[g.Rank%2] })
				defer free()
				result, freeResult := half(t, op.BFloat16, true, count/n, func(int) uint16 { return 0 })
				defer freeResult()
				d := desc(op.ReduceScatter, []op.Buf{b}, []op.Buf{result})
				d.ReduceOp = op.Sum
				_, err := submit(g, d)
				assert.NoError(t, err)
				assert.Equal(t, "leaders", g.Algorithm())
				sameHalves(t, "bfloat16", result, halved(op.BFloat16, []float32{float32((n+1)/2) + float32(n/2)/512}), 0)
			})
		})
	}
}

// Long all_gathers and broadcasts of two nodes travel with the announcement. Members that call one while others call the other get an
// error each, and the group goes on.
func TestLongPayloadsOfTwoNodes(t *testing.T) {
	ranks(t, 4, []int{0, 0, 1, 1}, func(t *testing.T, _ *world.Env, g *Group) {
		rooms := g.Payloads.Rooms()
		part, whole, all := int(rooms.Gathered/4), int(rooms.Alone/4), int(rooms.Gathered)
		mine, free := tensor(t, false, part, func(i int) float32 { return float32(g.Rank*part + i) })
		defer free()
		results, freeAll := tensor(t, false, all, nil)
		defer freeAll()
		b, freeB := tensor(t, false, whole, nil)
		defer freeB()
		for k := range 4 {
			for i := range values(b) {
				values(b)[i] = float32(100*g.Rank + i)
			}
			broadcast := desc(op.Broadcast, nil, []op.Buf{b})
			broadcast.Root = int32(k)
			d := desc(op.AllGather, []op.Buf{mine}, []op.Buf{results})
			if g.Rank == k {
				d = broadcast
			}
			_, err := submit(g, d)
			assert.Equal(t, status.Mismatch, status.CodeOf(err))
			_, err = submit(g, broadcast)
			assert.NoError(t, err)
			assert.Equal(t, "inline", g.Algorithm())
			same(t, "broadcast", b, func(i int) float32 { return float32(100*k + i) })
			_, err = submit(g, desc(op.AllGather, []op.Buf{mine}, []op.Buf{results}))
			assert.NoError(t, err)
			assert.Contains(t, []string{"inline", "levels"}, g.Algorithm())
			same(t, "all_gather", results, func(i int) float32 { return float32(i) })
		}
	})
}

// A member that announces another call, or refuses its own, leaves no trace in the sums of the next one.
func TestLeadersAfterADisagreement(t *testing.T) {
	ranks(t, 4, []int{0, 0, 1, 1}, func(t *testing.T, _ *world.Env, g *Group) {
		count := int(g.Payloads.Rooms().Sum / 4)
		for k := range 6 {
			b, free := tensor(t, false, count, func(int) float32 { return float32(g.Rank + 1) })
			if k%2 == 0 && g.Rank == k/2 {
				b.Count--
			}
			_, err := submit(g, allReduce(b))
			if k%2 == 0 {
				assert.Equal(t, status.Mismatch, status.CodeOf(err))
			} else if assert.NoError(t, err) {
				same(t, fmt.Sprint(k), b, func(int) float32 { return 10 })
			}
			free()
		}
	})
}

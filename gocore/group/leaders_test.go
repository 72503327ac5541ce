package group

import (
	"fmt"
	"math"
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
				short, most := int(g.Payloads.Room()/4), int(g.Payloads.SumRoom()/4)
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
		first, most := int(g.Payloads.Room()/4), int(g.Payloads.SumRoom()/4)
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

// A member that announces another call, or refuses its own, leaves no trace in the sums of the next one.
func TestLeadersAfterADisagreement(t *testing.T) {
	ranks(t, 4, []int{0, 0, 1, 1}, func(t *testing.T, _ *world.Env, g *Group) {
		count := int(g.Payloads.SumRoom() / 4)
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

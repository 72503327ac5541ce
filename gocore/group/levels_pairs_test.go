package group

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/paddlempi/paddlempi/gocore/coll"
	"github.com/paddlempi/paddlempi/gocore/mpi"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/world"
)

// pairValue is element i of what one rank gives another.
func pairValue(from, to, i int) float32 { return float32(from*10000 + to*1000 + i%100) }

// allToAll makes an all_to_all and checks the values. sends and recvs have a tensor for each rank, or one with the shares of all.
func allToAll(t *testing.T, g *Group, what, algorithm string, sends, recvs []op.Buf, length func(from, to int) int) {
	fill := func(list []op.Buf, value func(rank, i int) float32) {
		for r, b := range list {
			for i, v := range values(b) {
				if rank, at := whose(len(list), r, i, length(g.Rank, 0)); value != nil {
					values(b)[i] = value(rank, at)
				} else if want := pairValue(rank, g.Rank, at); v != want {
					assert.Failf(t, "wrong value", "%s: element %d from rank %d is %v, not %v", what, at, rank, v, want)
					return
				}
			}
		}
	}
	fill(recvs, func(int, int) float32 { return -1 })
	fill(sends, func(rank, i int) float32 { return pairValue(g.Rank, rank, i) })
	_, err := submit(g, desc(op.AllToAll, sends, recvs))
	assert.NoError(t, err, what)
	assert.Equal(t, algorithm, g.Algorithm(), what)
	fill(recvs, nil)
}

// whose returns the rank of element i of tensor r, and its place in that rank's share.
func whose(tensors, r, i, share int) (rank, at int) {
	if tensors == 1 {
		return i / share, i % share
	}
	return r, i
}

// On even nodes an all_to_all of one length can go in levels: in one tensor and in several, in the heap and elsewhere, also from and to
// the same memory. What leaves a node is the least possible, and a rank sends to its counterparts only.
func TestAllToAllInLevels(t *testing.T) {
	t.Setenv("PADDLEMPI_ALGO", "all_to_all:levels")
	for name, nodes := range map[string][]int{"two of two": {0, 0, 1, 1}, "interleaved": {0, 1, 0, 1}, "three of two": {0, 0, 1, 1, 2, 2}, "two of three": {0, 0, 0, 1, 1, 1}} {
		if leftOut(len(nodes) > 4) {
			continue
		}
		t.Run(name, func(t *testing.T) {
			var sent, expected atomic.Int64
			count := func(_, _ int, c *mpi.Call) (time.Duration, error) {
				if c.Fn == mpi.FnSend && c.Tag > coll.ArrivalTag {
					sent.Add(c.SendCount)
				}
				return 0, nil
			}
			hooked(t, nodes, count, func(t *testing.T, _ *world.Env, g *Group) {
				n := len(nodes)
				for _, share := range []int{int(coll.LevelBytes()/8)/n + 777, 1<<18/n + 1} {
					even := func(int, int) int { return share }
					for k, mapped := range []bool{false, true, g.Rank == 1} {
						what := fmt.Sprintf("%d elements, mapped: %v", share, mapped)
						one, freeOne := tensor(t, mapped, n*share, nil)
						several, freeSeveral := shares(t, mapped || k == 2, k == 1, n, func(int) int { return share })
						allToAll(t, g, what, "levels", []op.Buf{one}, several, even)
						allToAll(t, g, what, "levels", several, []op.Buf{one}, even)
						if k == 2 {
							inPlace := desc(op.AllToAll, []op.Buf{one}, []op.Buf{one})
							for i := range values(one) {
								values(one)[i] = pairValue(g.Rank, i/share, i%share)
							}
							_, err := submit(g, inPlace)
							assert.NoError(t, err, what)
							same(t, what, one, func(i int) float32 { return pairValue(i/share, g.Rank, i%share) })
							expected.Add(int64(4 * share * (n - g.Rails)))
						}
						expected.Add(int64(2 * 4 * share * (n - g.Rails)))
						freeOne()
						freeSeveral()
					}
				}
			})
			assert.Equal(t, expected.Load(), sent.Load(), "bytes between nodes")
		})
	}
}

// Others go by MPI as before: on uneven nodes, and shares of several lengths, of which some ranks may have one length only.
func TestAllToAllBesideLevels(t *testing.T) {
	t.Setenv("PADDLEMPI_ALGO", "all_to_all:levels")
	for name, nodes := range map[string][]int{"two of two": {0, 0, 1, 1}, "two and one": {0, 0, 1}} {
		t.Run(name, func(t *testing.T) {
			ranks(t, len(nodes), nodes, func(t *testing.T, _ *world.Env, g *Group) {
				n, share := len(nodes), 200_003
				uneven := func(from, to int) int { return share + (from+1)*(to+1)%3*(1-from/2) }
				sends, freeSends := shares(t, false, false, n, func(to int) int { return uneven(g.Rank, to) })
				recvs, freeRecvs := shares(t, g.Rank == 0, false, n, func(from int) int { return uneven(from, g.Rank) })
				allToAll(t, g, "of several lengths", "pairwise", sends, recvs, uneven)
				if len(nodes) == 3 {
					one, freeOne := tensor(t, true, n*share, nil)
					other, freeOther := tensor(t, false, n*share, nil)
					allToAll(t, g, "on uneven nodes", "mpi", []op.Buf{one}, []op.Buf{other}, func(int, int) int { return share })
					freeOne()
					freeOther()
				}
				freeSends()
				freeRecvs()
			})
		})
	}
}

package group

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"

	"github.com/paddlempi/paddlempi/gocore/coll"
	"github.com/paddlempi/paddlempi/gocore/heap"
	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/mpi"
	"github.com/paddlempi/paddlempi/gocore/mpi/mpifake"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/reduce"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/trace"
	"github.com/paddlempi/paddlempi/gocore/world"
)

// tensor makes a tensor of float32 in the heap or elsewhere, and returns how to give it back. Without value it is not filled.
func tensor(t *testing.T, mapped bool, count int, value func(i int) float32) (op.Buf, func()) {
	alloc, free := mem.Alloc, func(p unsafe.Pointer) { mem.Free(p) }
	if mapped {
		h, err := heap.OfProcess()
		if !assert.NoError(t, err) {
			t.FailNow()
		}
		alloc, free = h.Alloc, func(p unsafe.Pointer) { assert.NoError(t, h.Free(p)) }
	}
	p, err := alloc(int64(4 * max(1, count)))
	if !assert.NoError(t, err) {
		t.FailNow()
	}
	b := op.Buf{Data: p, Count: int64(count), DType: op.Float32, DeviceType: op.DeviceCPU}
	if value != nil {
		list := values(b)
		for i := range list {
			list[i] = value(i)
		}
	}
	return b, func() { free(p) }
}

// same tells whether all elements are as expected, and reports the first that is not.
func same(t *testing.T, what string, b op.Buf, want func(i int) float32) {
	for i, v := range values(b) {
		if v != want(i) {
			assert.Failf(t, "wrong value", "%s: element %d of %d is %v, not %v", what, i, b.Count, v, want(i))
			return
		}
	}
}

func severalNodes() map[string][]int {
	all := map[string][]int{
		"two of two": {0, 0, 1, 1}, "interleaved": {0, 1, 0, 1}, "two and one": {0, 0, 1}, "three nodes": {0, 1, 1, 2, 2, 2}, "three of two": {0, 0, 1, 1, 2, 2},
	}
	maps.DeleteFunc(all, func(_ string, nodes []int) bool { return leftOut(len(nodes) > 4) })
	return all
}

// Groups over nodes of several ranks sum up in levels: tensors of more than one step of the levels, at odd lengths, in
// the heap and elsewhere on different ranks, in place and not.
func TestAllReduceInLevels(t *testing.T) {
	count := int(coll.LevelBytes()/4) + 12345
	for name, nodes := range severalNodes() {
		t.Run(name, func(t *testing.T) {
			ranks(t, len(nodes), nodes, func(t *testing.T, _ *world.Env, g *Group) {
				for _, c := range []struct {
					what   string
					reduce op.ReduceOp
					mapped bool
					send   bool
				}{{"in place", op.Sum, false, false}, {"mapped", op.Avg, true, true}, {"some are mapped", op.PremulSum, g.Rank%2 == 0, true}, {"greatest", op.Max, true, false}} {
					mine := func(i int) float32 { return float32((g.Rank + 1) * (i%7 + 1)) }
					b, free := tensor(t, c.mapped, count, mine)
					d := allReduce(b)
					if c.send {
						result, freeResult := tensor(t, c.mapped, count, func(int) float32 { return -1 })
						d = desc(op.AllReduce, []op.Buf{b}, []op.Buf{result})
						b, free = result, func() { free(); freeResult() }
					}
					d.ReduceOp, d.Scale, d.Flags = c.reduce, 2, op.FlagAsync
					h, _, err := g.Submit(d, false)
					if assert.NoError(t, err) {
						_, err = h.Wait(time.Minute, nil)
					}
					assert.NoError(t, err, c.what)
					assert.Equal(t, "levels", g.Algorithm())
					n := float32(g.Size)
					factor := map[op.ReduceOp]float32{op.Sum: n * (n + 1) / 2, op.Avg: (n + 1) / 2, op.PremulSum: n * (n + 1), op.Max: n}[c.reduce]
					same(t, c.what, b, func(i int) float32 { return factor * float32(i%7+1) })
					if !c.send {
						free()
					}
				}
			})
		})
	}
}

func TestPartsInLevels(t *testing.T) {
	for name, nodes := range severalNodes() {
		t.Run(name, func(t *testing.T) {
			n := len(nodes)
			count := int(coll.LevelBytes()/4)/n + 777
			ranks(t, n, nodes, func(t *testing.T, _ *world.Env, g *Group) {
				for _, mapped := range []bool{false, true, g.Rank == 1} {
					what := fmt.Sprintf("mapped: %v", mapped)
					value := func(rank, i int) float32 { return float32(rank*1000 + i%100) }
					whole, freeWhole := tensor(t, mapped, n*count, func(i int) float32 { return value(g.Rank, i) })
					part, freePart := tensor(t, mapped, count, func(int) float32 { return -1 })
					d := desc(op.ReduceScatter, []op.Buf{whole}, []op.Buf{part})
					d.ReduceOp = op.Sum
					_, err := submit(g, d)
					assert.NoError(t, err, what)
					assert.Equal(t, "levels", g.Algorithm())
					same(t, what, part, func(i int) (sum float32) {
						for r := range n {
							sum += value(r, g.Rank*count+i)
						}
						return sum
					})
					for i := range values(part) {
						values(part)[i] = value(g.Rank, i)
					}
					_, err = submit(g, desc(op.AllGather, []op.Buf{part}, []op.Buf{whole}))
					assert.NoError(t, err, what)
					assert.Equal(t, "levels", g.Algorithm())
					same(t, what, whole, func(i int) float32 { return value(i/count, i%count) })
					freeWhole()
					freePart()
				}
			})
		})
	}
}

// From and to each root, in the heap and elsewhere, float32 and 16-bit floats.
func TestRootsInLevels(t *testing.T) {
	count := 1<<20 + 333
	for name, nodes := range severalNodes() {
		t.Run(name, func(t *testing.T) {
			ranks(t, len(nodes), nodes, func(t *testing.T, e *world.Env, g *Group) {
				value := func(rank, i int) float32 { return float32(rank*1000 + i%100) }
				for root := range g.Size {
					mapped := root%2 == 0 || g.Rank == 1
					what := fmt.Sprintf("root %d, mapped: %v", root, mapped)
					b, free := tensor(t, mapped, count, func(i int) float32 { return value(g.Rank, i) })
					d := desc(op.Broadcast, nil, []op.Buf{b})
					d.Root = int32(root)
					_, err := submit(g, d)
					assert.NoError(t, err, what)
					assert.Equal(t, "levels", g.Algorithm())
					same(t, what, b, func(i int) float32 { return value(root, i) })
					for i := range values(b) {
						values(b)[i] = value(g.Rank, i)
					}
					recv, freeRecv := tensor(t, !mapped, count, func(int) float32 { return -1 })
					d = desc(op.Reduce, []op.Buf{b}, []op.Buf{recv})
					if inPlace := root%2 == 1; inPlace && g.Rank == root {
						d, recv = desc(op.Reduce, nil, []op.Buf{b}), b
					}
					d.Root, d.ReduceOp, d.Scale = int32(root), op.PremulSum, 0.5
					_, err = submit(g, d)
					assert.NoError(t, err, what)
					assert.Equal(t, "levels", g.Algorithm())
					if g.Rank == root {
						same(t, what, recv, func(i int) (sum float32) {
							for r := range g.Size {
								sum += 0.5 * value(r, i)
							}
							return sum
						})
					} else {
						same(t, what, b, func(i int) float32 { return value(g.Rank, i) })
						same(t, what, recv, func(int) float32 { return -1 })
					}
					free()
					freeRecv()
				}
				given := func(rank int) []uint16 {
					return halved(op.BFloat16, []float32{1.1, 2.7, 3.3, 0.9 * float32(rank+1), 5, 6, 7.7})
				}
				want := halved(op.BFloat16, sumInLevels(e.Topo.ByNode(g.Ranks), op.Avg, 0, func(rank int) []float32 { return widened(op.BFloat16, given(rank)) }))
				for root := range g.Size {
					b, free := half(t, op.BFloat16, root%2 == 0, count, func(i int) uint16 { return given(g.Rank)[i] })
					recv, freeRecv := half(t, op.BFloat16, root%2 == 1, count, func(int) uint16 { return 1 })
					d := desc(op.Reduce, []op.Buf{b}, []op.Buf{recv})
					d.Root, d.ReduceOp = int32(root), op.Avg
					_, err := submit(g, d)
					assert.NoError(t, err)
					if g.Rank == root {
						sameHalves(t, "reduce", recv, want, 0)
					}
					sameHalves(t, "what is given", b, given(g.Rank), 0)
					free()
					freeRecv()
				}
			})
		})
	}
}

// Shares that differ in length, some of which are empty, in tensors one after the other and apart.
func TestUnevenPartsInLevels(t *testing.T) {
	for name, nodes := range severalNodes() {
		t.Run(name, func(t *testing.T) {
			n := len(nodes)
			length := func(rank int) int { return []int{0, 700001, 3, 1200007, 450000, 64}[rank] }
			value := func(rank, i int) float32 { return float32(rank*1000 + i%100) }
			ranks(t, n, nodes, func(t *testing.T, _ *world.Env, g *Group) {
				for _, joined := range []bool{true, false} {
					for _, mapped := range []bool{true, g.Rank == 1} {
						what := fmt.Sprintf("mapped: %v, one after the other: %v", mapped, joined)
						lists, free := shares(t, mapped, joined, n, length)
						for r, b := range lists {
							for i := range values(b) {
								values(b)[i] = value(g.Rank, r+i)
							}
						}
						part, freePart := tensor(t, mapped, length(g.Rank), func(int) float32 { return -1 })
						d := desc(op.ReduceScatter, lists, []op.Buf{part})
						d.ReduceOp = op.Sum
						_, err := submit(g, d)
						assert.NoError(t, err, what)
						assert.Equal(t, "levels", g.Algorithm())
						same(t, what, part, func(i int) (sum float32) {
							for r := range n {
								sum += value(r, g.Rank+i)
							}
							return sum
						})
						for i := range values(part) {
							values(part)[i] = value(g.Rank, i)
						}
						_, err = submit(g, desc(op.AllGather, []op.Buf{part}, lists))
						assert.NoError(t, err, what)
						assert.Equal(t, "levels", g.Algorithm())
						for r, b := range lists {
							same(t, fmt.Sprintf("%s, from rank %d", what, r), b, func(i int) float32 { return value(r, i) })
						}
						free()
						freePart()
					}
				}
			})
		})
	}
}

// shares makes a tensor for each rank, parts of one or on their own.
func shares(t *testing.T, mapped, joined bool, n int, length func(rank int) int) (list []op.Buf, free func()) {
	total := 0
	for r := range n {
		total += length(r)
	}
	whole, freeWhole := tensor(t, mapped, total, func(int) float32 { return -1 })
	frees := []func(){freeWhole}
	from := 0
	for r := range n {
		b := whole
		b.Data, b.Count = unsafe.Add(whole.Data, 4*from), int64(length(r))
		if !joined {
			var freeOne func()
			b, freeOne = tensor(t, mapped, length(r), func(int) float32 { return -1 })
			frees = append(frees, freeOne)
		}
		list, from = append(list, b), from+length(r)
	}
	return list, func() {
		for _, f := range frees {
			f()
		}
	}
}

// halved rounds numbers to a 16-bit type.
func halved(d op.DType, numbers []float32) []uint16 {
	in := floats(numbers...)
	out := halves(in.Count)
	fold := reduce.NewFold(op.Float32, op.Sum, 1, 0).To(d)
	fold.Run(out.Data, []unsafe.Pointer{in.Data}, in.Count)
	return slices.Clone(unsafe.Slice((*uint16)(out.Data), out.Count))
}

// widened is the reverse.
func widened(d op.DType, bits []uint16) []float32 {
	in := halves(int64(len(bits)))
	copy(unsafe.Slice((*uint16)(in.Data), in.Count), bits)
	out := floats(make([]float32, len(bits))...)
	fold := reduce.NewFold(d, op.Sum, 1, 0).To(op.Float32)
	fold.Run(out.Data, []unsafe.Pointer{in.Data}, in.Count)
	return slices.Clone(values(out))
}

// Sums of 16-bit floats in levels are made in float32, in rank order on each node and in the order of the nodes, and
// are rounded once: every rank has exactly these bits.
func TestHalvesInLevels(t *testing.T) {
	const period = 7
	type sumOf struct {
		d      op.DType
		r      op.ReduceOp
		mapped bool
	}
	for name, nodes := range severalNodes() {
		t.Run(name, func(t *testing.T) {
			ranks(t, len(nodes), nodes, func(t *testing.T, e *world.Env, g *Group) {
				for _, c := range []sumOf{{op.BFloat16, op.Sum, false}, {op.Float16, op.Avg, true}, {op.BFloat16, op.PremulSum, g.Rank%2 == 0}, {op.Float16, op.Product, true}, {op.BFloat16, op.Max, true}} {
					given := func(rank int) []uint16 {
						numbers := make([]float32, period)
						for i := range numbers {
							numbers[i] = 1 + 0.37*float32(rank*period+i)
						}
						return halved(c.d, numbers)
					}
					want := halved(c.d, sumInLevels(e.Topo.ByNode(g.Ranks), c.r, 0.3, func(rank int) []float32 { return widened(c.d, given(rank)) }))
					what := fmt.Sprintf("%v", c)
					n := int(coll.LevelBytes()/4) + 12345
					send, free := half(t, c.d, c.mapped, n, func(i int) uint16 { return given(g.Rank)[i%period] })
					recv, freeRecv := half(t, c.d, c.mapped, n, func(int) uint16 { return 1 })
					for _, inPlace := range []bool{false, true} {
						d, result := desc(op.AllReduce, []op.Buf{send}, []op.Buf{recv}), recv
						if inPlace {
							d, result = desc(op.AllReduce, nil, []op.Buf{send}), send
						}
						d.ReduceOp, d.Scale = c.r, 0.3
						_, err := submit(g, d)
						assert.NoError(t, err, what)
						assert.Equal(t, "levels", g.Algorithm())
						sameHalves(t, what, result, want, 0)
					}
					free()
					freeRecv()
					share := n/g.Size + 3
					send, free = half(t, c.d, c.mapped, share*g.Size, func(i int) uint16 { return given(g.Rank)[i%period] })
					recv, freeRecv = half(t, c.d, !c.mapped, share, func(int) uint16 { return 1 })
					d := desc(op.ReduceScatter, []op.Buf{send}, []op.Buf{recv})
					d.ReduceOp, d.Scale = c.r, 0.3
					_, err := submit(g, d)
					assert.NoError(t, err, what)
					assert.Equal(t, "levels", g.Algorithm())
					sameHalves(t, what, recv, want, share*g.Rank)
					free()
					freeRecv()
				}
			})
		})
	}
}

// sumInLevels sums up what each rank gives.
func sumInLevels(nodes [][]int, r op.ReduceOp, scale float32, given func(rank int) []float32) (all []float32) {
	add := func(to *[]float32, more []float32) {
		if *to == nil {
			*to = more
			return
		}
		for i, v := range more {
			switch r {
			case op.Product:
				(*to)[i] *= v
			case op.Max:
				(*to)[i] = max((*to)[i], v)
			default:
				(*to)[i] += v
			}
		}
	}
	n := 0
	for _, members := range nodes {
		var here []float32
		for _, rank := range members {
			mine := given(rank)
			for i := range mine {
				if r == op.PremulSum {
					mine[i] *= scale
				}
			}
			add(&here, mine)
			n++
		}
		add(&all, here)
	}
	for i := range all {
		if r == op.Avg {
			all[i] /= float32(n)
		}
	}
	return all
}

// half is tensor for 16-bit floats.
func half(t *testing.T, d op.DType, mapped bool, count int, value func(i int) uint16) (op.Buf, func()) {
	b, free := tensor(t, mapped, (count+1)/2, nil)
	b.Count, b.DType = int64(count), d
	list := unsafe.Slice((*uint16)(b.Data), count)
	for i := range min(7, count) {
		list[i] = value(i)
	}
	for i := 7; i < count; i++ {
		list[i] = list[i-7]
	}
	return b, free
}

// sameHalves is same for values that are repeated, and of which b begins with number from.
func sameHalves(t *testing.T, what string, b op.Buf, want []uint16, from int) {
	at := from % len(want)
	for i, v := range unsafe.Slice((*uint16)(b.Data), b.Count) {
		if v != want[at] {
			assert.Failf(t, "wrong value", "%s: element %d of %d is %#x, not %#x", what, i, b.Count, v, want[at])
			return
		}
		if at++; at == len(want) {
			at = 0
		}
	}
}

// A rank that gives up in the levels is named by the others, on its node and elsewhere, and the group is broken.
func TestARankThatGivesUpInLevelsIsNamed(t *testing.T) {
	ranks(t, 4, []int{0, 0, 1, 1}, func(t *testing.T, e *world.Env, g *Group) {
		if g.Rank == 3 {
			time.Sleep(time.Second) // the others have come and wait
			return
		}
		timeout := time.Minute
		if g.Rank == 0 {
			timeout = 300 * time.Millisecond
		}
		took, err := sum(g, large(), timeout, 0)
		assert.Less(t, took, 4*time.Second)
		if g.Rank == 0 {
			assert.Equal(t, status.Timeout, status.CodeOf(err), "%v", err)
			return
		}
		blames(t, err, status.GroupBroken, 0, "rank(s) [0] gave up waiting when the deadline had passed there; the group is broken")
	})
}

// troubleInLevels makes a large all_reduce on two nodes of two ranks, over an MPI with a hook. Each rank waits as long as
// timeout says. It returns the errors, and what the ranks have recorded.
func troubleInLevels(t *testing.T, hook mpifake.Hook, timeout func(rank int) time.Duration) (errs [4]error, records [4]trace.OperationRecord) {
	hooked(t, []int{0, 0, 1, 1}, hook, func(t *testing.T, e *world.Env, g *Group) {
		g.SetTimeout(10 * time.Second)
		_, errs[g.Rank] = sum(g, large(), timeout(g.Rank), 0)
		list := recorded(t, e)
		records[g.Rank] = list[len(list)-1]
	})
	return errs, records
}

// isGiven tells whether a call of MPI is about a message of the first leg between nodes.
func isGiven(c *mpi.Call, fn mpi.Fn) bool { return c.Fn == fn && c.Tag == coll.ArrivalTag+1 }

// Errors and records say in which phase it was, on which rail, and with which rank.
func TestTroubleInLevelsNamesThePhase(t *testing.T) {
	patient := func(int) time.Duration { return 20 * time.Second }
	where := func(o trace.OperationRecord, rail, partner int) {
		if assert.NotNil(t, o.Phase) && assert.NotNil(t, o.Partner) {
			assert.Equal(t, "between the nodes", *o.Phase)
			assert.Equal(t, []int{rail, partner}, []int{*o.Rail, *o.Partner})
		}
	}
	t.Run("a message that does not come", func(t *testing.T) {
		errs, records := troubleInLevels(t, func(rank, _ int, c *mpi.Call) (time.Duration, error) {
			if rank == 2 && isGiven(c, mpi.FnSend) {
				return 3 * time.Second, nil
			}
			return 0, nil
		}, func(rank int) time.Duration {
			if rank == 0 {
				return 500 * time.Millisecond
			}
			return 20 * time.Second
		})
		assert.Equal(t, status.Timeout, status.CodeOf(errs[0]))
		assert.ErrorContains(t, errs[0], "the transfer did not end, between the nodes, on rail 0, with rank 2; the group is broken")
		where(records[0], 0, 2)
		for _, err := range errs[1:] {
			blames(t, err, status.GroupBroken, 0, "rank(s) [0] gave up waiting when the deadline had passed there")
		}
	})
	t.Run("an error of MPI", func(t *testing.T) {
		errs, records := troubleInLevels(t, func(rank, _ int, c *mpi.Call) (time.Duration, error) {
			if rank == 1 && isGiven(c, mpi.FnRecv) {
				return 0, status.New(status.Truncate, "MPI_Irecv failed with MPI_ERR_TRUNCATE")
			}
			return 0, nil
		}, patient)
		blames(t, errs[1], status.Truncate, 3, ", between the nodes, on rail 1, with rank 3: MPI_Irecv failed with MPI_ERR_TRUNCATE; the group is broken")
		where(records[1], 1, 3)
	})
	t.Run("a message that is too short", func(t *testing.T) {
		errs, _ := troubleInLevels(t, func(rank, _ int, c *mpi.Call) (time.Duration, error) {
			if rank == 3 && isGiven(c, mpi.FnSend) {
				c.SendCount -= 4
			}
			return 0, nil
		}, patient)
		blames(t, errs[1], status.GroupBroken, 3, ", between the nodes, on rail 1, with rank 3: that rank has sent a message of another length than was agreed on")
	})
}

package group

import (
	"fmt"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"

	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/world"
)

// Of two ranks on two nodes each tells with its announcement only what the other one gets, and reads its own part where it lies: also where
// it is not contiguous, or where the result lies over what is sent.
func TestAPairTellsWhatTheOtherGets(t *testing.T) {
	t.Setenv("PADDLEMPI_TUNE", "off")
	const count = 1000
	ranks(t, 2, []int{0, 1}, func(t *testing.T, _ *world.Env, g *Group) {
		value := func(rank, i int) float32 { return float32(rank*10_000 + i) }
		told := func(what string, want int) {
			assert.Equal(t, "inline", g.Algorithm(), what)
			_, bytes := g.Payloads.Payload(0, 1-g.Rank)
			assert.Equal(t, int64(4*want), bytes, what)
		}
		at := func(b op.Buf, from, n int) op.Buf {
			b.Data, b.Count = unsafe.Add(b.Data, 4*from), int64(n)
			return b
		}
		run := func(code op.Code, root int, send, recv []op.Buf) {
			d := desc(code, send, recv)
			d.Root, d.ReduceOp = int32(root), op.Sum
			_, err := submit(g, d)
			assert.NoError(t, err)
		}
		for k, name := range []string{"elsewhere", "in its place", "over both"} {
			from := []int{3 * count, g.Rank * count, count / 2}[k]
			fresh := func() (b, send, recv op.Buf, free func()) {
				b, free = tensor(t, false, 5*count, func(i int) float32 { return value(g.Rank, i) })
				return b, at(b, 0, 2*count), at(b, from, count), free
			}
			_, send, recv, free := fresh()
			run(op.ReduceScatter, 0, []op.Buf{send}, []op.Buf{recv})
			if name == "over both" {
				assert.Equal(t, "slices", g.Algorithm())
			} else {
				told(name, count)
			}
			same(t, "reduce_scatter, "+name, recv, func(i int) float32 { return value(0, g.Rank*count+i) + value(1, g.Rank*count+i) })
			free()

			_, send, recv, free = fresh()
			run(op.Scatter, 1, []op.Buf{send}, []op.Buf{recv})
			same(t, "scatter, "+name, recv, func(i int) float32 { return value(1, g.Rank*count+i) })
			free()
		}
		b, free := tensor(t, false, 4*count, func(i int) float32 { return value(g.Rank, i) })
		defer free()
		run(op.AllToAll, 0, []op.Buf{at(b, 0, 2*count)}, []op.Buf{at(b, 2*count, 2*count)})
		told("all_to_all", count)
		same(t, "all_to_all", at(b, 2*count, 2*count), func(i int) float32 { return value(i/count, g.Rank*count+i%count) })

		dims, err := mem.Alloc(16)
		if !assert.NoError(t, err) {
			return
		}
		defer mem.Free(dims)
		*(*[2]int64)(dims) = [2]int64{count, 2}
		for root := range 2 {
			what := fmt.Sprintf("from or to %d", root)
			strided := at(b, 0, count) // every other element
			strided.NDim, strided.Shape, strided.Strides = 1, dims, unsafe.Add(dims, 8)
			tells := []int{0, count}
			run(op.Reduce, root, []op.Buf{strided}, []op.Buf{at(b, 3*count, count)})
			told(what, tells[(1+root+g.Rank)%2])
			if g.Rank == root {
				same(t, "reduce "+what, at(b, 3*count, count), func(i int) float32 { return value(0, 2*i) + value(1, 2*i) })
			}
			run(op.Gather, root, []op.Buf{strided}, []op.Buf{at(b, 2*count, 2*count)})
			told(what, tells[(1+root+g.Rank)%2])
			if g.Rank == root {
				same(t, "gather "+what, at(b, 2*count, 2*count), func(i int) float32 { return value(i/count, 2*(i%count)) })
			}
		}
	})
}

// A long broadcast and reduce of two ranks go in pieces, the reduce also in place and of 16-bit floats.
func TestRootsOfAPair(t *testing.T) {
	t.Setenv("PADDLEMPI_TUNE", "off")
	const count = 300_001
	ranks(t, 2, []int{0, 1}, func(t *testing.T, _ *world.Env, g *Group) {
		value := func(rank, i int) float32 { return float32((rank + 1) * (i%1000 + 1)) }
		for root := range 2 {
			b, free := tensor(t, root == 0, count, func(i int) float32 { return value(g.Rank, i) })
			recv, freeRecv := tensor(t, false, count, func(int) float32 { return -1 })
			for _, d := range []*op.Desc{desc(op.Reduce, []op.Buf{b}, []op.Buf{recv}), desc(op.Reduce, []op.Buf{b}, []op.Buf{b}), desc(op.Broadcast, nil, []op.Buf{b})} {
				d.Root, d.ReduceOp = int32(root), op.Avg
				_, err := submit(g, d)
				assert.NoError(t, err)
				assert.Equal(t, "slices", g.Algorithm())
			}
			if g.Rank == root {
				same(t, "reduce", recv, func(i int) float32 { return (value(0, i) + value(1, i)) / 2 })
			} else {
				same(t, "reduce elsewhere", recv, func(int) float32 { return -1 })
			}
			same(t, "broadcast of the result", b, func(i int) float32 { return (value(0, i) + value(1, i)) / 2 })
			free()
			freeRecv()
		}
	})
}

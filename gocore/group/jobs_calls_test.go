package group

import (
	"slices"
	"sync"
	"time"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/heap"
	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// jobCall is one call of a rank.
type jobCall struct {
	jobStep
	step       int
	send, recv []op.Buf
	lists      [2][]op.Buf // what d names of send and recv
	mapped     bool
	handle     *work.Handle
	began      time.Time
	stood      int64 // stood at that time
	err        error
}

// input is element i of what a rank gives at a step. Sums over all ranks are below 2048, up to which float16 has all
// whole numbers.
func input(rank, step int, i int64) float32 { return float32(rank + 1 + step + int(i%5)) }

// asHalf has the bits of whole numbers in float16.
var asHalf = sync.OnceValue(func() []uint16 {
	numbers := make([]float32, 2048)
	for i := range numbers {
		numbers[i] = float32(i)
	}
	return halved(op.Float16, numbers)
})

func short(b op.Buf) []uint16 { return unsafe.Slice((*uint16)(b.Data), b.Count) }

// put writes whole numbers into a tensor.
func put(b op.Buf, number func(i int64) float32) {
	if b.DType == op.Float16 {
		for i := range short(b) {
			short(b)[i] = asHalf()[int(number(int64(i)))]
		}
		return
	}
	for i := range values(b) {
		values(b)[i] = number(int64(i))
	}
}

// differs returns the first element of a tensor that is not as expected; -1 if all are.
func differs(b op.Buf, number func(i int64) float32) int {
	if b.DType == op.Float16 {
		for i, v := range short(b) {
			if v != asHalf()[int(number(int64(i)))] {
				return i
			}
		}
		return -1
	}
	for i, v := range values(b) {
		if v != number(int64(i)) {
			return i
		}
	}
	return -1
}

// tensors makes some, one for each length.
func (c *jobCall) tensors(lengths ...int64) (list []op.Buf) {
	alloc := mem.Alloc
	if c.mapped {
		own, err := heap.OfProcess()
		if err != nil {
			panic(err)
		}
		alloc = own.Alloc
	}
	for _, n := range lengths {
		p, err := alloc(max(1, n*int64(c.dtype.Size())))
		if err != nil {
			panic(err)
		}
		list = append(list, op.Buf{Data: p, Count: n, DType: c.dtype, DeviceType: op.DeviceCPU})
	}
	return list
}

func (c *jobCall) free() {
	for _, b := range slices.Concat(c.send, c.recv) {
		if c.mapped {
			_ = heap.IfMade().Free(b.Data)
		} else {
			mem.Free(b.Data)
		}
	}
}

// shares returns the lengths of the shares of all ranks.
func (c *jobCall) shares(count int64, size int) (lengths []int64) {
	for r := range size {
		n := count
		if c.uneven {
			n += int64(r % 3 * 100)
		}
		lengths = append(lengths, n)
	}
	return lengths
}

func (m *member) begin(step int, count int64, timeout time.Duration) *jobCall {
	c := &jobCall{jobStep: m.steps[step], step: step, began: time.Now(), stood: stood.Load()}
	c.mapped = c.where == inHeaps || c.where == someInHeaps && m.g.Rank%2 == 0
	size, rank, root := m.g.Size, m.g.Rank, step%m.g.Size
	all := c.shares(count, size)
	mine := func(i int64) float32 { return input(rank, step, i) }
	inPlace := step%2 == 0
	switch c.code {
	case op.AllReduce:
		c.recv = c.tensors(count)
		if !inPlace {
			c.send = c.tensors(count)
		}
	case op.AllReduceCoalesced:
		c.recv, inPlace = c.tensors(count, 0, count/2+1), true
	case op.ReduceScatter:
		c.send, c.recv, inPlace = c.tensors(all...), c.tensors(all[rank]), false
	case op.AllGather:
		c.send, c.recv, inPlace = c.tensors(all[rank]), c.tensors(all...), false
	case op.Broadcast:
		c.recv, inPlace = c.tensors(count), true
	case op.Reduce:
		if inPlace = inPlace && rank == root; inPlace {
			c.recv = c.tensors(count)
		} else {
			c.send, c.recv = c.tensors(count), c.tensors(count)
		}
	}
	given := c.send
	if inPlace {
		given = c.recv
	}
	for _, b := range given {
		put(b, mine)
	}
	c.lists = [2][]op.Buf{c.send, c.recv}
	if c.code == op.Reduce && rank != root {
		c.lists[1] = nil
	}
	d := desc(c.code, c.lists[0], c.lists[1])
	if t, _ := op.TraitOf(c.code); t.Reduces {
		d.ReduceOp = op.Sum
	}
	if t, _ := op.TraitOf(c.code); t.Rooted {
		d.Root = int32(root)
	}
	d.TimeoutNS = int64(timeout)
	if c.async {
		d.Flags = op.FlagAsync
	}
	c.handle, _, c.err = m.g.Submit(d, false)
	return c
}

// end waits for a call, and checks its result.
func (m *member) end(c *jobCall) {
	if c.async && c.err == nil {
		_, c.err = c.handle.Wait(-1, m.e.Interrupt)
	}
	took := time.Since(c.began)
	if took > jobSlack { // watchClock may have to notice it first
		time.Sleep(time.Second)
		took -= time.Duration(stood.Load() - c.stood)
	}
	if took > jobSlack {
		m.fatal("step %d took %v: %v", c.step, took, c.err)
	}
	if c.err != nil {
		m.kept = append(m.kept, c)
		return
	}
	if which, at := c.wrong(m.g.Rank, m.g.Size); at >= 0 {
		m.fatal("step %d: element %d of tensor %d is wrong", c.step, at, which)
	}
	c.free()
}

// wrong returns the first tensor whose result is wrong, and its element; -1 if none is.
func (c *jobCall) wrong(rank, size int) (which, at int) {
	sum := func(i int64) (sum float32) {
		for r := range size {
			sum += input(r, c.step, i)
		}
		return sum
	}
	root := c.step % size
	for k, b := range c.recv {
		want := sum
		switch {
		case c.code == op.AllGather:
			want = func(i int64) float32 { return input(k, c.step, i) }
		case c.code == op.Broadcast:
			want = func(i int64) float32 { return input(root, c.step, i) }
		case c.code == op.Reduce && rank != root:
			continue
		}
		if at := differs(b, want); at >= 0 {
			return k, at
		}
	}
	return 0, -1
}

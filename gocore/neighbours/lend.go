package neighbours

import (
	"fmt"
	"math/bits"
	"slices"
	"sync/atomic"

	"github.com/paddlempi/paddlempi/gocore/coll"
	"github.com/paddlempi/paddlempi/gocore/grid"
	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/op"
)

// A synchronous halo exchange on one node does not pack a tensor that lies in this process's heap: it lends it. The
// neighbours copy out of it, one copy instead of two, and this member waits until they have. Each member decides this for
// itself: its payload says what it does. A tensor whose parts are scattered is packed, because another processor would fetch
// a cache line for each element.

const (
	// leastLent is how many bytes a tensor that is lent gives at least, and longRun how long the stretches are that hold all of
	// it but one in shortShare.
	leastLent  = 16 << 10
	longRun    = 256
	shortShare = 8
)

// source is how to copy out of the tensor of another member that has a layout, and whose first element is at first.
type source struct {
	layout       []int64
	first, bytes int64
	boxes        []mem.Box
}

// borrower finds the copies of what a rank gets out of tensors that other ranks lend.
type borrower struct {
	h     *grid.Halo
	rank  int
	dtype op.DType
	dims  int        // of the tensors
	in    []grid.Box // what the rank gets
	// place returns where a box of in goes: its offset from the rank's memory, and its layout there.
	place   func(i int) (to int64, layout op.Buf)
	sources []atomic.Pointer[source] // by rank: what was found last
}

// lending says how the rank borrows, and whether it lends its own tensor.
func (k *plan) lending(h *grid.Halo, rank int, in []grid.Box, steps []int64) {
	n := &k.neighbours
	place := func(i int) (int64, op.Buf) { return placed(&in[i], k.dtype, steps) }
	n.Lend = &coll.Lend{Layout: slices.Concat(k.shape, steps), From: k.borrow(h, rank, in, place)}
	short := int64(0)
	for i := range n.Pack[0].Boxes {
		if b := &n.Pack[0].Boxes[i]; b.Run() < longRun {
			short += b.Bytes()
		}
	}
	ok := false
	n.Lend.Low, n.Lend.Bytes, ok = extent(k.shape, steps, int64(k.dtype.Size()))
	n.Lend.Worth = ok && n.OutBytes >= leastLent && short <= n.OutBytes/shortShare
}

// borrow returns Lend.From.
func (k *plan) borrow(h *grid.Halo, rank int, in []grid.Box, place func(int) (int64, op.Buf)) func(int, []int64, int64, int64) ([]mem.Box, error) {
	b := &borrower{h: h, rank: rank, dtype: k.dtype, dims: len(k.shape), in: in, place: place, sources: make([]atomic.Pointer[source], h.Size())}
	return b.from
}

func (b *borrower) from(r int, layout []int64, first, bytes int64) ([]mem.Box, error) {
	if s := b.sources[r].Load(); s != nil && s.first == first && s.bytes == bytes && slices.Equal(s.layout, layout) {
		return s.boxes, nil
	}
	boxes, err := b.find(r, layout, first, bytes)
	if err == nil {
		b.sources[r].Store(&source{slices.Clone(layout), first, bytes, boxes})
	}
	return boxes, err
}

// find finds the copies out of a tensor of r, whose layout may be anything.
func (b *borrower) find(r int, layout []int64, first, bytes int64) ([]mem.Box, error) {
	shape, steps := slices.Clone(layout[:b.dims]), slices.Clone(layout[b.dims:])
	low, span, ok := extent(shape, steps, int64(b.dtype.Size()))
	if !ok || first != -low || bytes != span {
		return nil, fmt.Errorf("the shape %v with the strides %v has not %d bytes", shape, steps, bytes)
	}
	out, _, err := b.h.Boxes(r, shape)
	if err != nil {
		return nil, err
	}
	var boxes []mem.Box
	for i := range b.in {
		if b.in[i].Rank != r {
			continue
		}
		next := slices.IndexFunc(out, func(o grid.Box) bool { return o.Rank == b.rank })
		if next < 0 || !slices.Equal(out[next].N, b.in[i].N) {
			return nil, fmt.Errorf("rank %d with a tensor of %v gives something else", r, shape)
		}
		to, border := b.place(i)
		from, inner := placed(&out[next], b.dtype, steps)
		out = out[next+1:]
		box, err := mem.NewBox(to, &border, from, &inner)
		if err != nil {
			return nil, err
		}
		boxes = append(boxes, box)
	}
	sideBySide(boxes)
	return boxes, nil
}

// extent returns the memory of a tensor: where it begins, counted from the first element, and its length. ok is false if no
// memory is as large.
func extent(shape, steps []int64, elem int64) (low, bytes int64, ok bool) {
	const most = 1 << 52
	high := elem
	for i, n := range shape {
		step := steps[i]
		over, reach := bits.Mul64(uint64(n), uint64(max(step, -step))*uint64(elem))
		if n < 1 || step <= -most || step >= most || over != 0 || reach > most {
			return 0, 0, false
		}
		if reach := (n - 1) * step * elem; reach < 0 {
			low += reach
		} else {
			high += reach
		}
	}
	return low, high - low, true
}

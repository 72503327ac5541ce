package neighbours

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"slices"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/arrive"
	"github.com/paddlempi/paddlempi/gocore/buffer"
	"github.com/paddlempi/paddlempi/gocore/coll"
	"github.com/paddlempi/paddlempi/gocore/grid"
	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// plan is what a halo makes of tensors of one dtype, shape and strides.
type plan struct {
	dtype          op.DType
	shape, strides []int64
	neighbours     coll.Neighbours
	device         *deviceHalo // of tensors in device memory
	hash           uint64
}

// keptPlans is how many plans a halo keeps.
const keptPlans = 8

// halo finds the plan for a tensor, and makes the signature.
func (c *Call) halo(p *pattern, b *op.Buf) error {
	found, err := p.plan(c.Rank, b)
	if err != nil {
		return err
	}
	c.Neighbours = &found.neighbours
	widths := uint64(0) // see world.Describe
	for k, w := range p.halo.Widths {
		widths |= uint64(min(w.Before, 63))<<(12*k) | uint64(min(w.After, 63))<<(12*k+6)
	}
	c.Signature = arrive.Signature{uint64(c.Code) | uint64(c.DType)<<8, widths, found.hash}
	if c.Shadow != nil {
		return c.haloOnDevice(found.device, b)
	}
	return nil
}

// plan returns the plan for a tensor.
func (p *pattern) plan(rank int, b *op.Buf) (*plan, error) {
	shape, strides := b.Dims(), b.Steps()
	kept := p.plans.Load()
	if kept != nil {
		for _, k := range *kept {
			if k.dtype == b.DType && (k.device == nil) == b.OnHost() && slices.Equal(k.shape, shape) && slices.Equal(k.strides, strides) {
				return k, nil
			}
		}
	}
	if strides != nil && mem.Overlaps(b) {
		return nil, buffer.OverlapError(op.HaloExchange, 0)
	}
	k, err := p.newPlan(rank, b)
	if err != nil {
		return nil, err
	}
	list := []*plan{k}
	if kept != nil {
		list = append(list, (*kept)[:min(len(*kept), keptPlans-1)]...)
	}
	p.plans.Store(&list)
	return k, nil
}

func (p *pattern) newPlan(rank int, b *op.Buf) (*plan, error) {
	h := p.halo
	k := &plan{dtype: b.DType, shape: slices.Clone(b.Dims()), strides: slices.Clone(b.Steps())}
	out, in, err := h.Boxes(rank, k.shape)
	if err != nil {
		return nil, status.New(status.Argument, "%s: %v", op.HaloExchange, err)
	}
	steps := k.strides
	if steps == nil {
		steps = rowMajor(k.shape)
	}
	n := &k.neighbours
	n.Inner, n.Fit = h.Inner(k.shape), p.fit
	if err := k.arrange(rank, out, in, steps); err != nil {
		return nil, err
	}
	k.lending(h, rank, in, steps)
	if !b.OnHost() {
		if k.device, err = k.onDevice(h, rank, out, in, steps); err != nil {
			return nil, err
		}
	}
	sum := fnv.New64a()
	fmt.Fprint(sum, p.hash, k.shape[:len(k.shape)-len(h.Dims)])
	k.hash = sum.Sum64() | 1
	return k, nil
}

func rowMajor(shape []int64) []int64 {
	steps, step := make([]int64, len(shape)), int64(1)
	for k := len(shape) - 1; k >= 0; k-- {
		steps[k] = step
		step *= shape[k]
	}
	return steps
}

// arrange makes copies of the boxes that a rank gives and gets.
func (k *plan) arrange(rank int, out, in []grid.Box, steps []int64) error {
	n := &k.neighbours
	slices.SortStableFunc(out, func(x, y grid.Box) int { return x.Rank - y.Rank })
	slices.SortStableFunc(in, func(x, y grid.Box) int { return x.Rank - y.Rank })
	var made boxer
	var pack, self coll.Copy
	toSelf := slices.IndexFunc(in, func(b grid.Box) bool { return b.Rank == rank })
	for i := range out {
		from, layout := placed(&out[i], k.dtype, steps)
		if out[i].Rank == rank { // the boxes in both lists are in the same order
			to, border := placed(&in[toSelf], k.dtype, steps)
			toSelf++
			self.Boxes = append(self.Boxes, made.box(to, &border, from, &layout))
			continue
		}
		pack.Boxes = append(pack.Boxes, made.box(n.OutBytes, &op.Buf{Count: layout.Count, DType: k.dtype}, from, &layout))
		n.Out = extended(n.Out, out[i].Rank, layout.Bytes())
		n.OutBytes += layout.Bytes()
	}
	for i := range in {
		if in[i].Rank == rank {
			continue
		}
		to, layout := placed(&in[i], k.dtype, steps)
		n.In = extended(n.In, in[i].Rank, layout.Bytes())
		s := &n.In[len(n.In)-1]
		box := made.box(to, &layout, s.Bytes-layout.Bytes(), &op.Buf{Count: layout.Count, DType: k.dtype})
		s.Unpack.Boxes = append(s.Unpack.Boxes, box)
		n.InBytes += layout.Bytes()
	}
	n.Pack, n.Self = []coll.Copy{pack}, []coll.Copy{self}
	sideBySide(pack.Boxes)
	sideBySide(self.Boxes)
	for i := range n.In {
		sideBySide(n.In[i].Unpack.Boxes)
	}
	return made.err
}

// extended adds bytes to the last swap, or appends one with another rank.
func extended(swaps []coll.Swap, rank int, bytes int64) []coll.Swap {
	if len(swaps) == 0 || swaps[len(swaps)-1].Rank != rank {
		swaps = append(swaps, coll.Swap{Rank: rank})
	}
	swaps[len(swaps)-1].Bytes += bytes
	return swaps
}

// sideBySide brings boxes that are alike together.
func sideBySide(boxes []mem.Box) {
	for i := range boxes {
		next := i + 1
		for j := next; j < len(boxes); j++ {
			if boxes[i].Alike(&boxes[j]) {
				boxes[next], boxes[j] = boxes[j], boxes[next]
				next++
			}
		}
	}
}

// placed is a box of a tensor: where it begins, in bytes from the tensor's first element, and its layout.
func placed(b *grid.Box, dtype op.DType, steps []int64) (from int64, layout op.Buf) {
	layout = op.Buf{Count: 1, DType: dtype, NDim: int32(len(b.N)), Shape: unsafe.Pointer(&b.N[0]), Strides: unsafe.Pointer(&steps[0])}
	for k := range b.N {
		from += b.From[k] * steps[k]
		layout.Count *= b.N[k]
	}
	return from * int64(dtype.Size()), layout
}

// fit compares the inner lengths of the members of a halo.
func (p *pattern) fit(inner func(rank int) *[4]int64) error {
	for _, pair := range p.pairs {
		a, b := inner(pair.A), inner(pair.B)
		if !pair.Fit(a, b) {
			d := len(p.halo.Dims)
			return status.New(status.Mismatch, "%s: rank %d of the group has a tensor of %v without its border, and rank %d, next to it in dimension %d, one of %v: they may differ in that dimension only; nothing was sent",
				op.HaloExchange, pair.A, a[:d], pair.B, pair.Dim, b[:d]).WithRanks(pair.A, pair.B)
		}
	}
	return nil
}

// boxer makes boxes. What it makes after an error is of no use.
type boxer struct{ err error }

// box is mem.NewBox.
func (m *boxer) box(to int64, dst *op.Buf, from int64, src *op.Buf) mem.Box {
	b, err := mem.NewBox(to, dst, from, src)
	m.err = cmp.Or(m.err, err)
	return b
}

package group

import (
	"fmt"
	"hash/fnv"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/arrive"
	"github.com/paddlempi/paddlempi/gocore/buffer"
	"github.com/paddlempi/paddlempi/gocore/coll"
	"github.com/paddlempi/paddlempi/gocore/grid"
	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// patterns are the patterns of a group: who exchanges with whom. A call names one by its number. They stay as long as
// the group; equal ones have one number.
type patterns struct {
	mu     sync.Mutex
	list   atomic.Pointer[[]*pattern]
	number map[string]int32
}

// pattern is a halo on a grid, or a graph.
type pattern struct {
	halo  *grid.Halo
	pairs []grid.Pair
	hash  uint64 // of the halo
	// Of a graph: the members to which this one gives, and from which it gets. toOrder and fromOrder sort them.
	to, from           []int
	toOrder, fromOrder []int
	plans              atomic.Pointer[[]*plan] // of a halo, the newest first
}

// plan is what a halo makes of tensors of one dtype, shape and strides.
type plan struct {
	dtype          op.DType
	shape, strides []int64
	neighbours     coll.Neighbours
	hash           uint64
}

// keptPlans is how many plans a halo keeps.
const keptPlans = 8

// NewHalo returns the number of the pattern for a halo on a grid of all members.
func (g *Group) NewHalo(h *grid.Halo) (int32, error) {
	if h.Size() != g.Size {
		return 0, status.New(status.Argument, "a grid of %v has %d ranks, the group has %d", h.Dims, h.Size(), g.Size)
	}
	return g.patterns.add(fmt.Sprint("halo", h.Dims, h.Periodic, h.Widths), func() *pattern {
		p := &pattern{halo: h, pairs: h.Pairs()}
		sum := fnv.New64a()
		fmt.Fprint(sum, h.Dims, h.Periodic, h.Widths)
		p.hash = sum.Sum64()
		return p
	}), nil
}

// NewGraph returns the number of the pattern of a graph: this member gives to some members, and gets from some.
func (g *Group) NewGraph(to, from []int) (int32, error) {
	for _, r := range slices.Concat(to, from) {
		if r < 0 || r >= g.Size {
			return 0, status.New(status.Argument, "rank %d is not in the group, which has ranks 0 to %d", r, g.Size-1)
		}
	}
	return g.patterns.add(fmt.Sprint("graph", to, from), func() *pattern {
		return &pattern{to: to, from: from, toOrder: inOrder(to), fromOrder: inOrder(from)}
	}), nil
}

// inOrder returns the indexes of ranks, by rank. Equal ones keep their order.
func inOrder(ranks []int) []int {
	order := make([]int, len(ranks))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(x, y int) int { return ranks[x] - ranks[y] })
	return order
}

func (p *patterns) add(key string, make func() *pattern) int32 {
	p.mu.Lock()
	defer p.mu.Unlock()
	if number, ok := p.number[key]; ok {
		return number
	}
	var list []*pattern
	if old := p.list.Load(); old != nil {
		list = slices.Clone(*old)
	}
	list = append(list, make())
	p.list.Store(&list)
	if p.number == nil {
		p.number = map[string]int32{}
	}
	p.number[key] = int32(len(list) - 1)
	return int32(len(list) - 1)
}

func (p *patterns) get(number int32) *pattern {
	list := p.list.Load()
	if list == nil || number < 0 || int(number) >= len(*list) {
		return nil
	}
	return (*list)[number]
}

// checkNeighbours is check for an exchange with neighbours.
func (c *collective) checkNeighbours(d *op.Desc, sends, recvs []op.Buf) error {
	g, a := c.g, &c.args
	p := g.patterns.get(d.Peer)
	if p == nil || (p.halo != nil) != (d.Code == op.HaloExchange) {
		return status.New(status.Argument, "%s: peer=%d is not the number of such a pattern of the group", d.Code, d.Peer)
	}
	for i := range sends {
		if err := c.checkNeighbourBuffer("send", i, &sends[i]); err != nil {
			return err
		}
	}
	for i := range recvs {
		if err := c.checkNeighbourBuffer("recv", i, &recvs[i]); err != nil {
			return err
		}
	}
	var err error
	if p.halo != nil {
		err = c.checkHalo(p, &recvs[0])
	} else {
		err = c.checkGraph(p, sends, recvs)
	}
	if err != nil {
		return err
	}
	c.flags |= coll.Even
	if g.notes == nil {
		return nil
	}
	c.flags, err = c.offer.MakeBlock(a, c.flags, g.blocks)
	return err
}

func (c *collective) checkNeighbourBuffer(side string, i int, b *op.Buf) error {
	a := &c.args
	if err := buffer.Check(a.Code, side, i, b); err != nil {
		return err
	}
	if !b.OnHost() {
		return status.New(status.Unsupported, "%s: %s tensor %d is in the memory of a device; this operation takes tensors in host memory: copy it to the CPU first", a.Code, side, i)
	}
	if a.DType == 0 {
		a.DType = b.DType
	} else if a.DType != b.DType {
		return status.New(status.Type, "%s: %s tensor %d is %s, another is %s; all tensors of a call have one dtype", a.Code, side, i, b.DType, a.DType)
	}
	part := coll.Part{Data: b.Data, Count: b.Count}
	if side == "send" {
		a.Send = append(a.Send, part)
	} else {
		a.Recv = append(a.Recv, part)
	}
	return nil
}

// checkHalo finds the plan for a tensor, and makes the signature.
func (c *collective) checkHalo(p *pattern, b *op.Buf) error {
	found, err := p.plan(c.g.Rank, b)
	if err != nil {
		return err
	}
	c.args.Neighbours = &found.neighbours
	word := uint64(c.args.Code) | uint64(c.args.DType)<<8
	for k, w := range p.halo.Widths {
		word |= uint64(min(w.Before, 63))<<(16+12*k) | uint64(min(w.After, 63))<<(22+12*k)
	}
	c.sig = arrive.Signature{word, 0, found.hash}
	return nil
}

// plan returns the plan for a tensor.
func (p *pattern) plan(rank int, b *op.Buf) (*plan, error) {
	shape, strides := b.Dims(), b.Steps()
	kept := p.plans.Load()
	if kept != nil {
		for _, k := range *kept {
			if k.dtype == b.DType && slices.Equal(k.shape, shape) && slices.Equal(k.strides, strides) {
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
	n.Inner = h.Inner(k.shape)
	n.Out, n.OutBytes = swapsOf(out, b.DType, steps)
	n.In, n.InBytes = swapsOf(in, b.DType, steps)
	n.Fit = p.fit
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

// swapsOf joins the boxes of each rank in one swap.
func swapsOf(boxes []grid.Box, dtype op.DType, steps []int64) (swaps []coll.Swap, bytes int64) {
	slices.SortStableFunc(boxes, func(x, y grid.Box) int { return x.Rank - y.Rank })
	for _, b := range boxes {
		if len(swaps) == 0 || swaps[len(swaps)-1].Rank != b.Rank {
			swaps = append(swaps, coll.Swap{Rank: b.Rank})
		}
		s := &swaps[len(swaps)-1]
		from, count := int64(0), int64(1)
		for k := range b.N {
			from += b.From[k] * steps[k]
			count *= b.N[k]
		}
		layout := op.Buf{Count: count, DType: dtype, NDim: int32(len(b.N)), Shape: unsafe.Pointer(&b.N[0]), Strides: unsafe.Pointer(&steps[0])}
		s.Boxes = append(s.Boxes, coll.Box{From: from * int64(dtype.Size()), Layout: layout})
		s.Bytes += layout.Bytes()
		bytes += layout.Bytes()
	}
	return swaps, bytes
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

// checkGraph finds out what goes where, and makes the signature. The lengths are compared later, and the dtype: a member
// without neighbours has none.
func (c *collective) checkGraph(p *pattern, sends, recvs []op.Buf) error {
	if len(sends) != len(p.to) {
		return status.New(status.Argument, "%s: got %d send tensors, this rank gives to %d ranks", c.args.Code, len(sends), len(p.to))
	}
	if len(recvs) != len(p.from) {
		return status.New(status.Argument, "%s: got %d recv tensors, this rank gets from %d ranks", c.args.Code, len(recvs), len(p.from))
	}
	for i := range recvs {
		if mem.Overlaps(&recvs[i]) {
			return buffer.OverlapError(c.args.Code, i)
		}
	}
	n := &coll.Neighbours{}
	n.Out, n.OutBytes = swapsWith(p.to, p.toOrder, sends)
	n.In, n.InBytes = swapsWith(p.from, p.fromOrder, recvs)
	c.args.Neighbours = n
	if !slices.EqualFunc(toSelf(n.Out, c.g.Rank), toSelf(n.In, c.g.Rank), func(x, y int64) bool { return x == y }) {
		return status.New(status.Argument, "%s: this rank gives itself tensors of %v bytes, and gets from itself %v", c.args.Code, toSelf(n.Out, c.g.Rank), toSelf(n.In, c.g.Rank))
	}
	c.sig = arrive.Signature{uint64(c.args.Code), 0, 0}
	return nil
}

// swapsWith makes a swap of each tensor.
func swapsWith(ranks, order []int, bufs []op.Buf) (swaps []coll.Swap, bytes int64) {
	swaps = make([]coll.Swap, 0, len(order))
	for _, i := range order {
		b := &bufs[i]
		layout := op.Buf{Count: b.Count, DType: b.DType}
		if !b.Contiguous() {
			layout = *buffer.Layout(b)
			layout.Data = nil
		}
		swaps = append(swaps, coll.Swap{Rank: ranks[i], Bytes: b.Bytes(), Boxes: []coll.Box{{Of: i, Layout: layout}}})
		bytes += b.Bytes()
	}
	return swaps, bytes
}

func toSelf(swaps []coll.Swap, rank int) (bytes []int64) {
	for i := range swaps {
		if swaps[i].Rank == rank {
			bytes = append(bytes, swaps[i].Bytes)
		}
	}
	return bytes
}

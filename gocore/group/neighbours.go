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
	"github.com/paddlempi/paddlempi/gocore/cuda"
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
	device         *deviceHalo // of tensors in device memory
	hash           uint64
}

// keptPlans is how many plans a halo keeps.
const keptPlans = 8

// NewHalo returns the number of the pattern for a halo on a grid of all members.
func (g *Group) NewHalo(h *grid.Halo) (int32, error) {
	if h.Size() != g.Size {
		return 0, status.New(status.Argument, "a grid of %v has %d ranks, the group has %d", h.Dims, h.Size(), g.Size)
	}
	key := fmt.Sprint("halo", h.Dims, h.Periodic, h.Widths)
	return g.patterns.add(key, func() *pattern {
		sum := fnv.New64a()
		sum.Write([]byte(key))
		return &pattern{halo: h, pairs: h.Pairs(), hash: sum.Sum64()}
	}), nil
}

// NewGraph returns the number of the pattern of a graph: this member gives to some members, and gets from some.
func (g *Group) NewGraph(to, from []int) (int32, error) {
	for _, r := range slices.Concat(to, from) {
		if r < 0 || r >= g.Size {
			return 0, status.New(status.Argument, "rank %d is not in the group, which has ranks 0 to %d", r, g.Size-1)
		}
	}
	if count(to, g.Rank) != count(from, g.Rank) {
		return 0, status.New(status.Argument, "rank %d of the group gives to itself %d times, and gets from itself %d times", g.Rank, count(to, g.Rank), count(from, g.Rank))
	}
	return g.patterns.add(fmt.Sprint("graph", to, from), func() *pattern {
		return &pattern{to: to, from: from, toOrder: inOrder(to), fromOrder: inOrder(from)}
	}), nil
}

func count(ranks []int, rank int) (n int) {
	for _, r := range ranks {
		if r == rank {
			n++
		}
	}
	return n
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
	c.stream = cuda.Stream(d.Stream)
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
	if g.payloads == nil {
		return nil
	}
	c.flags, err = c.offer.MakeBlock(a, c.flags, g.blocks, g.lends && !c.async)
	return err
}

func (c *collective) checkNeighbourBuffer(side string, i int, b *op.Buf) error {
	a := &c.args
	if err := buffer.Check(a.Code, side, i, b); err != nil {
		return err
	}
	if !b.OnHost() {
		if err := c.locateNeighbour(side, i, b); err != nil {
			return err
		}
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
	widths := uint64(0) // see world.Describe
	for k, w := range p.halo.Widths {
		widths |= uint64(min(w.Before, 63))<<(12*k) | uint64(min(w.After, 63))<<(12*k+6)
	}
	c.sig = arrive.Signature{uint64(c.args.Code) | uint64(c.args.DType)<<8, widths, found.hash}
	if c.shadow != nil {
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
	var pack, self coll.Copy
	toSelf := slices.IndexFunc(in, func(b grid.Box) bool { return b.Rank == rank })
	for i := range out {
		from, layout := placed(&out[i], k.dtype, steps)
		if out[i].Rank == rank { // the boxes in both lists are in the same order
			to, border := placed(&in[toSelf], k.dtype, steps)
			toSelf++
			box, err := mem.NewBox(to, &border, from, &layout)
			if err != nil {
				return err
			}
			self.Boxes = append(self.Boxes, box)
			continue
		}
		box, err := mem.NewBox(n.OutBytes, &op.Buf{Count: layout.Count, DType: k.dtype}, from, &layout)
		if err != nil {
			return err
		}
		pack.Boxes = append(pack.Boxes, box)
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
		box, err := mem.NewBox(to, &layout, s.Bytes-layout.Bytes(), &op.Buf{Count: layout.Count, DType: k.dtype})
		if err != nil {
			return err
		}
		s.Unpack.Boxes = append(s.Unpack.Boxes, box)
		n.InBytes += layout.Bytes()
	}
	n.Pack, n.Self = []coll.Copy{pack}, []coll.Copy{self}
	sideBySide(pack.Boxes)
	sideBySide(self.Boxes)
	for i := range n.In {
		sideBySide(n.In[i].Unpack.Boxes)
	}
	return nil
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
	if c.shadow != nil {
		onHost, err := c.graphOnDevice(sends, recvs)
		if err != nil {
			return err
		}
		sends, recvs = onHost[0], onHost[1]
	}
	n, err := p.arrange(c.g.Rank, sends, recvs)
	if err != nil {
		return err
	}
	c.args.Neighbours = n
	c.sig = arrive.Signature{uint64(c.args.Code), 0, 0}
	return nil
}

// arrange makes swaps of the tensors of a call.
func (p *pattern) arrange(rank int, sends, recvs []op.Buf) (*coll.Neighbours, error) {
	n := &coll.Neighbours{}
	var toSelf []int
	for _, i := range p.toOrder {
		b := &sends[i]
		if p.to[i] == rank {
			toSelf = append(toSelf, i)
			continue
		}
		box, err := mem.NewBox(n.OutBytes, &op.Buf{Count: b.Count, DType: b.DType}, 0, b)
		if err != nil {
			return nil, err
		}
		n.Out = append(n.Out, coll.Swap{Rank: p.to[i], Bytes: b.Bytes()})
		n.Pack = append(n.Pack, coll.Copy{From: i, Boxes: []mem.Box{box}})
		n.OutBytes += b.Bytes()
	}
	for _, i := range p.fromOrder {
		b := &recvs[i]
		if p.from[i] == rank {
			from := toSelf[0] // NewGraph has counted them
			toSelf = toSelf[1:]
			box, err := selfBox(b, &sends[from])
			if err != nil {
				return nil, err
			}
			n.Self = append(n.Self, coll.Copy{From: from, To: i, Boxes: []mem.Box{box}})
			continue
		}
		box, err := mem.NewBox(0, b, 0, &op.Buf{Count: b.Count, DType: b.DType})
		if err != nil {
			return nil, err
		}
		n.In = append(n.In, coll.Swap{Rank: p.from[i], Bytes: b.Bytes(), Unpack: coll.Copy{To: i, Boxes: []mem.Box{box}}})
		n.InBytes += b.Bytes()
	}
	return n, nil
}

// selfBox is the copy of a tensor that a rank gives to itself.
func selfBox(to, from *op.Buf) (mem.Box, error) {
	if to.Count != from.Count {
		return mem.Box{}, status.New(status.Argument, "%s: this rank gives itself a tensor of %d elements, and expects one of %d", op.NeighborAllToAll, from.Count, to.Count)
	}
	if !to.Contiguous() && !from.Contiguous() && !slices.Equal(to.Dims(), from.Dims()) {
		return mem.Box{}, status.New(status.Argument, "%s: this rank gives itself a tensor of shape %v and gets it in one of shape %v, neither of which is contiguous: make one contiguous, or give both the same shape",
			op.NeighborAllToAll, from.Dims(), to.Dims())
	}
	return mem.NewBox(0, to, 0, from)
}

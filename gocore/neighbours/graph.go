package neighbours

import (
	"slices"

	"github.com/paddlempi/paddlempi/gocore/arrive"
	"github.com/paddlempi/paddlempi/gocore/buffer"
	"github.com/paddlempi/paddlempi/gocore/coll"
	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// graph finds out what goes where, and makes the signature. The lengths are compared later, and the dtype: a member
// without neighbours has none.
func (c *Call) graph(p *pattern, sends, recvs []op.Buf) error {
	if len(sends) != len(p.to) {
		return status.New(status.Argument, "%s: got %d send tensors, this rank gives to %d ranks", c.Code, len(sends), len(p.to))
	}
	if len(recvs) != len(p.from) {
		return status.New(status.Argument, "%s: got %d recv tensors, this rank gets from %d ranks", c.Code, len(recvs), len(p.from))
	}
	for i := range recvs {
		if mem.Overlaps(&recvs[i]) {
			return buffer.OverlapError(c.Code, i)
		}
	}
	if c.Shadow != nil {
		onHost, err := c.graphOnDevice(sends, recvs)
		if err != nil {
			return err
		}
		sends, recvs = onHost[0], onHost[1]
	}
	c.Signature = arrive.Signature{uint64(c.Code), 0, 0}
	var err error
	c.Neighbours, err = p.arrange(c.Rank, sends, recvs)
	return err
}

// arrange makes swaps of the tensors of a call.
func (p *pattern) arrange(rank int, sends, recvs []op.Buf) (*coll.Neighbours, error) {
	n := &coll.Neighbours{}
	var made boxer
	var toSelf []int
	for _, i := range p.toOrder {
		b := &sends[i]
		if p.to[i] == rank {
			toSelf = append(toSelf, i)
			continue
		}
		box := made.box(n.OutBytes, &op.Buf{Count: b.Count, DType: b.DType}, 0, b)
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
		box := made.box(0, b, 0, &op.Buf{Count: b.Count, DType: b.DType})
		n.In = append(n.In, coll.Swap{Rank: p.from[i], Bytes: b.Bytes(), Unpack: coll.Copy{To: i, Boxes: []mem.Box{box}}})
		n.InBytes += b.Bytes()
	}
	return n, made.err
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

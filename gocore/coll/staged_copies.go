package coll

import (
	"slices"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/cuda"
	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// extent is the elements [from, from+count) of a part, in row-major order.
type extent struct {
	part        *Part
	from, count int64
}

// row is one rank's share of a buffer: one extent after the other.
type row []extent

// unevenShares tells whether the ranks' shares differ in length.
func unevenShares(s *Sig) bool { return s.Trait().Shares != op.NoShares && !evenShares(s) }

// rows describes a side. perRank says that the side has a share for every rank.
func rows(a *Args, parts []Part, perRank bool) (list []row) {
	shares := 1 // in a part
	if perRank && len(parts) == 1 {
		shares = a.Size
	}
	for i := range parts {
		n := parts[i].Count / int64(shares)
		for share := range shares {
			list = append(list, row{{&parts[i], int64(share) * n, n}})
		}
	}
	return list
}

func oneRow(parts []Part) []row {
	if len(parts) == 0 {
		return nil
	}
	var r row
	for i := range parts {
		r = append(r, extent{&parts[i], 0, parts[i].Count})
	}
	return []row{r}
}

// len returns the elements of a row.
func (r row) len() (n int64) {
	for i := range r {
		n += r[i].count
	}
	return n
}

// within returns how many elements [lo, hi) the row has.
func (r row) within(lo, hi int64) int64 { return max(0, min(hi, r.len())-lo) }

// side is what a rank sends, or what it receives: a row for each share.
type side struct {
	rows []row
	// bare says that the host's algorithm takes the tensor itself, which needs no blocks.
	bare bool
}

// isBare tells whether a side is one tensor in host memory whose pieces are contiguous.
func (sd *side) isBare() bool {
	if len(sd.rows) != 1 || len(sd.rows[0]) != 1 {
		return false
	}
	part := sd.rows[0][0].part
	return !part.OnDevice && part.Layout == nil
}

// within returns how many elements [lo, hi) all rows have together.
func (sd *side) within(lo, hi int64) (n int64) {
	for _, r := range sd.rows {
		n += r.within(lo, hi)
	}
	return n
}

// alike tells whether every row has all the elements [lo, hi). A single row is this rank's share.
func (sd *side) alike(lo, hi int64) bool {
	return len(sd.rows) <= 1 || sd.within(lo, hi) == (hi-lo)*int64(len(sd.rows))
}

// lengths returns a part of the length of each row.
func (sd *side) lengths() []Part {
	parts := make([]Part, len(sd.rows))
	for i, r := range sd.rows {
		parts[i].Count = r.len()
	}
	return parts
}

func (sd *side) onDevice() bool {
	for _, r := range sd.rows {
		for _, g := range r {
			if g.part.OnDevice {
				return true
			}
		}
	}
	return false
}

// partsOf returns elements [lo, hi) of every row as the host's algorithm takes them: where they lie in the block b, or in
// the tensor itself. apart: each row is a part.
func (s *stager) partsOf(b *mem.Pinned, sd *side, lo, hi int64, apart bool) []Part {
	a := s.args
	switch {
	case len(sd.rows) == 0:
		return nil
	case sd.bare:
		g := sd.rows[0][0]
		return []Part{{Data: a.at(g.part.Data, g.from+min(lo, g.count)), Count: sd.within(lo, hi)}}
	case !apart:
		return []Part{{Data: b.Data, Count: sd.within(lo, hi)}}
	}
	at, parts := b.Data, make([]Part, len(sd.rows))
	for i, r := range sd.rows {
		parts[i] = Part{Data: at, Count: r.within(lo, hi)}
		at = a.at(at, parts[i].Count)
	}
	return parts
}

// separate tells whether no result is written over memory that is still to be sent. What a rank sends to itself, or sends
// to all, may lie where its own result goes.
func (s *stager) separate() bool {
	a := s.args
	strided := func(parts []Part) bool {
		return slices.ContainsFunc(parts, func(p Part) bool { return p.Layout != nil })
	}
	if !strided(a.Send) && !strided(a.Recv) {
		return separate(a)
	}
	sends, recvs := asBufs(a, a.Send, a.Trait().Send.PerRank()), asBufs(a, a.Recv, a.Trait().Recv.PerRank())
	return separateSides(a, sends, recvs, func(x, y *op.Buf) (overlap, same bool) {
		return !mem.Apart(x, y), sameElements(x, y)
	})
}

// asBufs returns the parts of a side as tensors, one for each rank if perRank is set and the shares are rows of a tensor.
func asBufs(a *Args, parts []Part, perRank bool) (list []op.Buf) {
	for i := range parts {
		b := op.Buf{Data: parts[i].Data, Count: parts[i].Count, DType: a.DType}
		if parts[i].Layout != nil {
			b = *parts[i].Layout
		}
		if len(parts) > 1 || !perRank || b.Count == 0 {
			list = append(list, b)
			continue
		}
		n := int64(a.Size)
		if b.Contiguous() {
			for r := range n {
				list = append(list, op.Buf{Data: a.at(b.Data, r*(b.Count/n)), Count: b.Count / n, DType: a.DType})
			}
			continue
		}
		if b.Dims()[0]%n != 0 {
			return append(list, b)
		}
		rows := b.Dims()[0] / n
		for r := range n {
			view, dims := b, slices.Concat(b.Dims(), b.Steps())
			view.Shape, view.Strides = unsafe.Pointer(&dims[0]), unsafe.Pointer(&dims[b.NDim])
			view.Data, view.Count = a.at(b.Data, r*rows*b.Steps()[0]), b.Count/n
			view.Dims()[0] = rows
			list = append(list, view)
		}
	}
	return list
}

// sameElements tells whether two tensors are the same elements in the same order.
func sameElements(x, y *op.Buf) bool {
	switch {
	case x.Data != y.Data || x.Count != y.Count || x.Contiguous() != y.Contiguous():
		return false
	case x.Contiguous():
		return true
	}
	return slices.Equal(x.Dims(), y.Dims()) && slices.Equal(x.Steps(), y.Steps())
}

// copyRows copies elements [lo, hi) of every row into b, or out of b if out is set. In b they lie
// row by row.
func (s *stager) copyRows(b *mem.Pinned, sd *side, lo, hi int64, out bool) error {
	if len(sd.rows) == 0 || sd.bare {
		return nil
	}
	at := b.Data
	for _, r := range sd.rows {
		base := int64(0)
		for _, g := range r {
			from, to := max(lo-base, 0), min(hi-base, g.count)
			base += g.count
			if from >= to {
				continue
			}
			if err := s.move(g.part, g.from+from, to-from, at, b.Locked, out); err != nil {
				return err
			}
			at = s.args.at(at, to-from)
		}
	}
	return nil
}

// move copies count elements of a part, from element from on, to the address at, or back if out is
// set.
func (s *stager) move(part *Part, from, count int64, at unsafe.Pointer, locked, out bool) error {
	a, d := s.args, s.device
	switch {
	case part.Layout != nil && !part.OnDevice:
		return mem.CopyRange(at, part.Layout, from*a.elem(), count*a.elem(), out)
	case part.Layout != nil && !locked:
		return status.New(status.NoMemory, "%s: a tensor in device memory that is not contiguous needs %d bytes of pinned host memory, and the driver gives none: free some, or pass a contiguous copy", a.Code, count*a.elem())
	case part.Layout != nil:
		return mem.MoveStrided(d, at, part.Layout, from, count, out, s.stream(out))
	}
	dst, src := at, a.at(part.Data, from)
	if out {
		dst, src = src, dst
	}
	if part.OnDevice {
		return d.Copy(dst, src, count*a.elem(), s.stream(out))
	}
	mem.Copy(dst, src, count*a.elem())
	return nil
}

// stream returns the stream for copies out of the blocks, which go into the device, or for copies
// into the blocks, which go out of the device.
func (s *stager) stream(out bool) cuda.Stream {
	switch d := s.device; {
	case d == nil:
		return 0
	case out:
		return d.In
	default:
		return d.Out
	}
}

// block takes a block. If this rank has no tensor on a device, it is scratch memory of the program. If the device has
// failed, it is pageable.
func (s *stager) block(bytes int64) (b *mem.Pinned, err error) {
	if s.device == nil {
		data, err := s.p.Alloc(bytes)
		return &mem.Pinned{Data: data, Bytes: bytes}, err
	}
	if s.failed == nil {
		if b, err = mem.GetPinned(s.device, bytes); err == nil {
			return b, nil
		}
		s.failed = err
	}
	data, err := mem.Alloc(bytes)
	return &mem.Pinned{Data: data, Bytes: bytes}, err
}

// mark makes e stand for the work that is queued on a stream now.
func (s *stager) mark(e *cuda.Event, stream cuda.Stream) error {
	d := s.device
	if d == nil {
		return nil
	}
	return d.Mark(e, stream)
}

// await appends a wait for the event that is in *e when the wait begins. If *e is 0 then, the wait
// ends at once.
func (s *stager) await(e *cuda.Event) {
	if s.device == nil {
		return
	}
	s.p.Until(func() (bool, error) {
		if *e == 0 || s.failed != nil {
			return true, nil
		}
		done, err := s.device.Query(*e)
		s.failed = err
		return done || err != nil, nil
	})
}

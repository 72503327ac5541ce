package coll

import (
	"slices"
	"sort"
	"sync/atomic"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/arrive"
	"github.com/paddlempi/paddlempi/gocore/coll/shm"
	"github.com/paddlempi/paddlempi/gocore/heap"
	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/op"
)

// The algorithm "mapped" needs to know where the tensors of all ranks are. Every rank tells it in its
// arrival slot, as a list of ranges of its heap: first its input, then its result. A side that is one
// range is told as one, else there is a range for each tensor. A list that is too long for the slot
// lies in an index in the heap, and the slot has the place of the index.
//
// An index is freed when the call is over for its rank, like the tensors. A rank that comes later may
// read something else there. It finds no chunk to claim any more, so what it reads does not matter.

// heapRange is a range of a heap. It has the memory layout that ranks read in each other's slots.
type heapRange struct {
	heap.Location
	Count int64 // elements
}

// rangesHead begins a list of ranges.
type rangesHead struct {
	in, out int32 // how many ranges each side has; in is inPlace if the input is the result's memory
}

const (
	inPlace    = -1
	headBytes  = int64(unsafe.Sizeof(rangesHead{}))
	rangeBytes = int64(unsafe.Sizeof(heapRange{}))
	// indexBytes is the length of a payload that has the place of an index. No list has that length.
	indexBytes = headBytes + int64(unsafe.Sizeof(heap.Location{}))
)

// Places has where this rank's tensors are in its heap. The zero value holds nothing.
type Places struct {
	told struct { // what lies in the slot, unless that is in block
		rangesHead
		few [2]heapRange
	}
	bytes int64
	block unsafe.Pointer // a longer list for the slot
	index unsafe.Pointer // a list in the heap
	heap  *heap.Heap     // of the index
}

// Place finds this rank's tensors in its heap. ok is false if the algorithm "mapped" cannot serve
// the call: a tensor is not in the heap, a result lies where other ranks may still read, or there is
// no room for the list. If ok is true, Free must follow.
func Place(a *Args, own *heap.Heap) (p Places, ok bool) {
	if !shm.Serves(a.Code) || a.Size > shm.MaxRanks {
		return p, false
	}
	in, out, ok := mappedSides(a)
	if !ok {
		return p, false
	}
	p.told.in, p.told.out = int32(len(in)), int32(len(out))
	if len(in) > 0 && len(a.Send) == 0 && a.WritesRecv() {
		p.told.in, in = inPlace, nil
	}
	list := p.told.few[:0]
	for k, side := range [2][]Part{in, out} {
		for i := range side {
			at := heapRange{Count: side[i].Count}
			if at.Count > 0 {
				if at.Location, ok = own.Find(side[i].Data, at.Count*sideElem(a, shm.Side(k))); !ok {
					return Places{}, false
				}
			}
			list = append(list, at)
		}
	}
	if !separate(a) || !disjoint(a, out) {
		return Places{}, false
	}
	p.bytes = headBytes + int64(len(list))*rangeBytes
	if len(list) <= len(p.told.few) {
		return p, true
	}
	if !p.tellMore(a, list, own) {
		return Places{}, false
	}
	return p, true
}

// tellMore puts a list of more than two ranges where it belongs. It returns false if there is no room.
func (p *Places) tellMore(a *Args, list []heapRange, own *heap.Heap) bool {
	var err error
	var to unsafe.Pointer
	switch {
	case p.bytes <= arrive.PayloadRoom(a.Size):
		if p.block, err = mem.Alloc(p.bytes); err != nil {
			return false
		}
		*(*rangesHead)(p.block) = p.told.rangesHead
		to = unsafe.Add(p.block, headBytes)
	case a.Trait().Shares == op.Pairwise:
		// The lengths are part of the list, and each rank must know those of all ranks, also one that
		// cannot map an index.
		return false
	default:
		n := p.bytes - headBytes
		if p.index, err = own.Alloc(n); err != nil {
			return false
		}
		p.heap, p.bytes, to = own, indexBytes, p.index
		p.told.few = [2]heapRange{}
		p.told.few[0].Location, _ = own.Find(p.index, n)
	}
	copy(unsafe.Slice((*heapRange)(to), len(list)), list)
	return true
}

// Payload returns what this rank tells in its slot. It points into p.
func (p *Places) Payload() arrive.Payload {
	if p.block != nil {
		return arrive.Payload{Data: p.block, Bytes: p.bytes}
	}
	return arrive.Payload{Data: unsafe.Pointer(&p.told), Bytes: p.bytes}
}

// Free gives back the memory of a list. The operation is over for this rank, or was not announced.
func (p *Places) Free() {
	if p.block != nil {
		mem.Free(p.block)
	}
	if p.index != nil {
		_ = p.heap.Free(p.index)
	}
	p.block, p.index = nil, nil
}

// mappedSides returns the memory of this rank that is read, and that is written. Each side has no
// parts, one, or as many as the caller's. ok is false if the operation works in place among shares.
func mappedSides(a *Args) (in, out []Part, ok bool) {
	if Gives(a) {
		if inPlaceAmongShares(a) {
			return nil, nil, false
		}
		in = ranges(a, Input(a))
	}
	if a.WritesRecv() {
		out = ranges(a, a.Recv)
	}
	return in, out, true
}

// ranges returns a side as one part if it is one range of memory, and as none if it is empty. In an
// all_to_all one part stands for shares of one length.
func ranges(a *Args, parts []Part) []Part {
	switch {
	case totalCount(parts) == 0:
		return nil
	case len(parts) == 1:
		return parts
	case a.Trait().Shares == op.Pairwise && slices.ContainsFunc(parts, func(p Part) bool { return p.Count != parts[0].Count }):
		return parts
	}
	if whole, ok := joined(a, parts); ok {
		return []Part{whole}
	}
	return parts
}

// disjoint tells whether no two parts share memory.
func disjoint(a *Args, parts []Part) bool {
	inOrder := func(parts []Part) bool {
		end := uintptr(0)
		for i := range parts {
			if parts[i].Count == 0 {
				continue
			}
			if uintptr(parts[i].Data) < end {
				return false
			}
			end = uintptr(a.at(parts[i].Data, parts[i].Count))
		}
		return true
	}
	if inOrder(parts) { // the usual case
		return true
	}
	sorted := slices.Clone(parts)
	sort.Slice(sorted, func(x, y int) bool { return uintptr(sorted[x].Data) < uintptr(sorted[y].Data) })
	return inOrder(sorted)
}

// told is what another rank has told of its tensors. The ranges of a payload lie in shared memory. What they
// say comes from another process, so nothing there is trusted.
type told struct {
	in, out []heapRange
	blind   bool // this rank cannot map the index
	indexed bool
}

// once reads a range that may lie in shared memory, where it may change at any time: what is checked is
// what is used. placeOf is the same for a location.
func (h *heapRange) once() heapRange {
	return heapRange{placeOf(&h.Location), atomic.LoadInt64(&h.Count)}
}

func placeOf(l *heap.Location) heap.Location {
	return heap.Location{Offset: atomic.LoadInt64(&l.Offset), Generation: atomic.LoadUint64(&l.Generation)}
}

// Bystander prepares the operation of a call whose tensors this rank cannot work in (shm.NewBystander).
func (a *Args) Bystander() (*shm.Op, error) {
	c := shm.Collective{Seq: a.Seq, Rank: a.Rank, Size: a.Size, YieldEvery: a.Node.Slots.Yields()}
	c.Words, c.Chunks = a.Node.Slots.Chunks(a.Seq)
	return shm.NewBystander(&c)
}

// sharedOp prepares the operation, once all ranks have arrived. If this rank cannot map a tensor of
// another rank, it leaves the work to the others.
func sharedOp(a *Args) (*shm.Op, error) {
	in, out, _ := mappedSides(a)
	parts, blind := len(in)+len(out), false
	var room [8]told
	all := room[:]
	if a.Size > len(room) {
		all = make([]told, a.Size)
	}
	all = all[:a.Size]
	for r := range all {
		if r == a.Rank {
			continue
		}
		var ok bool
		if all[r], ok = readPayload(a, r); !ok {
			return nil, a.notAsAgreed(r)
		}
		parts += len(all[r].in) + len(all[r].out)
		blind = blind || all[r].blind
	}
	slots := a.Node.Slots
	c := shm.Collective{Seq: a.Seq, Code: a.Code, DType: a.DType, Reduce: a.Reduce, Scale: a.Scale, Count: a.Count,
		Rank: a.Rank, Size: a.Size, Root: a.Root, Parts: parts, YieldEvery: slots.Yields()}
	c.Words, c.Chunks = slots.Chunks(a.Seq)
	if a.Partial {
		c.Out = op.Float32
	}
	switch {
	case a.Agreed&Even != 0:
	case a.Trait().Shares == op.Pairwise:
		all[a.Rank] = told{in: counts(in), out: counts(out)}
		if err := differingPairs(a, &c, all); err != nil {
			return nil, err
		}
	default:
		c.Shares = make([]int64, a.Size)
		for r := range c.Shares {
			c.Shares[r] = a.shareCount(r)
		}
	}
	o, err := shm.New(&c)
	if err != nil {
		return nil, err
	}
	for r := 0; r < len(all) && !blind; r++ {
		if r == a.Rank {
			for i := range in {
				o.Add(shm.In, r, in[i].Data, in[i].Count)
			}
			for i := range out {
				o.Add(shm.Out, r, out[i].Data, out[i].Count)
			}
			continue
		}
		mapped, ok := addSides(a, &c, o, r, &all[r])
		switch {
		case ok:
			blind = !mapped
		case all[r].indexed: // the index is not there any more
			blind = true
		default:
			o.Free()
			return nil, a.notAsAgreed(r)
		}
	}
	if blind {
		o.CannotMap()
	}
	return o, nil
}

// readPayload returns what another rank has told. ok is false if its slot cannot hold the tensors of such
// a call.
func readPayload(a *Args, r int) (s told, ok bool) {
	t := a.Trait()
	payload, bytes := a.Node.Slots.Payload(a.Seq, r)
	if bytes < headBytes {
		return s, false
	}
	sides := atomic.LoadUint64((*uint64)(payload)) // read once: another process may change it
	head := *(*rangesHead)(unsafe.Pointer(&sides))
	gives, gets := t.Gives.Includes(a.Root, r), t.WritesRecv(a.Root, r)
	same := head.in == inPlace && gives && gets && t.Shares == op.NoShares
	if same {
		head.in = 0
	}
	if !hasSide(a, int(head.in), gives, t.Send.PerRank()) || !hasSide(a, int(head.out), gets, t.Recv.PerRank()) {
		return s, false
	}
	n := int64(head.in) + int64(head.out)
	list := unsafe.Add(payload, headBytes)
	var both []heapRange
	switch {
	case bytes == headBytes+n*rangeBytes:
		both = unsafe.Slice((*heapRange)(list), n)
	case bytes == indexBytes && n > 0:
		s.indexed = true
		both = make([]heapRange, n)
		if err := a.Node.Heaps.Read(r, placeOf((*heap.Location)(list)), unsafe.Slice((*byte)(unsafe.Pointer(&both[0])), n*rangeBytes)); err != nil {
			s.blind = true
			return s, true
		}
	default:
		return s, false
	}
	s.in, s.out = both[:head.in], both[head.in:]
	if same {
		s.in = s.out
	}
	return s, true
}

// hasSide tells whether a side of another rank can have that many ranges.
func hasSide(a *Args, ranges int, has, perRank bool) bool {
	switch {
	case ranges == 0 || has && ranges == 1:
		return true
	case a.Code == op.AllReduceCoalesced:
		return has && ranges == len(a.Recv)
	}
	return has && perRank && ranges == a.Size
}

// addSides adds the tensors of another rank. ok is false if they do not have the length that the call
// needs, mapped if this process cannot map one of them.
func addSides(a *Args, c *shm.Collective, o *shm.Op, r int, s *told) (mapped, ok bool) {
	t := a.Trait()
	given, got := int64(0), int64(0)
	if t.Gives.Includes(a.Root, r) {
		given = sideCount(a, c, shm.In, t.Send.PerRank(), r)
	}
	if t.WritesRecv(a.Root, r) {
		got = sideCount(a, c, shm.Out, t.Recv.PerRank(), r)
	}
	if mapped, ok = addSide(a, o, shm.In, r, s.in, given); !mapped || !ok {
		return mapped, ok
	}
	return addSide(a, o, shm.Out, r, s.out, got)
}

// sideCount returns how many elements a side of rank r has.
func sideCount(a *Args, c *shm.Collective, side shm.Side, perRank bool, r int) (count int64) {
	switch {
	case a.Trait().Shares == op.Pairwise && c.Shares != nil:
		for other := range a.Size {
			if side == shm.In {
				count += c.Shares[c.ShareOf(r, other)]
			} else {
				count += c.Shares[c.ShareOf(other, r)]
			}
		}
		return count
	case perRank:
		return a.shareBegin(a.Size)
	}
	return a.shareCount(r)
}

func addSide(a *Args, o *shm.Op, side shm.Side, r int, ranges []heapRange, count int64) (mapped, ok bool) {
	for i := range ranges {
		at := ranges[i].once()
		if at.Count < 0 || at.Count > count {
			return true, false
		}
		if count -= at.Count; at.Count == 0 {
			continue
		}
		data, err := a.Node.Heaps.Reach(r, at.Location, at.Count*sideElem(a, side))
		if err != nil {
			return false, true
		}
		o.Add(side, r, data, at.Count)
	}
	return true, count == 0
}

// sideElem returns the bytes of an element of a side.
func sideElem(a *Args, side shm.Side) int64 {
	if a.Partial && side == shm.Out {
		return partialBytes
	}
	return a.elem()
}

// differingPairs tells the operation how long the shares of an all_to_all are.
func differingPairs(a *Args, c *shm.Collective, all []told) error {
	c.Shares = make([]int64, a.Size*a.Size)
	for from := range all {
		for to := range all {
			c.Shares[c.ShareOf(from, to)] = shareIn(a, all[from].in, to)
		}
	}
	return compareLengths(a, func(from, to int) int64 {
		return c.Shares[c.ShareOf(from, to)]
	}, func(from, to int) int64 {
		return shareIn(a, all[to].out, from)
	})
}

// counts returns the lengths of this rank's parts.
func counts(parts []Part) []heapRange {
	list := make([]heapRange, len(parts))
	for i := range parts {
		list[i].Count = parts[i].Count
	}
	return list
}

// shareIn returns the length of a rank's share in a side of an all_to_all. One range has shares of one
// length.
func shareIn(a *Args, side []heapRange, rank int) int64 {
	switch len(side) {
	case 0:
		return 0
	case 1:
		return atomic.LoadInt64(&side[0].Count) / int64(a.Size)
	}
	return atomic.LoadInt64(&side[rank].Count)
}

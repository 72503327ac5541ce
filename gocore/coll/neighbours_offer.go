package coll

import (
	"slices"
	"sync"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/arrive"
	"github.com/paddlempi/paddlempi/gocore/heap"
	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// Blocks keeps memory of this process's heap in which one member of a group on one node packs what it gives to its
// neighbours. A block is used again when all members have finished with the collective that it belongs to.
type Blocks struct {
	Slots *arrive.ControlSlots

	mu   sync.Mutex
	kept []heapBlock
}

// heapBlock is a block in the heap, and the collective it belongs to; 0: none.
type heapBlock struct {
	data  unsafe.Pointer
	bytes int64
	place heap.Location
	seq   uint64
}

// keptBlocks is how many blocks that are not in use are kept. Usually two take turns.
const keptBlocks = 3

// take returns a block of at least n bytes.
func (b *Blocks) take(n int64) (heapBlock, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, k := range b.kept {
		if k.bytes >= n && b.free(&k) {
			b.kept = append(b.kept[:i], b.kept[i+1:]...)
			return k, nil
		}
	}
	own, err := heap.OfProcess()
	if err != nil {
		return heapBlock{}, err
	}
	k := heapBlock{bytes: n}
	if k.data, err = own.Alloc(n); err != nil {
		return k, err
	}
	ok := false
	if k.place, ok = own.Find(k.data, n); !ok {
		_ = own.Free(k.data)
		return k, status.New(status.NoMemory, "the heap does not know its own block of %d bytes", n)
	}
	return k, nil
}

// free tells whether no member reads a block any more.
func (b *Blocks) free(k *heapBlock) bool { return k.seq == 0 || b.Slots.ReadNoMore(k.seq) }

// give takes a block back, which belonged to collective seq; 0: it was not announced.
func (b *Blocks) give(k heapBlock, seq uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	k.seq = seq
	b.kept = append(b.kept, k)
	for i := 0; len(b.kept) > keptBlocks && i < len(b.kept); {
		if !b.free(&b.kept[i]) {
			i++
			continue
		}
		_ = heap.IfMade().Free(b.kept[i].data)
		b.kept = append(b.kept[:i], b.kept[i+1:]...)
	}
}

// Free gives the blocks back to the heap, but those that another member may still read. It tells whether none is left.
func (b *Blocks) Free() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.kept = slices.DeleteFunc(b.kept, func(k heapBlock) bool {
		free := b.free(&k)
		if free {
			_ = heap.IfMade().Free(k.data)
		}
		return free
	})
	return len(b.kept) == 0
}

// blockOffer is what a member tells its neighbours.
type blockOffer struct {
	told    neighbourPayload
	whole   bool           // the payload has the block, or its place
	lent    bool           // the payload has the index, and says where the tensor is
	block   heapBlock      // in the heap, if from is set
	from    *Blocks        // where it comes from
	payload unsafe.Pointer // a payload with a block, in a group on one node
	bytes   int64          // of the payload
}

// lend finds out whether this rank's tensor can be lent, and tells where it is.
func (s *blockOffer) lend(a *Args) bool {
	n := a.Neighbours
	own := heap.IfMade()
	if own == nil || a.Node == nil {
		return false
	}
	place, ok := own.Find(unsafe.Add(a.Recv[0].Data, n.Lend.Low), n.Lend.Bytes)
	if ok {
		s.told.lent, s.told.lentBytes, s.told.first = place, n.Lend.Bytes, -n.Lend.Low
	}
	return ok
}

// Lent tells whether the neighbours copy out of this rank's tensor, so that it must not be changed before they have
// finished with the collective.
func (o *Offer) Lent() bool { return o.swaps != nil && o.swaps.lent }

// MakeBlock is Make for a call with neighbours. from is nil if the members do not share memory. mayLend says that this
// rank can wait for its neighbours at the end.
func (o *Offer) MakeBlock(a *Args, flags arrive.Flags, from *Blocks, mayLend bool) (arrive.Flags, error) {
	n := a.Neighbours
	o.swaps = &blockOffer{told: neighbourPayload{inner: n.Inner}}
	s := o.swaps
	inPayload, room := neighbourPayloadBytes+n.blockBytes(), a.Payloads.Rooms().Payload
	var err error
	if from != nil && inPayload > room && mayLend && n.Lend != nil && n.Lend.Worth && neighbourPayloadBytes+n.lentBytes() <= room {
		s.lent = s.lend(a)
	}
	if from != nil && inPayload > room && !s.lent {
		if s.block, err = from.take(n.blockBytes()); err == nil {
			s.from, s.told.place = from, s.block.place
		} // else the heap has no room, and all take messages
	}
	switch {
	case s.lent:
		s.bytes, s.told.bytes = neighbourPayloadBytes+n.lentBytes(), n.lentBytes()
	case s.from != nil:
		s.bytes, s.told.bytes = neighbourPayloadBytes, n.blockBytes()
	case inPayload <= room:
		s.bytes, s.told.bytes = inPayload, n.blockBytes()
	case neighbourPayloadBytes+n.indexBytes() <= room:
		s.bytes, s.told.bytes = neighbourPayloadBytes+n.indexBytes(), n.indexBytes()
	case neighbourPayloadBytes <= room:
		s.bytes = neighbourPayloadBytes
	}
	if s.bytes > neighbourPayloadBytes && a.Node != nil {
		if s.payload, err = mem.Alloc(s.bytes); err != nil {
			return flags, err
		}
	}
	if s.whole = s.from != nil || s.bytes == inPayload; s.whole || s.lent {
		flags |= Inline
	}
	return flags, nil
}

// tell makes the payload.
func (s *blockOffer) tell(a *Args) arrive.Payload {
	if s.from != nil {
		a.Neighbours.fill(a, s.block.data)
	}
	switch {
	case s.bytes <= neighbourPayloadBytes:
		return arrive.Payload{Data: unsafe.Pointer(&s.told), Bytes: s.bytes}
	case s.payload == nil: // a wire takes what it sends
		return arrive.Payload{Bytes: s.bytes, Fill: func(to unsafe.Pointer) { s.write(a, to) }}
	}
	s.write(a, s.payload)
	return arrive.Payload{Data: s.payload, Bytes: s.bytes}
}

// write writes a payload with a block, or with its index alone.
func (s *blockOffer) write(a *Args, payload unsafe.Pointer) {
	*(*neighbourPayload)(payload) = s.told
	block := unsafe.Add(payload, neighbourPayloadBytes)
	switch {
	case s.lent:
		a.Neighbours.index(a, block)
		copy(unsafe.Slice((*int64)(unsafe.Add(block, a.Neighbours.indexBytes())), len(a.Neighbours.Lend.Layout)), a.Neighbours.Lend.Layout)
	case s.whole:
		a.Neighbours.fill(a, block)
	default:
		a.Neighbours.index(a, block)
	}
}

func (s *blockOffer) free(seq uint64) {
	if s.from != nil {
		s.from.give(s.block, seq)
	}
	if s.payload != nil {
		mem.Free(s.payload)
	}
}

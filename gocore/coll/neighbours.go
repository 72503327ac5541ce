package coll

import (
	"sync/atomic"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/heap"
	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// Neighbours is what one rank gives to its neighbours and gets from them in a call. It does not change, and several calls
// may have it in common.
//
// What a rank gives is packed in a block: an index, then the bytes for each neighbour in the order of Out. The block
// lies in the payload, or in the rank's heap, or goes over the wire in a message for each neighbour. The neighbours unpack
// it into their tensors. A rank whose tensor lies in its heap may lend it instead: the neighbours copy out of it, and the
// rank does not return before they have.
type Neighbours struct {
	Inner [4]int64 // the inner lengths of the tensor of a halo, which all members compare (Fit)
	// Fit returns an error if the inner lengths of the ranks do not fit together. It is the same on all ranks. nil:
	// there are none.
	Fit func(inner func(rank int) *[4]int64) error
	// Out and In are by rank; several with one rank are in the order that both have agreed on.
	Out, In           []Swap
	OutBytes, InBytes int64  // of all of them
	Pack              []Copy // how Out is packed
	Self              []Copy // what a rank gives to itself
	Lend              *Lend  // of a halo
}

// Lend is how a tensor is lent to others, and borrowed from them.
type Lend struct {
	Worth      bool    // lending is worth it
	Low, Bytes int64   // the memory in which it lies: from where on, counted from its first element
	Layout     []int64 // its shape, and then its strides in elements
	// From returns the copies out of the tensor of another rank that has the given layout, as Layout is, and whose first
	// element is at first in bytes bytes of memory. The numbers may be anything.
	From func(rank int, layout []int64, first, bytes int64) ([]mem.Box, error)
}

// Swap is what goes to another rank or comes from it. Unpack says where it goes; Out has none.
type Swap struct {
	Rank   int
	Bytes  int64
	Unpack Copy
}

// Copy is boxes of the tensor with the number From of one side, which go into the tensor with the number To of the
// receive side. Only one of the two is used if the other side is packed.
type Copy struct {
	From, To int
	Boxes    []mem.Box
}

// The payload of such a call is a neighbourPayload, and behind it the block if that lies in the payload.
type neighbourPayload struct {
	inner [4]int64
	bytes int64         // of the block; 0: it lies neither here nor in the heap
	place heap.Location // of a block in the heap; generation 0: it is in the payload
	// Of a tensor that is lent: where it lies, and its first element there. Behind the index of the block are its shape
	// and strides. Generation 0: none is.
	lent      heap.Location
	lentBytes int64
	first     int64
}

// A block begins with a blockHead, and one swapEntry for each of Out, and then for each of In.
type blockHead struct{ out, in uint32 }

type swapEntry struct {
	rank  int32
	dtype int32
	bytes int64
}

const (
	neighbourPayloadBytes = int64(unsafe.Sizeof(neighbourPayload{}))
	blockHeadBytes        = int64(unsafe.Sizeof(blockHead{}))
	swapEntryBytes        = int64(unsafe.Sizeof(swapEntry{}))
)

// indexBytes returns the length of the index of a block.
func (n *Neighbours) indexBytes() int64 {
	return pad(blockHeadBytes + int64(len(n.Out)+len(n.In))*swapEntryBytes)
}

// blockBytes returns the length of the block.
func (n *Neighbours) blockBytes() int64 { return n.indexBytes() + n.OutBytes }

// lentBytes returns the length of a block that has no elements, because the tensor is lent.
func (n *Neighbours) lentBytes() int64 { return n.indexBytes() + int64(len(n.Lend.Layout))*8 }

// fill makes the block of this call.
func (n *Neighbours) fill(a *Args, block unsafe.Pointer) {
	n.index(a, block)
	n.pack(a, unsafe.Add(block, n.indexBytes()))
}

// index writes the index of the block.
func (n *Neighbours) index(a *Args, block unsafe.Pointer) {
	*(*blockHead)(block) = blockHead{uint32(len(n.Out)), uint32(len(n.In))}
	entries := unsafe.Slice((*swapEntry)(unsafe.Add(block, blockHeadBytes)), len(n.Out)+len(n.In))
	for i := range n.Out {
		entries[i] = swapEntry{int32(n.Out[i].Rank), int32(a.DType), n.Out[i].Bytes}
	}
	for i := range n.In {
		entries[len(n.Out)+i] = swapEntry{int32(n.In[i].Rank), int32(a.DType), n.In[i].Bytes}
	}
}

// pack copies what this rank gives to memory, one swap after the other.
func (n *Neighbours) pack(a *Args, to unsafe.Pointer) {
	side := given(a)
	for i := range n.Pack {
		mem.CopyBoxes(to, side[n.Pack[i].From].Data, n.Pack[i].Boxes)
	}
}

// given returns the side that the rank gives.
func given(a *Args) []Part {
	if a.ReadsRecv() {
		return a.Recv
	}
	return a.Send
}

// unpack copies what came from one rank to where it goes.
func (s *Swap) unpack(a *Args, from unsafe.Pointer) {
	if s.Bytes > 0 {
		mem.CopyBoxes(a.Recv[s.Unpack.To].Data, from, s.Unpack.Boxes)
	}
}

// blocks: the members read what their neighbours give in the blocks that these have announced. One arrival, and no
// message. Bytes moved by each rank: what it gives once, what it gets once.
var blocks = Algorithm{Name: "blocks", Memory: hostMemory, Enabled: func(s *Sig) bool {
	return s.Size == 1 || s.Agreed&Inline != 0
}, atOnce: func(a *Args, _ *Program) error {
	if a.Node != nil {
		defer a.Node.Slots.Finish(a.Seq) // the neighbours may use their blocks again, and what they have lent
	}
	if err := fit(a); err != nil {
		return err
	}
	swapWithSelf(a)
	return eachNeighbour(a, func(r int, out, in []Swap) error {
		b, err := blockOf(a, r)
		if err != nil {
			return err
		}
		from, bytes, err := comparePair(a, &b, r, out, in)
		if err != nil || bytes == 0 {
			return err
		}
		if b.lent != nil {
			return borrow(a, b, r)
		}
		if from+bytes > b.bytes {
			return a.notAsAgreed(r)
		}
		at := unsafe.Add(b.data, from)
		for i := range in {
			in[i].unpack(a, at)
			at = unsafe.Add(at, in[i].Bytes)
		}
		return nil
	})
}}

// borrow copies what the tensor of another rank has for this one.
func borrow(a *Args, b toldBlock, r int) error {
	lend := a.Neighbours.Lend
	if lend == nil {
		return a.notAsAgreed(r)
	}
	layout := make([]int64, len(lend.Layout))
	index := pad(blockHeadBytes + b.entries*swapEntryBytes)
	if index+int64(len(layout))*8 > b.bytes {
		return a.notAsAgreed(r)
	}
	for i := range layout {
		layout[i] = atomic.LoadInt64((*int64)(unsafe.Add(b.data, index+int64(i)*8)))
	}
	first, bytes := atomic.LoadInt64(&b.lent.first), atomic.LoadInt64(&b.lent.lentBytes)
	boxes, err := lend.From(r, layout, first, bytes)
	if err != nil {
		return a.notAsAgreed(r)
	}
	base, err := a.Node.Heaps.Reach(r, placeOf(&b.lent.lent), bytes)
	if err != nil {
		return err
	}
	mem.CopyBoxes(a.Recv[0].Data, unsafe.Add(base, first), boxes)
	return nil
}

// fit compares the inner lengths of all members. All get the same error.
func fit(a *Args) error {
	n := a.Neighbours
	if n.Fit == nil || a.Size == 1 || a.Payloads.Rooms().Payload < neighbourPayloadBytes {
		return nil
	}
	damaged := -1
	err := n.Fit(func(r int) *[4]int64 {
		payload, bytes := a.Payloads.Payload(a.Seq, r)
		if bytes < neighbourPayloadBytes {
			damaged = r
			return &n.Inner
		}
		return &(*neighbourPayload)(payload).inner
	})
	if damaged >= 0 {
		return a.notAsAgreed(damaged)
	}
	return err
}

// swapWithSelf copies what this rank gives to itself.
func swapWithSelf(a *Args) {
	side := given(a)
	for i := range a.Neighbours.Self {
		c := &a.Neighbours.Self[i]
		mem.CopyBoxes(a.Recv[c.To].Data, side[c.From].Data, c.Boxes)
	}
}

// eachNeighbour calls f for every other rank with which this one exchanges something.
func eachNeighbour(a *Args, f func(r int, out, in []Swap) error) error {
	out, in := a.Neighbours.Out, a.Neighbours.In
	for len(out)+len(in) > 0 {
		r := a.Size
		if len(out) > 0 {
			r = out[0].Rank
		}
		if len(in) > 0 {
			r = min(r, in[0].Rank)
		}
		o, i := with(out, r), with(in, r)
		if err := f(r, out[:o], in[:i]); err != nil {
			return err
		}
		out, in = out[o:], in[i:]
	}
	return nil
}

// with returns how many swaps at the beginning of a list are with a rank.
func with(swaps []Swap, rank int) (n int) {
	for n < len(swaps) && swaps[n].Rank == rank {
		n++
	}
	return n
}

// toldBlock is the block of another rank, or its index alone. It lies in memory that the other one may change, so what
// it says is read once, and checked.
type toldBlock struct {
	data    unsafe.Pointer
	bytes   int64
	entries int64             // of its index, as comparePair has read
	lent    *neighbourPayload // the payload, if the rank lends its tensor
}

// blockOf returns the block of another rank.
func blockOf(a *Args, r int) (b toldBlock, err error) {
	payload, bytes := a.Payloads.Payload(a.Seq, r)
	if bytes < neighbourPayloadBytes {
		return b, a.notAsAgreed(r)
	}
	told := (*neighbourPayload)(payload)
	b.bytes = atomic.LoadInt64(&told.bytes)
	if place := placeOf(&told.place); place.Generation != 0 && a.Node != nil {
		b.data, err = a.Node.Heaps.Reach(r, place, b.bytes)
	} else {
		b.data = unsafe.Add(payload, neighbourPayloadBytes)
		if b.bytes > bytes-neighbourPayloadBytes {
			return b, a.notAsAgreed(r)
		}
		if placeOf(&told.lent).Generation != 0 && a.Node != nil {
			b.lent = told
		}
	}
	if err == nil && b.bytes < blockHeadBytes {
		err = a.notAsAgreed(r)
	}
	return b, err
}

// comparePair compares what this rank and r give each other with what they expect. It returns where in the block of r
// that begins which is for this rank, and its length.
func comparePair(a *Args, b *toldBlock, r int, out, in []Swap) (from, bytes int64, err error) {
	head := atomic.LoadUint64((*uint64)(b.data))
	parts := *(*blockHead)(unsafe.Pointer(&head))
	given, all := int64(parts.out), int64(parts.out)+int64(parts.in)
	index := blockHeadBytes + all*swapEntryBytes
	if index > b.bytes {
		return 0, 0, a.notAsAgreed(r)
	}
	b.entries = all
	entries := unsafe.Slice((*swapEntry)(unsafe.Add(b.data, blockHeadBytes)), all)
	before, mine, same := sameSwaps(a, entries[:given], in)
	if _, _, expected := sameSwaps(a, entries[given:], out); !same || !expected {
		return 0, 0, status.New(status.Mismatch, "%s: rank %d of the group does not exchange with rank %d what that one expects: the number, lengths and dtype of their tensors for each other have to be the same on both; nothing was taken from that rank,",
			a.Code, r, a.Rank).WithRanks(r, a.Rank)
	}
	if before < 0 {
		return 0, 0, a.notAsAgreed(r)
	}
	return pad(index) + before, mine, nil
}

// sameSwaps compares what another rank has told of its swaps with this rank, with those of this rank with that one. It
// also returns how many bytes are in the other's block before these, and of these; before is -1 if that cannot be.
func sameSwaps(a *Args, entries []swapEntry, swaps []Swap) (before, mine int64, same bool) {
	found := 0
	same = true
	for i := range entries {
		e := &entries[i]
		rank, dtype, bytes := atomic.LoadInt32(&e.rank), atomic.LoadInt32(&e.dtype), atomic.LoadInt64(&e.bytes)
		switch {
		case bytes < 0 || bytes > mostBytes || before > mostBytes || mine > mostBytes:
			return -1, 0, same
		case int(rank) == a.Rank:
			same = same && found < len(swaps) && swaps[found].Bytes == bytes && int32(a.DType) == dtype
			found++
			mine += bytes
		case found == 0:
			before += bytes
		}
	}
	return before, mine, same && found == len(swaps)
}

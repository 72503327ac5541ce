package coll

import (
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/arrive"
	"github.com/paddlempi/paddlempi/gocore/heap"
	"github.com/paddlempi/paddlempi/gocore/mem"
)

// Offer is what a member tells in the payload of its announcement, so that all members may choose
// an algorithm that needs no MPI: its input, if that is short, or where its tensors are in this rank's heap. The zero
// value tells nothing.
type Offer struct {
	bytes  int64          // of the input, if it lies in the payload
	block  unsafe.Pointer // where an input of several parts is put together; nil for one part
	places Places
	swaps  *blockOffer // of a call with neighbours
	sum    *arrive.NodeSum
	keeps  bool // this rank reads a part of its input itself, beside the payload
}

// Make finds out what the payload can hold, allocates what Payload needs, and returns flags with the flag for it. copied says
// that some tensor is copied to contiguous memory. Free must follow.
func (o *Offer) Make(a *Args, flags arrive.Flags, copied bool) (arrive.Flags, error) {
	parts, bytes, ok := Payload(a, flags)
	summed := !ok && !inPlaceAmongShares(a) && a.byLeaders(a.Payloads.Rooms())
	if summed {
		parts, o.sum = Input(a), nodeSum(a)
		bytes = totalCount(parts) * a.elem()
	}
	if ok || summed {
		if len(parts) > 1 {
			var err error
			if o.block, err = mem.Alloc(bytes); err != nil {
				return flags, err
			}
		}
		o.bytes, o.keeps = bytes, ok && a.keepsOwn()
		if summed {
			return flags | arrive.Summed, nil
		}
		flags |= Inline
		if bytes > 0 {
			return flags, nil
		}
		// The members that give something decide which algorithm is taken. This one can be part of both.
	}
	own := heap.IfMade()
	if own == nil || copied || a.Node == nil {
		return flags, nil
	}
	if o.places, ok = Place(a, own); ok {
		flags |= Mapped
	}
	return flags, nil
}

// Lasts tells whether the offer holds for later calls with the same arguments, because nothing was allocated for it.
func (o *Offer) Lasts() bool {
	return o.block == nil && o.swaps == nil && o.places.block == nil && o.places.index == nil
}

// CarriesInput tells whether the payload has the input itself, which has to be packed before.
func (o *Offer) CarriesInput() bool { return o.bytes > 0 || o.swaps != nil || o.keeps }

// Payload returns the payload. It is called when the call is announced, because it reads the input.
func (o *Offer) Payload(a *Args) arrive.Payload {
	switch {
	case o.swaps != nil:
		return o.swaps.tell(a)
	case o.places.bytes > 0:
		return o.places.Payload()
	case o.bytes == 0:
		return arrive.Payload{}
	}
	parts := Input(a)
	if o.block == nil {
		return arrive.Payload{Data: parts[0].Data, Bytes: o.bytes, Sum: o.sum}
	}
	to := o.block
	for i := range parts {
		n := parts[i].Count * a.elem()
		mem.Copy(to, parts[i].Data, n)
		to = unsafe.Add(to, n)
	}
	return arrive.Payload{Data: o.block, Bytes: o.bytes, Sum: o.sum}
}

// Free gives back what Make has allocated. The operation is over for this rank, or was not announced. The offer tells
// nothing then: the caller may have freed its tensors. seq is the number of the collective; 0 if it was not announced.
func (o *Offer) Free(seq uint64) {
	if o.block != nil {
		mem.Free(o.block)
	}
	o.places.Free()
	if o.swaps != nil {
		o.swaps.free(seq)
	}
	*o = Offer{}
}

// Scratch returns a bound, in bytes of host memory, on what any algorithm takes on this rank that
// may be chosen if this rank announces flags. It is called once for each collective, before the
// flags of the other ranks are known. These can only remove flags from Agreed and add flags to Any.
// Scratch leaves flags in both fields of a.
//
// One case is not covered: if only other ranks have device tensors, flags lacks Device and the
// algorithms for device memory are not counted. Program.Alloc then takes their memory when they
// run.
func Scratch(a *Args, flags arrive.Flags) (most int64) {
	a.Agreed, a.Any = flags, flags
	for _, alg := range algorithms(a.Code) {
		if alg.scratch != nil && alg.serves(&a.Sig) {
			most = max(most, alg.scratch(a))
		}
	}
	return most
}

package coll

import (
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/arrive"
	"github.com/paddlempi/paddlempi/gocore/heap"
	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/reduce"
)

// This file has the algorithms of a group on one node that need no MPI. In "inline" the payload of
// every rank lies in its arrival slot, so the arrival is the collective. In "mapped" the tensors lie
// in heaps that all ranks map (package heap), and the ranks work in place (package shm).

// Node is what the members of a group on one node share.
type Node struct {
	Slots *arrive.ControlSlots
	Heaps Heaps
}

// Heaps are the heaps of the members, as far as this process can map them. world.Members implements it.
type Heaps interface {
	// Reach returns where bytes of a member's heap are in this process.
	Reach(member int, l heap.Location, bytes int64) (unsafe.Pointer, error)
	// Read copies what a member's heap has at l, which the member may give back at any time.
	Read(member int, l heap.Location, to []byte) error
	// Acquire maps bytes of a member's heap until the returned reference is released.
	Acquire(member int, l heap.Location, bytes int64) (heap.Ref, error)
}

// inline: every rank copies its input into its slot when it arrives. Once all have arrived, every
// rank computes its result from the slots. Bytes moved by each rank: its input once, and what its
// result is made of, up to n times S. Of two ranks on two nodes each sends what the other one gets.
var inline = Algorithm{Name: "inline", Memory: hostMemory, Enabled: func(s *Sig) bool { return s.Agreed&Inline != 0 }, atOnce: runInline}

// mapped: the ranks claim chunks and work on them in the tensors of all ranks (package shm). Bytes
// moved: the least possible, 2S by each rank for an all_reduce.
var mapped = Algorithm{Name: "mapped", Memory: hostMemory, Enabled: func(s *Sig) bool { return s.Agreed&Mapped != 0 }, shared: sharedOp}

// Gives tells whether this rank has an input. In a broadcast, for instance, only the root has.
func Gives(a *Args) bool { return a.Trait().Gives.Includes(a.Root, a.Rank) }

// Input returns the parts of this rank's input that others get. They are empty if the rank gives nothing.
func Input(a *Args) []Part {
	switch {
	case !Gives(a):
		return nil
	case a.keepsOwn() && a.Trait().Send.PerRank():
		return []Part{a.partFor(1 - a.Rank)}
	case a.keepsOwn() && a.Rank == a.Root:
		return nil
	case len(a.Send) > 0:
		return a.Send
	}
	return a.Recv
}

// keepsOwn tells whether each of two ranks on two nodes gives only what the other one gets, and reads its own part where it lies.
func (s *Sig) keepsOwn() bool {
	t := s.Trait()
	return !s.Local && s.Size == 2 && s.Nodes == 2 && (t.Send.PerRank() || t.Gets == op.Root)
}

// partFor returns what rank r gets of what this rank gives: its share, or everything.
func (a *Args) partFor(r int) Part {
	if !a.Trait().Send.PerRank() {
		return a.Part()
	}
	if len(a.Send) > 1 {
		return a.Send[r]
	}
	n := a.Send[0].Count / int64(a.Size)
	return Part{Data: a.at(a.Send[0].Data, int64(r)*n), Count: n}
}

// room returns the most bytes of an input that travels with an announcement.
func (s *Sig) room(r arrive.Rooms) int64 {
	switch s.Code {
	case op.AllGather:
		return r.Gathered
	case op.Broadcast:
		return r.Alone
	}
	return r.Payload
}

// inPlaceAmongShares tells whether this rank's input is the result's side of an operation that has a
// share for every rank. Its place in there depends on the operation.
func inPlaceAmongShares(a *Args) bool { return len(a.Send) == 0 && a.Trait().Shares != op.NoShares }

// Payload returns this rank's input for the algorithm "inline". ok is false if the call is not for
// it: an input is too long for a slot, or the operation is none of its. In an all_gather every rank
// knows the lengths of all inputs, so all ranks have the same answer. In other operations they may
// not, so the answer travels as a flag.
func Payload(a *Args, flags arrive.Flags) (parts []Part, bytes int64, ok bool) {
	t := a.Trait()
	uneven := flags&Even == 0
	if t.Prefix || a.Partial || uneven && t.Shares != op.Listed || Gives(a) && inPlaceAmongShares(a) {
		return nil, 0, false
	}
	parts = Input(a)
	bytes = totalCount(parts) * a.elem()
	longest := bytes
	if uneven && !t.Send.PerRank() {
		for i := range a.Recv {
			longest = max(longest, a.Recv[i].Count*a.elem())
		}
	}
	if a.keepsOwn() && !separate(a) {
		return nil, 0, false // its own part is read when the result is written
	}
	return parts, bytes, longest <= a.room(a.Payloads.Rooms())
}

// shareCount returns how many elements rank r's share has: of an operation without shares, everything.
// All ranks have the same lengths, because the operation is no all_to_all of different lengths.
func (a *Args) shareCount(r int) int64 {
	t := a.Trait()
	switch {
	case t.Shares != op.Listed || a.Agreed&Even != 0:
		return a.Count
	case t.Send.PerRank():
		return a.Send[r].Count
	}
	return a.Recv[r].Count
}

// shareBegin returns where rank r's share begins on a side that has one for every rank, in elements.
// If r is Size, that is the length of the side.
func (a *Args) shareBegin(r int) (from int64) {
	if a.Trait().Shares != op.Listed || a.Agreed&Even != 0 {
		return int64(r) * a.Count
	}
	for i := range r {
		from += a.shareCount(i)
	}
	return from
}

// runInline computes this rank's result from the slots.
func runInline(a *Args, _ *Program) error {
	if !a.WritesRecv() {
		return nil
	}
	t := a.Trait()
	var room [64]unsafe.Pointer
	given := room[:0]
	whole := a.shareBegin(a.Size) * a.elem()
	for r := range a.Size {
		var payload unsafe.Pointer
		want := whole
		switch {
		case a.keepsOwn():
			want = a.shareCount(a.Rank) * a.elem()
		case !t.Send.PerRank():
			want = a.shareCount(r) * a.elem()
		}
		switch {
		case !t.Gives.Includes(a.Root, r) || want == 0: // the slot may hold something else
		case a.keepsOwn() && r == a.Rank:
			payload = a.partFor(r).Data
		default:
			var bytes int64
			if payload, bytes = a.Payloads.Payload(a.Seq, r); bytes != want {
				return a.notAsAgreed(r)
			}
		}
		given = append(given, payload)
	}
	out := writer{parts: a.Recv, elem: a.elem()}
	from, count := a.shareBegin(a.Rank)*a.elem(), a.shareCount(a.Rank)*a.elem()
	if a.keepsOwn() {
		from = 0
	}
	switch a.Code {
	case op.AllReduce, op.Reduce, op.AllReduceCoalesced:
		return out.reduced(a, given, 0, count)
	case op.ReduceScatter:
		return out.reduced(a, given, from, count)
	case op.Broadcast:
		out.write(given[a.Root], count)
	case op.AllGather, op.Gather:
		for r, payload := range given {
			out.write(payload, a.shareCount(r)*a.elem())
		}
	case op.Scatter:
		out.write(unsafe.Add(given[a.Root], from), count)
	case op.AllToAll:
		for _, payload := range given {
			out.write(unsafe.Add(payload, from), count)
		}
	}
	return nil
}

// AtArrival is what the members of a group on one node can do in the moment in which all have arrived.
type AtArrival struct {
	Payload arrive.Payload // this rank's input
	Sum     arrive.Sum
	Fold    reduce.Fold
}

// SumAtArrival returns how the call a, which announces flags, is carried out if all members announce what it expects:
// the same as "inline", which it tells by name, by one function of C. It returns nil for a call that "inline" does not
// serve, and for others than an all_reduce of one tensor.
func SumAtArrival(a *Args, flags arrive.Flags) *AtArrival {
	sig := a.Sig
	sig.Agreed, sig.Any = flags, flags
	if alg, err := Choose(&sig); err != nil || alg != &inline || a.Code != op.AllReduce || a.Count == 0 {
		return nil
	}
	return &AtArrival{
		Payload: arrive.Payload{Data: a.Part().Data, Bytes: a.Count * a.elem()},
		Sum:     arrive.Sum{Folder: reduce.Folder(), To: a.Recv[0].Data, Count: a.Count, Need: flags & (Inline | Even), Avoid: arrive.Refused | Device},
		Fold:    reduce.NewFold(a.DType, a.Reduce, a.Size, a.Scale),
	}
}

// AtTheArrival is the algorithm that AtArrival stands for.
var AtTheArrival = &inline

// writer writes a result to the parts of a side, one after the other.
type writer struct {
	parts []Part
	elem  int64
	at    int64 // bytes of the first part that are written
}

// next returns where up to bytes bytes go, and how many of them go there.
func (w *writer) next(bytes int64) (unsafe.Pointer, int64) {
	for len(w.parts) > 0 && w.at == w.parts[0].Count*w.elem {
		w.parts, w.at = w.parts[1:], 0
	}
	if len(w.parts) == 0 {
		return nil, 0
	}
	n := min(bytes, w.parts[0].Count*w.elem-w.at)
	p := unsafe.Add(w.parts[0].Data, w.at)
	w.at += n
	return p, n
}

func (w *writer) write(from unsafe.Pointer, bytes int64) {
	for bytes > 0 {
		to, n := w.next(bytes)
		if n == 0 {
			return
		}
		mem.Copy(to, from, n)
		from, bytes = unsafe.Add(from, n), bytes-n
	}
}

// reduced writes the reduction, in rank order, of bytes bytes from offset on of all payloads.
func (w *writer) reduced(a *Args, given []unsafe.Pointer, offset, bytes int64) error {
	for i := range given {
		given[i] = unsafe.Add(given[i], offset)
	}
	w.folded(reduce.NewFold(a.DType, a.Reduce, a.Size, a.Scale), given, a.elem(), bytes/a.elem())
	return nil
}

// folded writes the sum of count elements at each of given, which have elem bytes there.
func (w *writer) folded(fold reduce.Fold, given []unsafe.Pointer, elem, count int64) {
	for count > 0 {
		to, n := w.next(count * w.elem)
		if n /= w.elem; n == 0 {
			return
		}
		fold.Run(to, given, n)
		for i := range given {
			given[i] = unsafe.Add(given[i], n*elem)
		}
		count -= n
	}
}

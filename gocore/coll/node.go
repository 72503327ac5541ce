package coll

import (
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/arrive"
	"github.com/paddlempi/paddlempi/gocore/coll/shm"
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
	Lines *arrive.Lines
	// Reach returns where bytes of a member's heap are in this process.
	Reach func(member int, l heap.Location, bytes int64) (unsafe.Pointer, error)
}

// inline: every rank copies its input into its slot when it arrives. Once all have arrived, every
// rank computes its result from the slots. Bytes moved by each rank: its input once, and what its
// result is made of, up to n times S.
var inline = Algorithm{Name: "inline", Memory: hostMemory, Enabled: func(s *Sig) bool { return s.Agreed&Inline != 0 }, AtOnce: runInline}

// mapped: the ranks claim chunks and work on them in the tensors of all ranks (package shm). Bytes
// moved: the least possible, 2S by each rank for an all_reduce.
var mapped = Algorithm{Name: "mapped", Memory: hostMemory, Enabled: func(s *Sig) bool {
	return s.Agreed&Mapped != 0 && s.Agreed&Even != 0
}, Shared: (*Args).sharedOp}

// Gives tells whether this rank has an input. In a broadcast, for instance, only the root has.
func Gives(a *Args) bool { return a.Trait().Gives.Includes(a.Root, a.Rank) }

// Input returns the parts of this rank's input. They are empty if the rank gives nothing.
func Input(a *Args) []Part {
	switch {
	case !Gives(a):
		return nil
	case len(a.Send) > 0:
		return a.Send
	}
	return a.Recv
}

// inPlaceAmongShares tells whether this rank's input is the result's side of an operation that has a
// share for every rank. Its place in there depends on the operation.
func (a *Args) inPlaceAmongShares() bool { return len(a.Send) == 0 && a.Trait().Shares != op.NoShares }

// Payload returns this rank's input for the algorithm "inline". ok is false if the call is not for
// it: the input is too long for a slot, or the operation is none of its. Other ranks may find
// otherwise, so the answer travels as a flag.
func Payload(a *Args, flags arrive.Flags) (parts []Part, bytes int64, ok bool) {
	t := a.Trait()
	if t.Prefix || flags&Even == 0 || Gives(a) && a.inPlaceAmongShares() {
		return nil, 0, false
	}
	parts = Input(a)
	bytes = totalCount(parts) * a.elem()
	return parts, bytes, bytes <= arrive.NoteRoom(a.Size)
}

// sideBytes returns the bytes of one side of an operation whose shares have one length. perRank says
// that the side has a share for every rank.
func (a *Args) sideBytes(perRank bool) int64 {
	if perRank {
		return int64(a.Size) * a.Count * a.elem()
	}
	return a.Count * a.elem()
}

// runInline computes this rank's result from the slots.
func runInline(a *Args) error {
	if !a.WritesRecv() {
		return nil
	}
	t := a.Trait()
	var room [64]unsafe.Pointer
	given := room[:0]
	bytes := a.sideBytes(t.Send.PerRank()) // of one rank's payload
	for r := range a.Size {
		var note unsafe.Pointer
		if t.Gives.Includes(a.Root, r) {
			var ok bool
			if note, ok = a.Node.Lines.Note(a.Seq, r, bytes); !ok {
				return a.notAsAgreed(r)
			}
		}
		given = append(given, note)
	}
	out := writer{parts: a.Recv, elem: a.elem()}
	share := a.Count * a.elem()
	switch a.Code {
	case op.AllReduce, op.Reduce, op.AllReduceCoalesced:
		return out.reduced(a, given, 0, bytes)
	case op.ReduceScatter:
		return out.reduced(a, given, int64(a.Rank)*share, share)
	case op.Broadcast:
		out.write(given[a.Root], bytes)
	case op.AllGather, op.Gather:
		for _, from := range given {
			out.write(from, bytes)
		}
	case op.Scatter:
		out.write(unsafe.Add(given[a.Root], int64(a.Rank)*share), share)
	case op.AllToAll:
		for _, from := range given {
			out.write(unsafe.Add(from, int64(a.Rank)*share), share)
		}
	}
	return nil
}

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
	fold := reduce.NewFold(a.DType, a.Reduce, a.Size, a.Scale)
	for i := range given {
		given[i] = unsafe.Add(given[i], offset)
	}
	for bytes > 0 {
		to, n := w.next(bytes)
		if n == 0 {
			return nil
		}
		fold.Run(to, given, n/a.elem())
		for i := range given {
			given[i] = unsafe.Add(given[i], n)
		}
		bytes -= n
	}
	return nil
}

// Places has where this rank's tensors are in its heap. It travels in the arrival.
type Places struct{ In, Out heap.Location }

// PlacesBytes is the length of Places in a note.
const PlacesBytes = int64(unsafe.Sizeof(Places{}))

// Place finds this rank's tensors in its heap. ok is false if the algorithm "mapped" cannot serve
// the call: a tensor is not in the heap, or a result lies where other ranks may still read.
func Place(a *Args, own *heap.Heap) (at Places, ok bool) {
	if !shm.Serves(a.Code) || a.Size > shm.MaxRanks {
		return at, false
	}
	in, out, ok := a.mappedParts()
	if !ok || !a.resultIsSafe(in) {
		return at, false
	}
	if in.Count > 0 {
		if at.In, ok = own.Find(in.Data, in.Count*a.elem()); !ok {
			return at, false
		}
	}
	if out.Count > 0 {
		if at.Out, ok = own.Find(out.Data, out.Count*a.elem()); !ok {
			return at, false
		}
	}
	return at, true
}

// mappedParts returns the memory of this rank that is read, and that is written. ok is false if
// either is not one range.
func (a *Args) mappedParts() (in, out Part, ok bool) {
	if Gives(a) {
		if a.inPlaceAmongShares() {
			return in, out, false
		}
		if in, ok = a.joined(Input(a)); !ok {
			return in, out, false
		}
	}
	if a.WritesRecv() {
		if out, ok = a.joined(a.Recv); !ok {
			return in, out, false
		}
	}
	return in, out, true
}

// sharedOp prepares the operation, once all ranks have arrived. If this rank cannot map a tensor of
// another rank, it leaves the work to the others.
func (a *Args) sharedOp() (*shm.Op, error) {
	t, lines := a.Trait(), a.Node.Lines
	words, chunks := lines.Chunks(a.Seq)
	o, err := shm.New(&shm.Call{Seq: a.Seq, Code: a.Code, DType: a.DType, Reduce: a.Reduce, Scale: a.Scale, Count: a.Count,
		Rank: a.Rank, Size: a.Size, Root: a.Root, Words: words, Chunks: chunks, YieldEvery: lines.Yields()})
	if err != nil {
		return nil, err
	}
	blind := false
	for r := range a.Size {
		var in, out unsafe.Pointer
		if r == a.Rank {
			mineIn, mineOut, _ := a.mappedParts()
			o.Set(r, mineIn.Data, mineOut.Data)
			continue
		}
		note, ok := lines.Note(a.Seq, r, PlacesBytes)
		if !ok {
			o.Free()
			return nil, a.notAsAgreed(r)
		}
		at := *(*Places)(note)
		if a.Count == 0 {
			continue // an empty tensor has no place in a heap
		}
		if t.Gives.Includes(a.Root, r) && !blind {
			if in, err = a.Node.Reach(r, at.In, a.sideBytes(t.Send.PerRank())); err != nil {
				blind = true
			}
		}
		if t.WritesRecv(a.Root, r) && !blind {
			if out, err = a.Node.Reach(r, at.Out, a.sideBytes(t.Recv.PerRank())); err != nil {
				blind = true
			}
		}
		o.Set(r, in, out)
	}
	if blind {
		o.CannotMap()
	}
	return o, nil
}

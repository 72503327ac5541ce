package coll

import (
	"fmt"

	"github.com/paddlempi/paddlempi/gocore/arrive"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/reduce"
	"github.com/paddlempi/paddlempi/gocore/tune"
)

// Way is one of several ways to carry out a call over nodes: an algorithm, and the messages between nodes. All ways of a call give
// the same bits.
type Way struct {
	*Algorithm
	Pieces Pieces
}

func (w Way) String() string {
	if w.Pieces.Bytes == 0 {
		return w.Name
	}
	name := w.Name
	if w.Pieces.Whole {
		name += " by doubling"
	}
	return fmt.Sprintf("%s, %d KiB x %d", name, w.Pieces.Bytes>>10, w.Pieces.AtOnce)
}

// triedPieces are those of messages that are tried: those of usualPieces, and longer ones, which MPI mostly moves without a copy, after
// their receiver was asked.
var triedPieces = []Pieces{usualPieces, {Bytes: 256 << 10, AtOnce: 6}, {Bytes: 1 << 20, AtOnce: 4}}

const (
	// leastWays is the least tensor in bytes for which there are several ways.
	leastWays = 16 << 10
	// mostScratch is the most scratch memory of a way, in bytes.
	mostScratch = 8 << 20
)

// Ways are the ways of a call, the usual one first, and their names.
type Ways struct {
	Class tune.Class
	List  []Way
	Names []string
}

// waysOf returns the ways of a call; none if there is only the usual one. They depend on nothing but what all members announce alike,
// so all have the same. Whether a way serves the call is known when all have come: Way.Serves.
func waysOf(call *Sig, rooms arrive.Rooms) (w Ways) {
	switch {
	case call.Nodes < 2 || call.Forced.of(call.Code) != nil || call.Forced&WithoutTuning != 0 || call.bytes() < leastWays:
		return Ways{}
	case call.Trait().Shares == op.Pairwise: // another member may have other lengths, which no member knows before all have come
		return Ways{}
	}
	s := call.usual(rooms)
	w.Class = tune.ClassOf(s.Code, s.Trait().Reduces && reduce.Is16(s.DType), s.bytes())
	for _, alg := range algorithms(s.Code) {
		switch {
		case !alg.serves(&s):
		case alg == &inline || alg == &leaders:
			w.add(Way{Algorithm: alg})
		case alg == &allReduceDoubling, alg == &broadcastSlices, alg == &reduceSlices:
			w.cut(&s, alg, s.bytes(), 1, false)
		case alg == &allReduceSlices, alg == &reduceScatterSlices, alg == &allGatherSlices:
			w.cut(&s, alg, s.bytes()/int64(s.Size), s.Size-1, false)
		case alg.Name == "levels":
			of := min(s.bytes(), levelBytes/partsOfMemory) / int64(s.Rails)
			w.cut(&s, alg, of/int64(s.Nodes), partsAtOnce*(s.Nodes-1), false)
			if s.Code == op.AllReduce && s.Nodes == 2 {
				w.cut(&s, alg, of, partsAtOnce, true)
			}
		}
	}
	if len(w.List) < 2 || w.List[0].Algorithm == &inline && s.Trait().Rooted {
		return Ways{} // the root of what fits into an announcement, or another rank, waits for nobody: its time says nothing
	}
	if first, err := Choose(&s); err != nil || first != w.List[0].Algorithm {
		return Ways{}
	}
	if len(w.List) > tune.Most {
		w.List, w.Names = w.List[:tune.Most], w.Names[:tune.Most]
	}
	return w
}

// bytes returns the length of a tensor, or of the shares of all ranks together.
func (s *Sig) bytes() int64 {
	elements := s.Count
	if s.Trait().Shares != op.NoShares {
		elements *= int64(s.Size)
	}
	return elements * int64(s.DType.Size())
}

func (w *Ways) add(way Way) {
	w.List, w.Names = append(w.List, way), append(w.Names, way.String())
}

// cut adds the ways of an algorithm whose longest parts have so many bytes, and that has room for the pieces of so many other ranks. whole:
// see Pieces.
func (w *Ways) cut(s *Sig, alg *Algorithm, part int64, peers int, whole bool) {
	wide := sumElem(s.DType) / int64(s.DType.Size())
	for i, of := range triedPieces {
		if i > 0 && (part <= triedPieces[i-1].Bytes || int64(peers)*of.AtOnce*of.Bytes*wide > mostScratch) {
			return
		}
		of.Whole = whole
		w.add(Way{alg, of})
	}
}

// Announces returns which of the flags of a call a member announces for this way: a tensor travels with the announcement only if
// it is the way.
func (w Way) Announces(flags arrive.Flags) arrive.Flags {
	if w.Algorithm != &inline {
		flags &^= Inline
	}
	if w.Algorithm != &leaders {
		flags &^= arrive.Summed
	}
	return flags
}

// Serves tells whether the way can serve what all members have agreed on.
func (w Way) Serves(s *Sig) bool { return w.serves(s) }

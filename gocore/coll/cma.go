package coll

import (
	"github.com/paddlempi/paddlempi/gocore/arrive"
	"github.com/paddlempi/paddlempi/gocore/cma"
	"github.com/paddlempi/paddlempi/gocore/coll/bounce"
	"github.com/paddlempi/paddlempi/gocore/op"
)

// The algorithm cma serves collectives of long tensors on one node that only move data, if every member may read the memory of
// all others: who gets something copies it from where it lies. It uses the blocks of bounce, which say where that is
// (package bounce).

// copiedByCMA serves every such collective whose lengths all ranks know by what they have announced. Bytes moved: each rank copies what it
// gets.
var copiedByCMA = Algorithm{Name: "cma", Memory: hostMemory, Enabled: func(s *Sig) bool {
	return byCMA(s) && !unevenPairs(s)
}, wins: bounceWins, polls: always, rounds: func(a *Args, p *Program) error {
	return beginRounds(a, p, true)
}, build: func(a *Args, p *Program) error {
	addRounds(a, p, func(*bounce.Team) error { return beginRounds(a, p, true) })
	return nil
}}

// allToAllUnevenByCMA is allToAllUnevenBounce, but for how the shares go.
var allToAllUnevenByCMA = Algorithm{Name: "cma", Memory: hostMemory, Enabled: byCMA, wins: bounceWins, polls: always, scratch: pairsScratch, build: func(a *Args, p *Program) error {
	return exchangeByBounce(a, p, perRank(a, a.Send), perRank(a, a.Recv), true) // ForCMA says that they lie apart
}}

func byCMA(s *Sig) bool { return byBounce(s) && s.Agreed&ForCMA != 0 }

// The lengths in bytes of a row from which on cma is faster than bounce (docs/adr/0056-cma.md). Where all ranks want the same rows, that is so between two
// ranks only: among more, each row is copied once into the slots, where a cache has it for all others.
const (
	leastByCMA  = 256 << 10
	leastForAll = 1 << 20 // of an all_gather
)

// MayUseCMA tells whether this rank announces ForCMA with a call, for which it announces ForBounce and flags. Where the lengths of shares
// differ, members may have different answers.
func MayUseCMA(a *Args, flags arrive.Flags) bool {
	if !a.Bounce.reads.Load() || flags&(Piecewise|Device) != 0 || !hasAlgorithm("cma", a.Code) {
		return false
	}
	least, few := int64(leastByCMA), true
	if a.Code == op.AllGather {
		least, few = leastForAll, a.Size == 2
	}
	if alg := a.Forced.of(a.Code); alg != nil && alg.Name == "cma" {
		least, few = 1, true
	}
	// Short calls, which are many, are not looked at further.
	given, t := Input(a), a.Trait()
	if !few || max(longestRow(a, given, t.Send.PerRank()), longestRow(a, a.Recv, t.Recv.PerRank())) < least || !separate(a) {
		return false
	}
	spans := make([]cma.Span, len(given))
	for i, part := range given {
		spans[i] = cma.Span{At: part.Data, Bytes: part.Count * a.elem()}
	}
	return cma.Readable(spans)
}

// longestRow returns the length in bytes of the longest row of one side. perRank says that the side has a row for each rank, also if it is
// one part.
func longestRow(a *Args, parts []Part, perRank bool) (longest int64) {
	for _, part := range parts {
		longest = max(longest, part.Count*a.elem())
	}
	if len(parts) == 1 && perRank {
		longest /= int64(a.Size)
	}
	return longest
}

package coll

import (
	"github.com/paddlempi/paddlempi/gocore/arrive"
	"github.com/paddlempi/paddlempi/gocore/cma"
	"github.com/paddlempi/paddlempi/gocore/op"
)

// The algorithm cma serves collectives of long tensors on one node that only move data, if every member may read the memory of
// all others: who gets something copies it from where it lies. It uses the blocks of bounce, which say where that is
// (package bounce).

// lent serves every such collective whose lengths all ranks know by what they have announced. Bytes moved: each rank copies what it
// gets.
var lent = Algorithm{Name: "cma", Memory: hostMemory, Enabled: func(s *Sig) bool {
	return byCMA(s) && !unevenPairs(s)
}, wins: bounceWins, polls: always, rounds: (*Args).beginLent, build: func(a *Args, p *Program) error {
	a.addRoundsOf(p, func() error { return a.beginLent(p) })
	return nil
}}

// allToAllUnevenLent is allToAllUnevenBounce, but for how the shares go.
var allToAllUnevenLent = Algorithm{Name: "cma", Memory: hostMemory, Enabled: byCMA, wins: bounceWins, polls: always, scratch: (*Args).pairsScratch, build: func(a *Args, p *Program) error {
	sends, recvs := a.perRank(a.Send), a.perRank(a.Recv)
	table, err := a.addPairs(p, sends, recvs)
	if err != nil {
		return err
	}
	a.addRoundsOf(p, func() error {
		a.beginPairs(sends, recvs, table, true)
		return nil
	})
	return nil
}}

func byCMA(s *Sig) bool { return byBounce(s) && s.Agreed&Lends != 0 }

func (a *Args) beginLent(*Program) error {
	err := a.Bounce.open(a.Code)
	if err == nil {
		a.beginRounds(Input(a), true)
	}
	return err
}

// The lengths in bytes of a row from which on cma is faster than bounce (docs/adr/0056-cma.md). Where all ranks want the same rows, that is so between two
// ranks only: among more, each row is copied once into the slots, where a cache has it for all others.
const (
	leastLent   = 256 << 10
	leastForAll = 1 << 20 // of an all_gather
)

// MayLend tells whether this rank announces Lends with a call, for which it announces ForBounce and flags. Where the lengths of shares
// differ, members may have different answers.
func MayLend(a *Args, flags arrive.Flags) bool {
	if !a.Bounce.reads.Load() || flags&(Piecewise|Device) != 0 || !hasAlgorithm("cma", a.Code) || !a.separate() {
		return false
	}
	given, longest := rows(a, Input(a), a.Trait().Send.PerRank())
	if _, got := rows(a, a.Recv, a.Trait().Recv.PerRank()); got > longest {
		longest = got
	}
	least, few := int64(leastLent), true
	if a.Code == op.AllGather {
		least, few = leastForAll, a.Size == 2
	}
	if alg := a.Forced.of(a.Code); alg != nil && alg.Name == "cma" {
		least, few = 1, true
	}
	return few && longest >= least && cma.Readable(given)
}

// rows returns the memory of one side, and the length of its longest row.
func rows(a *Args, parts []Part, perRank bool) (list []cma.Span, longest int64) {
	for _, part := range parts {
		bytes := part.Count * a.elem()
		list = append(list, cma.Span{At: part.Data, Bytes: bytes})
		if len(parts) == 1 && perRank {
			bytes /= int64(a.Size)
		}
		longest = max(longest, bytes)
	}
	return list, longest
}

package coll

import (
	"github.com/paddlempi/paddlempi/gocore/reduce"
	"github.com/paddlempi/paddlempi/gocore/transport"
)

// The algorithm slices serves groups each of whose members is on a node of its own, and sums up in this core (pieces).
// MPI carries messages only: its nonblocking collectives take up to twice as long as its blocking ones, and those cannot
// be given up.

// slicesRanks is the largest group that slices serves: every rank has a message with every other one.
const slicesRanks = 16

func onApartNodes(s *Sig) bool {
	return s.Nodes == s.Size && s.Size <= slicesRanks && s.Forced&WithoutLevels == 0
}

// allReduceSlices: rank i sums up slice i of all tensors, and sends the sum to all. Bytes that leave a rank: 2(1-1/n)S.
var allReduceSlices = Algorithm{Name: "slices", Memory: hostMemory, Enabled: onApartNodes, polls: always, scratch: func(a *Args) int64 {
	return a.piecesScratch(a.Size, a.elem()) + a.inputScratch()
}, build: func(a *Args, p *Program) error {
	input, err := a.inputApart(p)
	if err != nil {
		return err
	}
	room, err := a.piecesRoom(p, a.Size, a.elem())
	if err != nil {
		return err
	}
	give, get := a.sliced(input), a.sliced(a.Recv[0])
	a.addPieces(p, transport.EveryRank(a.Size), a.newFold(), a.elem(), room, give, get[a.Rank], get)
	return nil
}}

// reduceScatterSlices: every rank sums up its part of all inputs. Bytes that leave a rank: (1-1/n) of the input.
var reduceScatterSlices = Algorithm{Name: "slices", Memory: hostMemory, Enabled: onApartNodes, polls: always, scratch: func(a *Args) int64 {
	return a.piecesScratch(a.Size, a.elem()) + a.apartScratch()
}, build: func(a *Args, p *Program) error {
	sends, err := a.keepApart(p)
	if err != nil {
		return err
	}
	room, err := a.piecesRoom(p, a.Size, a.elem())
	if err != nil {
		return err
	}
	a.addPieces(p, transport.EveryRank(a.Size), a.newFold(), a.elem(), room, a.perRank(sends), a.Recv[0], nil)
	return nil
}}

// allGatherSlices: every rank sends its part to all. Bytes that leave a rank: (n-1)S.
var allGatherSlices = Algorithm{Name: "slices", Memory: hostMemory, Enabled: onApartNodes, polls: always, scratch: (*Args).apartScratch, build: func(a *Args, p *Program) error {
	sends, err := a.keepApart(p)
	if err != nil {
		return err
	}
	get := a.perRank(a.Recv)
	p.Do(func() error {
		a.copyElements(get[a.Rank].Data, sends[0].Data, sends[0].Count)
		return nil
	})
	a.addPieces(p, transport.EveryRank(a.Size), reduce.Fold{}, 0, nil, nil, sends[0], get)
	return nil
}}

// newFold returns the sum of all ranks' tensors.
func (a *Args) newFold() reduce.Fold { return reduce.NewFold(a.DType, a.Reduce, a.Size, a.Scale) }

// inputApart returns this rank's tensor: the result's if the operation is in place, a copy if it shares some of that.
func (a *Args) inputApart(p *Program) (Part, error) {
	if len(a.Send) == 0 || a.Send[0].Data == a.Recv[0].Data {
		return a.Recv[0], nil
	}
	sends, err := a.withoutOverlap(p, a.Send, a.Recv)
	if err != nil {
		return Part{}, err
	}
	return sends[0], nil
}

// sliced cuts a tensor in one slice for each rank.
func (a *Args) sliced(whole Part) []Part {
	return a.views(whole, a.slices(whole.Count))
}

// keepApart returns the parts to send, as a copy if one of them shares memory with a part that is received (separate).
func (a *Args) keepApart(p *Program) ([]Part, error) {
	if a.separate() {
		return a.Send, nil
	}
	return a.withoutOverlap(p, a.Send, a.Recv)
}

func (a *Args) apartScratch() int64 { return a.withoutOverlapScratch(a.Send, a.Recv) }

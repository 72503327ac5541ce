package coll

// The algorithm slices serves groups each of whose members is on a node of its own, and sums up in this core (pieces).
// MPI carries messages only: its nonblocking collectives take up to twice as long as its blocking ones, and those cannot
// be given up.

// slicesRanks is the largest group that slices serves: every rank has a message with every other one.
const slicesRanks = 16

func onApartNodes(s *Sig) bool {
	return s.Nodes == s.Size && s.Size <= slicesRanks && s.Forced&WithoutLevels == 0
}

func ofTwoNodes(s *Sig) bool { return onApartNodes(s) && s.Size == 2 }

// allReduceSlices: rank i sums up slice i of all tensors, and sends the sum to all. Bytes that leave a rank: 2(1-1/n)S.
var allReduceSlices = Algorithm{Name: "slices", Memory: hostMemory, Enabled: onApartNodes, polls: always, scratch: func(a *Args) int64 {
	return piecesScratch(a, a.Size, a.elem()) + inputScratch(a)
}, build: func(a *Args, p *Program) error {
	input, err := inputApart(a, p)
	if err != nil {
		return err
	}
	get := sliced(a, a.Recv[0])
	_, err = addPieces(a, p, sliced(a, input), get[a.Rank], get)
	return err
}}

// allReduceDoubling serves two ranks on two nodes. Each gives its whole tensor to the other one, in pieces, and both sum
// up. That is recursive doubling (Thakur, Rabenseifner, Gropp 2005), and for two ranks as many bytes leave a rank as
// leave it by slices: S. But no message waits for a sum, so the wire is never idle; each rank does the whole sum for it.
// A sum is in rank order, so both get the same bits.
var allReduceDoubling = Algorithm{Name: "doubling", Memory: hostMemory, Enabled: ofTwoNodes, polls: always, scratch: allReduceSlices.scratch, build: func(a *Args, p *Program) error {
	input, err := inputApart(a, p)
	if err != nil {
		return err
	}
	_, err = addPieces(a, p, []Part{input, input}, a.Recv[0], nil)
	return err
}}

// reduceScatterSlices: every rank sums up its part of all inputs. Bytes that leave a rank: (1-1/n) of the input.
var reduceScatterSlices = Algorithm{Name: "slices", Memory: hostMemory, Enabled: onApartNodes, polls: always, scratch: func(a *Args) int64 {
	return piecesScratch(a, a.Size, a.elem()) + apartScratch(a)
}, build: func(a *Args, p *Program) error {
	sends, err := keepApart(a, p)
	if err != nil {
		return err
	}
	_, err = addPieces(a, p, perRank(a, sends), a.Recv[0], nil)
	return err
}}

// allGatherSlices: every rank sends its part to all. Bytes that leave a rank: (n-1)S.
var allGatherSlices = Algorithm{Name: "slices", Memory: hostMemory, Enabled: onApartNodes, polls: always, scratch: apartScratch, build: func(a *Args, p *Program) error {
	sends, err := keepApart(a, p)
	if err != nil {
		return err
	}
	get := perRank(a, a.Recv)
	x, err := addPieces(a, p, nil, sends[0], get)
	if err == nil {
		x.meanwhile = func() { copyParts(a, get[a.Rank:], sends) }
	}
	return err
}}

// broadcastSlices and reduceSlices serve two ranks: with more the root's wire would carry everything. Bytes that leave the rank that
// gives: S.
var broadcastSlices = Algorithm{Name: "slices", Memory: hostMemory, Enabled: ofTwoNodes, polls: always, build: func(a *Args, p *Program) error {
	get, own := make([]Part, a.Size), Part{}
	if get[a.Root] = a.Recv[0]; a.Rank == a.Root {
		own = a.Recv[0]
	}
	_, err := addPieces(a, p, nil, own, get)
	return err
}}

var reduceSlices = Algorithm{Name: "slices", Memory: hostMemory, Enabled: ofTwoNodes, polls: always, scratch: func(a *Args) int64 {
	if a.Rank != a.Root {
		return piecesScratch(a, a.Size, a.elem())
	}
	return allReduceSlices.scratch(a)
}, build: func(a *Args, p *Program) (err error) {
	input, result := a.Part(), Part{}
	if a.Rank == a.Root {
		result = a.Recv[0]
		if input, err = inputApart(a, p); err != nil {
			return err
		}
	}
	give := make([]Part, a.Size)
	give[a.Root] = input
	_, err = addPieces(a, p, give, result, nil)
	return err
}}

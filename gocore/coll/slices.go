package coll

// The algorithm slices serves groups each of whose members is on a node of its own, and sums up in this core (pieces).
// MPI carries messages only: its nonblocking collectives take up to twice as long as its blocking ones, and those cannot
// be given up.

// slicesRanks is the largest group that slices serves: every rank has a message with every other one.
const slicesRanks = 16

func onApartNodes(s *Sig) bool { return s.Apart && s.Size <= slicesRanks }

// allReduceSlices: rank i sums up slice i of all tensors, and sends the sum to all. Bytes that leave a rank: 2(1-1/n)S.
var allReduceSlices = Algorithm{Name: "slices", Memory: hostMemory, Enabled: onApartNodes, polls: always, scratch: func(a *Args) int64 {
	return a.piecesScratch() + a.inputScratch()
}, build: func(a *Args, p *Program) error {
	input, err := a.inputApart(p)
	if err != nil {
		return err
	}
	give, get := a.sliced(input), a.sliced(a.Recv[0])
	return a.addPieces(p, give, get[a.Rank], get)
}}

// reduceScatterSlices: every rank sums up its part of all inputs. Bytes that leave a rank: (1-1/n) of the input.
var reduceScatterSlices = Algorithm{Name: "slices", Memory: hostMemory, Enabled: onApartNodes, polls: always, scratch: func(a *Args) int64 {
	return a.piecesScratch() + a.apartScratch()
}, build: func(a *Args, p *Program) error {
	sends, err := a.keepApart(p)
	if err != nil {
		return err
	}
	return a.addPieces(p, a.perRank(sends), a.Recv[0], nil)
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
	return a.addPieces(p, nil, sends[0], get)
}}

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
	parts := make([]Part, a.Size)
	for i, s := range a.slices(whole.Count) {
		parts[i] = Part{Data: a.at(whole.Data, s.from), Count: s.count}
	}
	return parts
}

// keepApart returns the parts to send, as a copy if one of them shares memory with a part that is received (separate).
func (a *Args) keepApart(p *Program) ([]Part, error) {
	if a.separate() {
		return a.Send, nil
	}
	return a.withoutOverlap(p, a.Send, a.Recv)
}

func (a *Args) apartScratch() int64 { return a.withoutOverlapScratch(a.Send, a.Recv) }

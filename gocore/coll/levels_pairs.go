package coll

import (
	"slices"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/arrive"
	"github.com/paddlempi/paddlempi/gocore/op"
)

// allToAllLevels serves shares of one length on even nodes. For each node, the members here give each other what they have for
// its members: the rank i gets what is for the rank i there. Counterparts exchange what they have got. So a rank has one message
// stream with each other node, not with each rank there, and what comes is for this rank itself. Bytes that leave a node, as
// without levels: (1-1/N) of what its members send.
var allToAllLevels = Algorithm{Name: "levels", Memory: hostMemory, Enabled: onEvenNodes, wins: manyPairs, polls: always, scratch: apartScratch, build: func(a *Args, p *Program) error {
	sends, err := keepApart(a, p)
	if err != nil {
		return err
	}
	from, to := perRank(a, sends), perRank(a, a.Recv)
	return addInParts(a, p, a.Count, levelStep(a, a.Size), func(m *levelPart) { m.exchange(from, to) })
}}

const (
	pairsRails = 4         // ranks of a node from which levels save messages enough
	pairsShare = 512 << 10 // the longest share for which messages count more than copies
)

// manyPairs tells whether levels are faster than MPI, which has a message for each pair of ranks where levels have one for each node,
// but copies less: levels copy every byte once or twice more on the node. On 2 x 2 ranks they took up to twice as long for tensors in
// no heap, and on 2 x 4 ranks of 1 MiB as long or less.
func manyPairs(s *Sig) bool {
	return s.Rails >= pairsRails && s.Count*int64(s.DType.Size()) <= pairsShare
}

// mayPairInLevels tells whether a member's all_to_all may go in levels, as far as the member knows before the others have come.
func mayPairInLevels(s *Sig) bool {
	even := s.Count >= 0 && evenNodes(s)
	return even && (manyPairs(s) || s.Forced.of(s.Code) == &allToAllLevels)
}

// exchange is a part of an all_to_all. The first half of the memory at sums is for what this rank gives to the other nodes, the second
// for what it gets from them.
func (m *levelPart) exchange(sends, results []Part) {
	a, l := m.a, m.l
	home := slices.Index(l.Rail, a.Rank)
	ofNodes := slices.Repeat([]Part{{Count: m.count * int64(l.LocalSize)}}, len(l.Nodes))
	give, get := laidFrom(a, m.sums, ofNodes), laidFrom(a, unsafe.Add(m.sums, levelBytes/4), ofNodes)
	for k, members := range l.Nodes {
		from, to := m.ofEach(ofNode(sends, members)), m.ofEach(ofNode(results, members))
		list := m.forPairs(m.stage, from)
		phase := nodePhase{in: copies{list, from}, code: op.AllToAll, sends: list, recvs: give[k : k+1]}
		if k == home {
			phase.recvs = m.forPairs(get[k].Data, to)
			phase.out = copies{to, phase.recvs}
		} else if whole, ok := joined(a, to); ok {
			get[k] = whole
		} else {
			m.behind = append(m.behind, nodePhase{out: copies{to, laidFrom(a, get[k].Data, to)}})
		}
		m.before = append(m.before, phase)
	}
	m.onRail(nil, give[home], get)
	m.wire.each = give
}

// forPairs is inStage for a side of an all_to_all on this node, whose ranks tell the places of all their parts in their slots.
func (m *levelPart) forPairs(stage unsafe.Pointer, parts []Part) []Part {
	if headBytes+2*int64(len(parts))*rangeBytes > arrive.PayloadRoom(len(parts)) {
		return laidFrom(m.a, stage, parts)
	}
	return inStage(m.a, stage, parts)
}

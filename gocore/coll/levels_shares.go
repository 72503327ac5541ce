package coll

import (
	"slices"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/op"
)

// This file has reduce_scatter and all_gather in levels. On even nodes, the rank i of each node just takes the share of the
// rank i of another. On uneven ones it cannot: shares differ in length, or nodes in their number of ranks. There the
// shares of the ranks of a node, one after the other, are the shares of the node. As many ranks as the smallest node has
// are the ends of rails, and each of them exchanges one slice of the shares of every node. So in the end the slices are
// gathered on the node, and each rank takes its share. As many bytes leave a node in both cases.
var (
	// Bytes that leave a node: (1-1/N) of the input.
	reduceScatterLevels = sharesInLevels((*levelPart).scatter, (*levelPart).scatterUnevenly)
	// Bytes that leave a node: (N-1) times the parts of its members.
	allGatherLevels = sharesInLevels((*levelPart).gather, (*levelPart).gatherUnevenly)
)

// sharesInLevels returns the algorithm. even and uneven make a part. sends is what this rank sends, and shares has the
// shares of all ranks on the side that has them.
func sharesInLevels(even, uneven func(m *levelPart, sends, shares []Part)) Algorithm {
	return Algorithm{Name: "levels", Memory: hostMemory, Enabled: inLevels, polls: always, scratch: func(a *Args) int64 {
		if a.Trait().Reduces {
			return railsScratch(a) + apartScratch(a)
		}
		return apartScratch(a)
	}, build: func(a *Args, p *Program) error {
		sends, err := keepApart(a, p)
		if err != nil {
			return err
		}
		shares := perRank(a, a.Recv)
		if a.Trait().Reduces {
			shares = perRank(a, sends)
		}
		l, make, total := a.Levels, even, a.Count
		memories := max(len(l.Nodes), l.LocalSize) // there is a sum for each node, and a stage for the parts for one node
		if !onEvenNodes(&a.Sig) {
			make, total, memories = uneven, 0, len(l.Nodes)+1
			for _, members := range l.Nodes {
				total = max(total, totalCount(ofNode(shares, members)))
			}
		}
		return addInParts(a, p, total, levelStep(a, memories), func(m *levelPart) { make(m, sends, shares) })
	}}
}

// ofNode returns the parts of the members of a node.
func ofNode(parts []Part, members []int) []Part {
	list := make([]Part, len(members))
	for i, member := range members {
		list[i] = parts[member]
	}
	return list
}

// ofEach returns what each of some shares has of the part.
func (m *levelPart) ofEach(shares []Part) []Part {
	for i := range shares {
		shares[i] = m.of(shares[i])
	}
	return shares
}

// scatter: for each node, the members here sum up the parts of its members, each the part of its counterpart there. The
// counterparts exchange these sums.
func (m *levelPart) scatter(_, given []Part) {
	sums := make([]Part, len(m.l.Nodes))
	for k, members := range m.l.Nodes {
		sums[k] = Part{Data: unsafe.Add(m.sums, int64(k)*m.count*sumElem(m.a.DType)), Count: m.count}
		inputs := m.ofEach(ofNode(given, members))
		list := inStage(m.a, m.stage, inputs)
		m.before = append(m.before, nodePhase{in: copies{list, inputs}, code: op.ReduceScatter, sends: list, recvs: sums[k : k+1]})
	}
	m.onRail(sums, m.of(m.a.Recv[0]), nil)
}

// gather: counterparts exchange their parts. Then for each node the members here gather what they have of it.
func (m *levelPart) gather(sends, results []Part) {
	got := laidFrom(m.a, m.sums, slices.Repeat([]Part{{Count: m.count}}, len(m.l.Nodes)))
	mine := slices.Index(m.l.Rail, m.a.Rank)
	m.before = []nodePhase{{in: copies{got[mine : mine+1], []Part{m.of(sends[0])}}}}
	m.onRail(nil, got[mine], got)
	for k, members := range m.l.Nodes {
		to := m.ofEach(ofNode(results, members))
		list := inStage(m.a, m.stage, to)
		m.behind = append(m.behind, nodePhase{code: op.AllGather, sends: got[k : k+1], recvs: list, out: copies{to, list}})
	}
}

// What follows is for uneven nodes.

// across returns the elements of the part, of shares one after the other: the pieces that each share has of them.
func (m *levelPart) across(shares []Part) []Part {
	list, from, left := make([]Part, len(shares)), m.from, m.count
	for i, share := range shares {
		begin := min(from, share.Count)
		list[i] = Part{Data: m.a.at(share.Data, begin), Count: min(left, share.Count-begin)}
		from, left = from-begin, left-list[i].Count
	}
	return list
}

// inOne returns pieces as one part, for the other members on this node: as they are, or in memory at stage.
func (m *levelPart) inOne(stage unsafe.Pointer, pieces []Part) Part {
	if whole, ok := joined(m.a, pieces); ok && inHeap(m.a, whole) {
		return whole
	}
	return Part{Data: stage, Count: totalCount(pieces)}
}

// room hands out memory from at on, in cache lines.
type room struct{ at unsafe.Pointer }

func (r *room) take(count, elem int64) Part {
	part := Part{Data: r.at, Count: count}
	r.at = unsafe.Add(r.at, (count*elem+63)&^63)
	return part
}

// home returns the node of this rank, and where its share begins among those of the node.
func (m *levelPart) home(shares []Part) (node int, begin int64) {
	node, place := m.l.seat(m.a.Rank)
	return node, totalCount(ofNode(shares, m.l.Nodes[node][:place]))
}

// overlapOf returns what a share, which begins at element begin of those of its node, has of the part, of which the node
// has n elements, and where it begins there.
func (m *levelPart) overlapOf(share Part, begin, n int64) (part Part, at int64) {
	first := min(max(m.from, begin), begin+share.Count)
	last := max(first, min(m.from+n, begin+share.Count))
	return Part{Data: m.a.at(share.Data, first-begin), Count: last - first}, max(0, first-m.from)
}

func (m *levelPart) scatterUnevenly(_, given []Part) {
	a, l, left := m.a, m.l, room{m.sums}
	sums := make([]Part, len(l.Nodes))
	here := Part{Data: m.stage} // what this node has
	home, begin := m.home(given)
	for k, members := range l.Nodes {
		inputs := m.across(ofNode(given, members))
		n := totalCount(inputs)
		if k == home {
			here.Count = n
		}
		sums[k] = left.take(m.rails(n)[l.LocalRank].count, sumElem(a.DType))
		if l.LocalSize == 1 {
			m.widen(sums[k], inputs)
			continue
		}
		whole := m.inOne(m.stage, inputs)
		m.before = append(m.before, nodePhase{in: copies{laidFrom(a, whole.Data, inputs), inputs}, code: op.ReduceScatter, sends: m.railed(whole), recvs: sums[k : k+1]})
	}
	if l.LocalSize == 1 {
		m.onRail(sums, m.across(a.Recv)[0], nil)
		return
	}
	own := left.take(sums[home].Count, a.elem())
	m.onRail(sums, own, nil)
	mine, at := m.overlapOf(a.Recv[0], begin, here.Count)
	out := copies{[]Part{mine}, []Part{{Data: a.at(m.stage, at), Count: mine.Count}}}
	m.behind = []nodePhase{{code: op.AllGather, sends: []Part{own}, recvs: m.railed(here), out: out}}
}

func (m *levelPart) gatherUnevenly(sends, results []Part) {
	a, l, left, staged := m.a, m.l, room{m.sums}, room{m.stage}
	home, begin := m.home(results)
	pieces := m.across(ofNode(results, l.Nodes[home]))
	whole := staged.take(totalCount(pieces), a.elem()) // what the ranks of this node have
	mine, _ := m.overlapOf(sends[0], begin, whole.Count)
	laid := laidFrom(a, whole.Data, pieces)
	first := nodePhase{in: copies{[]Part{whole}, []Part{mine}}, out: copies{pieces, laid}}
	if l.LocalSize > 1 {
		first.in.to = inStage(a, left.take(mine.Count, a.elem()).Data, first.in.from)
		first.code, first.sends, first.recvs = op.AllGather, first.in.to, laid
	}
	m.before = []nodePhase{first}
	got := make([]Part, len(l.Nodes))
	for k, members := range l.Nodes {
		to := m.across(ofNode(results, members))
		if k == home {
			got[k] = m.railed(whole)[l.LocalRank]
			continue
		}
		got[k] = left.take(m.rails(totalCount(to))[l.LocalRank].count, a.elem())
		if l.LocalSize == 1 {
			m.behind = append(m.behind, nodePhase{out: copies{to, laidFrom(a, got[k].Data, to)}})
			continue
		}
		theirs := m.inOne(staged.at, to)
		m.behind = append(m.behind, nodePhase{code: op.AllGather, sends: got[k : k+1], recvs: m.railed(theirs), out: copies{to, laidFrom(a, theirs.Data, to)}})
	}
	m.onRail(nil, got[home], got)
}

package coll

import (
	"slices"

	"github.com/paddlempi/paddlempi/gocore/op"
)

// broadcastLevels: the members of the root's node copy the tensor in the memory that they share. Each of the first ones
// sends a slice to its counterparts on the other nodes, which gather it there. Bytes that leave the root's node: (N-1)S
// for N nodes.
var broadcastLevels = Algorithm{Name: "levels", Memory: hostMemory, Enabled: inLevels, polls: always, build: func(a *Args, p *Program) error {
	return addInParts(a, p, a.Count, levelStep(a, 1), func(m *levelPart) { m.broadcast(m.of(a.Recv[0])) })
}}

// reduceLevels: the first half of allReduceLevels, but the slices of all nodes are summed up on the root's node, and
// gathered there. Bytes that leave another node: S.
var reduceLevels = Algorithm{Name: "levels", Memory: hostMemory, Enabled: inLevels, polls: always, scratch: func(a *Args) int64 {
	if a.Rank == a.Root {
		return railsScratch(a) + inputScratch(a)
	}
	return railsScratch(a)
}, build: func(a *Args, p *Program) (err error) {
	input, result := a.Part(), a.Part()
	if a.Rank == a.Root {
		result = a.Recv[0]
		if input, err = inputApart(a, p); err != nil {
			return err
		}
	}
	return addInParts(a, p, a.Count, levelStep(a, 1), func(m *levelPart) { m.reduce(m.of(input), m.of(result)) })
}}

// seat returns the node of a rank, and its place among the members there.
func (l *Levels) seat(rank int) (node, place int) {
	for k, members := range l.Nodes {
		if i := slices.Index(members, rank); i >= 0 {
			return k, i
		}
	}
	return -1, -1
}

// rootsNode returns the number of the root's node, the root's place there, and whether this rank is on it.
func (m *levelPart) rootsNode() (node, place int, here bool) {
	node, place = m.l.seat(m.a.Root)
	return node, place, slices.Contains(m.l.Nodes[node], m.a.Rank)
}

// broadcast is a part of a broadcast.
func (m *levelPart) broadcast(data Part) {
	node, root, here := m.rootsNode()
	own := data // of a rank that is alone on its node
	switch {
	case m.l.LocalSize == 1:
	case here:
		whole := inStage(m.a, m.stage, []Part{data})
		phase := nodePhase{code: op.Broadcast, root: root, recvs: whole}
		if m.a.Rank == m.a.Root {
			phase.in = copies{whole, []Part{data}}
		} else {
			phase.out = copies{[]Part{data}, whole}
		}
		m.before = []nodePhase{phase}
		own = m.railed(whole[0])[m.l.LocalRank]
	default:
		own = Part{Data: m.sums, Count: m.rails(data.Count)[m.l.LocalRank].count}
		m.behind = []nodePhase{m.gatherOnNode(own, data)}
	}
	get := make([]Part, len(m.l.Nodes)) // only the root's node sends
	get[node] = own
	if !here {
		own = Part{}
	}
	m.onRail(nil, own, get)
}

// reduce is a part of a reduce. out is the root's result.
func (m *levelPart) reduce(in, out Part) {
	node, _, here := m.rootsNode()
	sum, own := m.sumPlaces(in.Count)
	if m.l.LocalSize > 1 {
		m.sumOnNode(in)
	} else {
		m.widen(sum, []Part{in})
		own = out
	}
	switch {
	case !here:
		own = Part{}
	case m.l.LocalSize == 1:
	case m.a.Rank == m.a.Root:
		m.behind = []nodePhase{m.gatherOnNode(own, out)}
	default:
		m.behind = []nodePhase{{code: op.AllGather, sends: []Part{own}, recvs: m.railed(Part{Data: m.stage, Count: in.Count})}}
	}
	give := make([]Part, len(m.l.Nodes)) // only the root's node takes
	give[node] = sum
	m.onRail(give, own, nil)
}

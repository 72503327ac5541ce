package arrive

import (
	"slices"
	"unsafe"
)

// The payloads of a reduction may be summed up on each node before they cross the wire (Payload.Sum). Then a node has one record in
// a message, of its first member and marked as a sum, in place of one for each member. Whether a node sums up is decided there: all
// its members have to announce the same signature, Summed, and payloads of one length.

// sumRecord marks the record of the sum of a node.
const sumRecord = 1 << 31

// nodeSums is what a member knows of the sum of its node.
type nodeSums struct {
	sum   *NodeSum
	any   bool // some member on the node has announced Summed
	alike bool // all members that were heard have, and the same signature and length
	words [flagsWord]uint64
	bytes int64
	count int
}

// hear takes in what a member has announced.
func (s *nodeSums) hear(summed bool, words []uint64, bytes int64) {
	if s.count++; s.count == 1 {
		copy(s.words[:], words)
		s.bytes, s.alike = bytes, true
	}
	s.any = s.any || summed
	s.alike = s.alike && summed && bytes == s.bytes && slices.Equal(s.words[:], words[:len(s.words)])
}

// forOthers tells whether this node makes a sum, and its members keep each other's payloads.
func (s *nodeSums) forOthers() bool { return s.alike && s.sum.ForOthers }

// forAll tells whether this node makes a sum, which its members get too.
func (s *nodeSums) forAll() bool { return s.alike && !s.sum.ForOthers }

// sumUp makes the sum of this node, of which this member is the leader.
func (g *doubling) sumUp() {
	to := g.firstPayload()
	g.sums.sum.Run(to, g.given())
	g.learnSum(g.here, Payload{Data: to, Bytes: g.sums.sum.Bytes})
}

// sumForOthers returns the sum of this node as what is written to a message.
func (g *doubling) sumForOthers() Payload {
	return Payload{Bytes: g.sums.sum.Bytes, Fill: func(to unsafe.Pointer) { g.sums.sum.Run(to, g.given()) }}
}

// given returns the payloads of the members on this node.
func (g *doubling) given() []unsafe.Pointer {
	from := make([]unsafe.Pointer, 0, 16)
	for _, member := range g.nodes[g.here] {
		from = append(from, g.payloads[member].Data)
	}
	return from
}

// learnSum keeps the sum of a node, as the payload of its first member.
func (g *doubling) learnSum(node int, sum Payload) {
	g.summed[node] = true
	for i, member := range g.nodes[node] {
		if i > 0 {
			sum = Payload{}
		}
		g.learn(member, sum)
	}
}

// nodeOfSum returns the node whose sum the record of a member is; -1: none.
func (g *doubling) nodeOfSum(member int) int {
	if g.rooms.Sum == 0 || member >= g.n || g.nodes[g.node[member]][0] != member {
		return -1
	}
	for _, m := range g.nodes[g.node[member]] {
		if g.had[m] {
			return -1
		}
	}
	return g.node[member]
}

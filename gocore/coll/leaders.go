package coll

import (
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/arrive"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/reduce"
)

// leaders: every rank tells its input to the leader of its node when it arrives. The leader sums up what it gets, and the sums of the
// nodes are exchanged with the announcement itself. Once all have arrived, every rank sums these up. So the arrival is the collective,
// as in "inline", and one message a node crosses the wire. The sums are those of "levels", in the same order and so with the same bits.
// Bytes that leave a node of two: S; of N: (N-1)S.
var leaders = Algorithm{Name: "leaders", Memory: hostMemory, Enabled: func(s *Sig) bool { return s.Agreed&arrive.Summed != 0 }, atOnce: runLeaders}

// byLeaders tells whether a member announces a call, which is not for "inline", for leaders. room is the most bytes of a sum. All members
// have the same answer.
func (s *Sig) byLeaders(room int64) bool {
	if s.Rails == 0 || s.Code != op.AllReduce && s.Code != op.AllReduceCoalesced || s.Forced&WithoutLevels != 0 {
		return false
	}
	if forced := s.Forced.of(s.Code); forced != nil && forced != &leaders {
		return false
	}
	return s.Count > 0 && s.Count*sumElem(s.DType) <= room
}

// nodeSum says how the leader of a node sums up.
func nodeSum(a *Args) *arrive.NodeSum {
	onNode := a.Reduce
	if onNode == op.Avg {
		onNode = op.Sum // divided between the nodes, by the size of the whole group
	}
	fold, count := reduce.NewFold(a.DType, onNode, 1, a.Scale).To(sumType(a.DType)), a.Count
	return &arrive.NodeSum{Bytes: count * sumElem(a.DType), Run: func(to unsafe.Pointer, from []unsafe.Pointer) { fold.Run(to, from, count) }}
}

// runLeaders sums up what the nodes have.
func runLeaders(a *Args) error {
	var room [64]unsafe.Pointer
	given, want := room[:0], a.Count*sumElem(a.DType)
	for _, members := range a.Levels.Nodes {
		payload, bytes := a.Payloads.Payload(a.Seq, members[0])
		if bytes != want {
			return a.notAsAgreed(members[0])
		}
		given = append(given, payload)
	}
	out := writer{parts: a.Recv, elem: a.elem()}
	out.folded(betweenNodes(a), given, sumElem(a.DType), a.Count)
	return nil
}

package coll

import (
	"slices"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/arrive"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/reduce"
)

// leaders: every rank tells its input to the leader of its node when it arrives. The leader sums up what it gets, and the sums of the
// nodes are exchanged with the announcement itself. Once all have arrived, every rank sums these up. So the arrival is the collective,
// as in "inline", and one message a node crosses the wire. The sums are those of "levels", in the same order and so with the same bits.
// Bytes that leave a node of two: S; of N: (N-1)S.
//
// In a reduce_scatter and a reduce of two nodes the sum is of what the other node gets. What this node gets its members sum up
// themselves, each its result. Bytes that leave a node: of a reduce_scatter the shares of the other one, of a reduce S, or nothing from
// the root's.
var leaders = Algorithm{Name: "leaders", Memory: hostMemory, Enabled: func(s *Sig) bool { return s.Agreed&arrive.Summed != 0 }, atOnce: runLeaders,
	scratch: func(a *Args) int64 {
		if !reduce.Is16(a.DType) || a.sumForAll() || !a.WritesRecv() {
			return 0
		}
		return pad(a.Count * partialBytes)
	}}

// byLeaders tells whether a member announces a call, which is not for "inline", for leaders. All members have the same answer.
func (s *Sig) byLeaders(rooms arrive.Rooms) bool {
	switch {
	case s.Rails == 0 || s.Forced&WithoutLevels != 0 || !hasAlgorithm(leaders.Name, s.Code):
		return false
	case !s.sumForAll() && s.Nodes > 2:
		return false
	}
	if forced := s.Forced.of(s.Code); forced != nil && forced != &leaders {
		return false
	}
	payload, sum := s.bytes(), s.bytes()/int64(s.DType.Size())*sumElem(s.DType)
	if s.Code == op.ReduceScatter && evenNodes(s) {
		sum /= 2 // the shares of the other node
	}
	return s.Count > 0 && payload <= max(rooms.Alone, rooms.Sum) && sum <= rooms.Sum
}

// sumForAll tells whether every rank gets the sum of each node.
func (s *Sig) sumForAll() bool { return s.Code == op.AllReduce || s.Code == op.AllReduceCoalesced }

// nodeSum says how the leader of a node sums up.
func nodeSum(a *Args) *arrive.NodeSum {
	fold, count := sumOnNode(a), a.Count
	if a.sumForAll() {
		return &arrive.NodeSum{Bytes: count * sumElem(a.DType), Run: func(to unsafe.Pointer, from []unsafe.Pointer) { fold.Run(to, from, count) }}
	}
	sum := &arrive.NodeSum{ForOthers: true, Run: func(unsafe.Pointer, []unsafe.Pointer) {}}
	shares := a.sharesOf(a.Levels.others(a.Rank))
	if len(shares) > 0 {
		sum.Bytes = int64(len(shares)) * count * sumElem(a.DType)
		sum.Run = func(to unsafe.Pointer, from []unsafe.Pointer) {
			of := make([]unsafe.Pointer, len(from))
			for i, share := range shares {
				for k := range from {
					of[k] = a.at(from[k], share*count)
				}
				fold.Run(unsafe.Add(to, int64(i)*count*sumElem(a.DType)), of, count)
			}
		}
	}
	return sum
}

// sumOnNode returns the sum of the inputs of a node.
func sumOnNode(a *Args) reduce.Fold {
	sum := a.Reduce
	if sum == op.Avg {
		sum = op.Sum // divided between the nodes, by the size of the whole group
	}
	return reduce.NewFold(a.DType, sum, 1, a.Scale).To(sumType(a.DType))
}

// sharesOf returns which shares of an input some members get, by their numbers.
func (a *Args) sharesOf(members []int) (shares []int64) {
	for _, m := range members {
		switch {
		case a.Code == op.ReduceScatter:
			shares = append(shares, int64(m))
		case m == a.Root:
			shares = append(shares, 0)
		}
	}
	return shares
}

// others returns the members on the other one of two nodes.
func (l *Levels) others(rank int) []int {
	if slices.Contains(l.Nodes[0], rank) {
		return l.Nodes[1]
	}
	return l.Nodes[0]
}

// runLeaders sums up what the nodes have.
func runLeaders(a *Args, p *Program) error {
	if !a.WritesRecv() {
		return nil
	}
	var room [64]unsafe.Pointer
	given, elem := room[:0], sumElem(a.DType)
	out := writer{parts: a.Recv, elem: a.elem()}
	for _, members := range a.Levels.Nodes {
		var sum unsafe.Pointer
		var err error
		switch {
		case a.sumForAll():
			sum, err = a.told(members[0], a.Count*elem)
		case slices.Contains(members, a.Rank):
			sum, err = a.sumOfNode(p, members)
		default:
			shares := a.sharesOf(a.Levels.others(members[0]))
			if sum, err = a.told(members[0], int64(len(shares))*a.Count*elem); err == nil && a.Code == op.ReduceScatter {
				sum = unsafe.Add(sum, int64(slices.Index(shares, int64(a.Rank)))*a.Count*elem)
			}
		}
		if err != nil {
			return err
		}
		given = append(given, sum)
	}
	out.folded(betweenNodes(a), given, elem, a.Count)
	return nil
}

// told returns the payload of a member, which has to have so many bytes.
func (a *Args) told(member int, want int64) (unsafe.Pointer, error) {
	payload, bytes := a.Payloads.Payload(a.Seq, member)
	if bytes != want {
		return nil, a.notAsAgreed(member)
	}
	return payload, nil
}

// sumOfNode sums up what the members of this node have told, of this rank's result.
func (a *Args) sumOfNode(p *Program, members []int) (sum unsafe.Pointer, err error) {
	sum = a.Recv[0].Data
	if reduce.Is16(a.DType) {
		if sum, err = p.Alloc(a.Count * partialBytes); err != nil {
			return nil, err
		}
	}
	from, share := make([]unsafe.Pointer, len(members)), int64(0)
	if a.Code == op.ReduceScatter {
		share = int64(a.Rank)
	}
	for i, m := range members {
		payload, err := a.told(m, a.bytes())
		if err != nil {
			return nil, err
		}
		from[i] = a.at(payload, share*a.Count)
	}
	fold := sumOnNode(a)
	fold.Run(sum, from, a.Count)
	return sum, nil
}

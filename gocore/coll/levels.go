package coll

import (
	"slices"
	"sync"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/heap"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/reduce"
)

// Phases carries out collectives of the members on this node: phases of one of the whole group.
type Phases interface {
	// Start begins one, and returns what tells whether it is over.
	Start(d *op.Desc) (over func() (bool, error), err error)
	// Fail tells the members on this node that the collective of the whole group has failed.
	Fail(err error)
}

// Levels is what a group over nodes needs to work in levels: its members on this node share memory, and each of the
// first ones is the end of a rail to the other nodes.
type Levels struct {
	mu        sync.Mutex
	LocalRank int            // this rank among the members on its node
	LocalSize int            // how many these are
	Rail      []int          // the members that exchange the slice of this rank, one of each node, in the order of the nodes; nil: none
	Nodes     [][]int        // the members by node
	Stage     unsafe.Pointer // nil before a collective first needs them: see Ready
	Part      unsafe.Pointer
	Phases    Phases // on this node
}

// levelBytes is how much memory a rank has in its heap for a tensor that lies elsewhere (Stage), and for its slices
// (Part).
var levelBytes int64 = 16 << 20

// A tensor goes through the levels in parts of 4 MiB. Of 2, 4 and 8 MiB, this was the best in a DDP step of 16 MiB.
const partsOfMemory = 4

// levelStep returns how many elements a part has, of a tensor or of shares of which a node has so many.
func levelStep(a *Args, shares int) int64 {
	return max(1, levelBytes/partsOfMemory/sumElem(a.DType)/int64(shares))
}

// The least tensor in bytes for which the phases on the node cost less than they save on the wire. For what has a slice for each rank at
// its beginning or end, that is all that fits into no announcement: on 2 x 2 ranks levels took 0.4 to 0.9 of the time of MPI's from
// there to 1 MiB, other operations as long.
var levelLeast, slicedLeast int64 = 1 << 20, 64 << 10

func (s *Sig) leastForLevels() int64 {
	switch {
	case s.Code == op.AllReduce, s.Code == op.AllReduceCoalesced, s.Code == op.AllGather, s.Code == op.ReduceScatter:
		return slicedLeast
	case s.Nodes == 2 && (s.Code == op.Broadcast || s.Code == op.Reduce):
		return slicedLeast
	}
	return levelLeast
}

// partialBytes is the length of a partial sum of 16-bit floats.
const partialBytes = 4

// Partial tells whether to is the type of partial sums of 16-bit floats of type of.
func Partial(of, to op.DType) bool { return reduce.Is16(of) && to == op.Float32 }

// sumType returns the type of the sums of a node of tensors of type d, and sumElem the bytes of an element of them.
func sumType(d op.DType) op.DType {
	if reduce.Is16(d) {
		return op.Float32
	}
	return d
}

func sumElem(d op.DType) int64 { return int64(sumType(d).Size()) }

// LevelBytes returns levelBytes.
func LevelBytes() int64 { return levelBytes }

// Ready takes Stage and Part from the heap of this process, unless that was done or the call does not need them. It tells
// whether this member can do the call in levels.
func (l *Levels) Ready(a *Args) bool {
	switch {
	case a.Forced&WithoutLevels != 0 || lengthInAll(a)*a.elem() < a.leastForLevels():
		return false
	case a.Code == op.AllToAll && !mayPairInLevels(&a.Sig):
		return false
	case !hasAlgorithm("levels", a.Code) && a.Code != op.AllReduceCoalesced:
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.Stage != nil || l.LocalSize == 1 && (a.Code == op.AllReduce || a.Code == op.AllReduceCoalesced || a.Code == op.Broadcast) {
		return true
	}
	own, err := heap.OfProcess()
	if err == nil {
		l.Stage, err = own.Alloc(2 * levelBytes)
	}
	if err == nil {
		l.Part = unsafe.Add(l.Stage, levelBytes)
	}
	return err == nil
}

// lengthInAll returns the elements of a tensor, or of the shares of all ranks together.
func lengthInAll(a *Args) int64 {
	switch t := a.Trait(); {
	case t.Shares == op.NoShares:
		return a.Count
	case t.Send.PerRank():
		return totalCount(a.Send)
	}
	return totalCount(a.Recv)
}

// Free gives them back. No collective of the group is under way.
func (l *Levels) Free() {
	if l.Stage != nil {
		_ = heap.IfMade().Free(l.Stage) // it fails only for memory that is not the heap's
		l.Stage, l.Part = nil, nil
	}
}

// allReduceLevels: the members of each node sum up in the memory that they share, each of the first ones a slice. It
// exchanges the slice with its counterparts on the other nodes (pieces), and the results are gathered on the node. So
// every byte crosses the wire once, however many members a node has. Bytes that leave a node: 2(1-1/N)S for N nodes.
//
// With Pieces.Whole, between two nodes, it exchanges its whole slice, and both add. As many bytes leave a node, but for 16-bit floats, and no
// message waits for a sum.
//
// The sums are in rank order on a node, and in the order of the nodes between them. Those of 16-bit floats are of type
// float32 until the last one, which is rounded. So of the bytes above, the first half are twice as many for them.
var allReduceLevels = Algorithm{Name: "levels", Memory: hostMemory, Enabled: inLevels, polls: always, scratch: func(a *Args) int64 {
	return railsScratch(a) + inputScratch(a) + ownSumScratch(a)
}, build: func(a *Args, p *Program) error {
	input, err := inputApart(a, p)
	if err != nil {
		return err
	}
	var wide unsafe.Pointer
	if bytes := ownSumScratch(a); bytes > 0 {
		if wide, err = p.Alloc(bytes); err != nil {
			return err
		}
	}
	step := levelStep(a, 1)
	return addInParts(a, p, a.Count, step, func(m *levelPart) {
		in, out := m.of(input), m.of(a.Recv[0])
		if m.l.LocalSize > 1 {
			sum, own := m.sumOnNode(in)
			m.behind = []nodePhase{m.gatherOnNode(own, out)}
			m.sumOnRail(sum, own)
			return
		}
		sum := out
		if wide != nil {
			sum.Data = unsafe.Add(wide, int64(m.place)*step*partialBytes)
		}
		m.widen(sum, []Part{in})
		m.sumOnRail(sum, out)
	})
}}

// railsScratch returns the scratch memory of the exchanges that are under way at once.
func railsScratch(a *Args) int64 {
	return partsAtOnce * piecesScratch(a, len(a.Levels.Rail), sumElem(a.DType))
}

// ownSumScratch returns the memory for the sum of a node that has this rank alone. Only sums of 16-bit floats need it:
// others lie in the result.
func ownSumScratch(a *Args) int64 {
	if a.Levels.LocalSize > 1 || !reduce.Is16(a.DType) {
		return 0
	}
	return pad(partsAtOnce * levelStep(a, 1) * partialBytes)
}

// inLevels tells whether all members can do the call in levels.
func inLevels(s *Sig) bool {
	if s.Rails == 0 || s.Agreed&ForLevels == 0 || s.Forced&WithoutLevels != 0 {
		return false
	}
	return s.large() || s.Trait().Shares == op.Listed && s.Agreed&Even == 0 // Count does not say how long these are: see Ready
}

// onEvenNodes tells whether that is so, all nodes have as many ranks, and all shares the same length.
func onEvenNodes(s *Sig) bool {
	return inLevels(s) && evenNodes(s) && s.Agreed&Even != 0
}

func evenNodes(s *Sig) bool { return s.Rails > 1 && s.Rails*s.Nodes == s.Size }

// large tells whether a tensor, or the shares of all ranks together, have the least length for levels.
func (s *Sig) large() bool { return s.bytes() >= s.leastForLevels() }

// What follows is for a part of any operation.

// of returns what a tensor, or a share, has of the part.
func (m *levelPart) of(whole Part) Part {
	return Part{Data: m.a.at(whole.Data, m.from), Count: m.count}
}

// rails cuts what a node has of a part: a slice for each rail, and nothing for the other ranks of this node.
func (m *levelPart) rails(count int64) []slice {
	return append(cutAlike(count, m.a.Rails), make([]slice, max(0, m.l.LocalSize-m.a.Rails))...)
}

func (m *levelPart) railed(whole Part) []Part {
	return views(whole, m.rails(whole.Count), m.a.elem())
}

// sumOnNode adds the phase in which the ranks of this node sum up their parts, each a slice. It returns where the sum of
// this rank's slice goes, and then the result of that slice.
func (m *levelPart) sumOnNode(in Part) (sum, own Part) {
	sum, own = m.sumPlaces(in.Count)
	from := inStage(m.a, m.stage, []Part{in})
	m.before = []nodePhase{{in: copies{from, []Part{in}}, code: op.ReduceScatter, sends: m.railed(from[0]), recvs: []Part{sum}}}
	return sum, own
}

// sumPlaces returns where the sum of this node's slice goes, and then the result of that slice.
func (m *levelPart) sumPlaces(count int64) (sum, own Part) {
	sum = Part{Data: m.sums, Count: m.rails(count)[m.l.LocalRank].count}
	own = sum
	if reduce.Is16(m.a.DType) {
		own.Data = unsafe.Add(m.stage, levelBytes/4) // behind what such a part needs there
	}
	return sum, own
}

// gatherOnNode is the phase in which the ranks of this node gather their slices in out.
func (m *levelPart) gatherOnNode(own, out Part) nodePhase {
	to := inStage(m.a, m.stage, []Part{out})
	return nodePhase{code: op.AllGather, sends: []Part{own}, recvs: m.railed(to[0]), out: copies{[]Part{out}, to}}
}

// widen adds the phase that makes the sum of a node that has this rank alone, of several pieces.
func (m *levelPart) widen(sum Part, pieces []Part) {
	scaled := op.Sum
	if m.a.Reduce == op.PremulSum {
		scaled = op.PremulSum
	}
	fold := reduce.NewFold(m.a.DType, scaled, 1, m.a.Scale).To(sumType(m.a.DType))
	m.before = append(m.before, nodePhase{prepare: func() {
		to := sum.Data
		for _, piece := range pieces {
			fold.Run(to, []unsafe.Pointer{piece.Data}, piece.Count)
			to = unsafe.Add(to, piece.Count*sumElem(m.a.DType))
		}
	}})
}

// sumOnRail sums up this rank's slice with those of its counterparts. own gets it, which may be sum.
func (m *levelPart) sumOnRail(sum, own Part) {
	rail := m.l.Rail
	switch {
	case m.a.Pieces.Whole:
		m.onRail([]Part{sum, sum}, own, nil)
	case rail != nil:
		of := cutAlike(own.Count, len(rail))
		get := views(own, of, m.a.elem())
		m.onRail(views(sum, of, sumElem(m.a.DType)), get[slices.Index(rail, m.a.Rank)], get)
	}
}

// onRail has this rank exchange parts with its counterparts, if it is on a rail. Nothing is summed up if give is nil.
func (m *levelPart) onRail(give []Part, own Part, get []Part) {
	a := m.a
	if m.l.Rail == nil {
		return
	}
	m.wire = &pieces{a: a, rail: m.l.LocalRank, tags: int32(m.place) * tagsOfPieces, elem: sumElem(a.DType), room: m.room, give: give, own: own, get: get}
	if give != nil {
		m.wire.fold = betweenNodes(a)
	}
	m.wire.among(m.l.Rail)
}

// betweenNodes returns the sum of the sums of all nodes.
func betweenNodes(a *Args) reduce.Fold {
	between := a.Reduce
	if between == op.PremulSum {
		between = op.Sum // each was multiplied on its node
	}
	return reduce.NewFold(sumType(a.DType), between, a.Size, 0).To(a.DType)
}

// inStage returns parts, or as many parts one after the other at stage if the other members on this node cannot map one
// of them.
func inStage(a *Args, stage unsafe.Pointer, parts []Part) []Part {
	if !slices.ContainsFunc(parts, func(part Part) bool { return !inHeap(a, part) }) {
		return parts
	}
	return laidFrom(a, stage, parts)
}

// inHeap tells whether the other members on this node can map a tensor of this rank.
func inHeap(a *Args, part Part) bool {
	own := heap.IfMade()
	if own == nil {
		return false
	}
	_, ok := own.Find(part.Data, part.Count*a.elem())
	return ok
}

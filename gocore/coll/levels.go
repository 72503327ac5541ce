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

// place returns the memory of one of the parts that are under way at once.
func (l *Levels) place(place int) (stage, sums unsafe.Pointer) {
	at := int64(place) * (levelBytes / partsAtOnce)
	return unsafe.Add(l.Stage, at), unsafe.Add(l.Part, at)
}

// levelStep returns how many elements a part has, of a tensor or of shares of which a node has so many.
func (a *Args) levelStep(shares int) int64 {
	return max(1, levelBytes/partsOfMemory/a.sumElem()/int64(shares))
}

// levelLeast is the least tensor in bytes for which the phases on the node cost less than they save on the wire.
var levelLeast int64 = 1 << 20

// partialBytes is the length of a partial sum of 16-bit floats.
const partialBytes = 4

// Partial tells whether to is the type of partial sums of 16-bit floats of type of.
func Partial(of, to op.DType) bool { return reduce.Is16(of) && to == op.Float32 }

// sumElem returns the bytes of an element of the sums of a node.
func (s *Sig) sumElem() int64 {
	if reduce.Is16(s.DType) {
		return partialBytes
	}
	return int64(s.DType.Size())
}

// LevelBytes returns levelBytes.
func LevelBytes() int64 { return levelBytes }

// Ready takes Stage and Part from the heap of this process, unless that was done or the call does not need them. It tells
// whether this member can do the call in levels.
func (l *Levels) Ready(a *Args) bool {
	if a.Forced&WithoutLevels != 0 || a.lengthInAll()*a.elem() < levelLeast || !hasAlgorithm("levels", a.Code) && a.Code != op.AllReduceCoalesced {
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
func (a *Args) lengthInAll() int64 {
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
// The sums are in rank order on a node, and in the order of the nodes between them. Those of 16-bit floats are of type
// float32 until the last one, which is rounded. So of the bytes above, the first half are twice as many for them.
var allReduceLevels = Algorithm{Name: "levels", Memory: hostMemory, Enabled: inLevels, polls: always, scratch: func(a *Args) int64 {
	return a.railsScratch() + a.inputScratch() + a.ownSumScratch()
}, build: func(a *Args, p *Program) error {
	input, err := a.inputApart(p)
	if err != nil {
		return err
	}
	rooms, err := p.Alloc(a.railsScratch())
	if err != nil {
		return err
	}
	var sums unsafe.Pointer
	if bytes := a.ownSumScratch(); bytes > 0 {
		if sums, err = p.Alloc(bytes); err != nil {
			return err
		}
	}
	step := a.levelStep(1)
	a.addInParts(p, parts(input.Count, step), func(part, place int) *levelPart {
		from := int64(part) * step
		n := min(step, input.Count-from)
		in, out := Part{Data: a.at(input.Data, from), Count: n}, Part{Data: a.at(a.Recv[0].Data, from), Count: n}
		if a.Levels.LocalSize == 1 {
			return a.aloneInLevels(in, out, unsafe.Add(sums, int64(place)*step*partialBytes), rooms, place)
		}
		return a.reducedInLevels(in, out, rooms, place)
	})
	return nil
}}

// parts returns how many parts of step elements a tensor has; 1 if it is empty.
func parts(count, step int64) int { return int(max(1, (count+step-1)/step)) }

// railsScratch returns the scratch memory of the exchanges that are under way at once.
func (a *Args) railsScratch() int64 {
	return partsAtOnce * a.piecesScratch(len(a.Levels.Rail), a.sumElem())
}

// ownSumScratch returns the memory for the sum of a node that has this rank alone. Only sums of 16-bit floats need it:
// others lie in the result.
func (a *Args) ownSumScratch() int64 {
	if a.Levels.LocalSize > 1 || !reduce.Is16(a.DType) {
		return 0
	}
	return pad(partsAtOnce * a.levelStep(1) * partialBytes)
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
	return inLevels(s) && s.Rails > 1 && s.Rails*s.Nodes == s.Size && s.Agreed&Even != 0
}

// large tells whether a tensor, or the shares of all ranks together, have the least length for levels.
func (s *Sig) large() bool {
	elements := s.Count
	if s.Trait().Shares != op.NoShares {
		elements *= int64(s.Size)
	}
	return elements*int64(s.DType.Size()) >= levelLeast
}

// scatteredOnRails returns what this rank gives to each rank in a reduce_scatter, and the memory of the exchanges.
func (a *Args) scatteredOnRails(p *Program) (given []Part, rooms unsafe.Pointer, err error) {
	sends, err := a.keepApart(p)
	if err != nil {
		return nil, nil, err
	}
	rooms, err = p.Alloc(a.railsScratch())
	return a.perRank(sends), rooms, err
}

func (a *Args) scatteredScratch() int64 { return a.railsScratch() + a.apartScratch() }

// seat returns the node of a rank, and its place among the members there.
func (l *Levels) seat(rank int) (node, place int) {
	for k, members := range l.Nodes {
		if i := slices.Index(members, rank); i >= 0 {
			return k, i
		}
	}
	return -1, -1
}

// reduceScatterLevels: for each node, the members here sum up the parts of its members, each the part of its counterpart
// there. The counterparts exchange these sums. Bytes that leave a node: (1-1/N) of the input.
var reduceScatterLevels = Algorithm{Name: "levels", Memory: hostMemory, Enabled: onEvenNodes, polls: always, scratch: (*Args).scatteredScratch, build: func(a *Args, p *Program) error {
	given, rooms, err := a.scatteredOnRails(p)
	if err != nil {
		return err
	}
	l := a.Levels
	step := a.levelStep(max(len(l.Nodes), l.LocalSize)) // there is a sum for each node, and a stage for the parts for one node
	a.addInParts(p, parts(a.Count, step), func(part, place int) *levelPart {
		from := int64(part) * step
		n := min(step, a.Count-from)
		stage, memory := l.place(place)
		sums, made := make([]Part, len(l.Nodes)), &levelPart{}
		for k, members := range l.Nodes {
			sums[k] = Part{Data: unsafe.Add(memory, int64(k)*n*a.sumElem()), Count: n}
			inputs := chosen(a, given, members, from, n)
			list := a.inStage(stage, inputs)
			made.before = append(made.before, nodePhase{code: op.ReduceScatter, sends: list, recvs: sums[k : k+1], prepare: func() error {
				a.copyParts(list, inputs)
				return nil
			}})
		}
		made.wire = a.onRail(rooms, place, sums, Part{Data: a.at(a.Recv[0].Data, from), Count: n}, nil)
		return made
	})
	return nil
}}

// allGatherLevels: counterparts exchange their parts. Then for each node the members here gather what they have of it.
// Bytes that leave a node: (N-1) times the parts of its members.
var allGatherLevels = Algorithm{Name: "levels", Memory: hostMemory, Enabled: onEvenNodes, polls: always, scratch: (*Args).apartScratch, build: func(a *Args, p *Program) error {
	sends, err := a.keepApart(p)
	if err != nil {
		return err
	}
	l, results := a.Levels, a.perRank(a.Recv)
	step := a.levelStep(max(len(l.Nodes), l.LocalSize))
	a.addInParts(p, parts(a.Count, step), func(part, place int) *levelPart {
		from := int64(part) * step
		n := min(step, a.Count-from)
		stage, memory := l.place(place)
		got, made := make([]Part, len(l.Nodes)), &levelPart{}
		for k := range got {
			got[k] = Part{Data: a.at(memory, int64(k)*n), Count: n}
		}
		mine := got[slices.Index(l.Rail, a.Rank)]
		made.before = []nodePhase{{prepare: func() error {
			a.copyElements(mine.Data, a.at(sends[0].Data, from), n)
			return nil
		}}}
		made.wire = a.newRail(place, reduce.Fold{}, nil, nil, mine, got)
		for k, members := range l.Nodes {
			to := chosen(a, results, members, from, n)
			list := a.inStage(stage, to)
			made.behind = append(made.behind, nodePhase{code: op.AllGather, sends: got[k : k+1], recvs: list, finish: func() { a.copyParts(to, list) }})
		}
		return made
	})
	return nil
}}

// chosen returns elements of the parts of some members.
func chosen(a *Args, parts []Part, members []int, from, n int64) []Part {
	list := make([]Part, len(members))
	for i, m := range members {
		list[i] = Part{Data: a.at(parts[m].Data, from), Count: n}
	}
	return list
}

// rails cuts what a node has of a part: a slice for each rail, and nothing for the other ranks of this node.
func (a *Args) rails(count int64) []slice {
	return append(a.cut(count, a.Rails), make([]slice, max(0, a.Levels.LocalSize-a.Rails))...)
}

// sumPlaces returns where the sum of this node's slice goes, and then the result of that slice.
func (a *Args) sumPlaces(count int64, place int) (sum, own Part) {
	stage, memory := a.Levels.place(place)
	sum = Part{Data: memory, Count: a.rails(count)[a.Levels.LocalRank].count}
	own = sum
	if reduce.Is16(a.DType) {
		own.Data = unsafe.Add(stage, levelBytes/4) // behind what such a part needs there
	}
	return sum, own
}

// sumOnNode is the phase in which the ranks of this node sum up their parts, each a slice.
func (a *Args) sumOnNode(in, sum Part, place int) nodePhase {
	stage, _ := a.Levels.place(place)
	from := a.inStage(stage, []Part{in})
	return nodePhase{code: op.ReduceScatter, sends: a.views(from[0], a.rails(in.Count)), recvs: []Part{sum}, prepare: func() error {
		a.copyParts(from, []Part{in})
		return nil
	}}
}

// reducedInLevels is a part of an all_reduce on a node of several ranks.
func (a *Args) reducedInLevels(in, out Part, rooms unsafe.Pointer, place int) *levelPart {
	l := a.Levels
	stage, _ := l.place(place)
	sum, own := a.sumPlaces(in.Count, place)
	to := a.inStage(stage, []Part{out})
	made := &levelPart{
		before: []nodePhase{a.sumOnNode(in, sum, place)},
		behind: []nodePhase{{code: op.AllGather, sends: []Part{own}, recvs: a.views(to[0], a.rails(in.Count)), finish: func() { a.copyParts([]Part{out}, to) }}},
	}
	if l.Rail != nil {
		made.wire = a.onRailOf(rooms, place, sum, own)
	}
	return made
}

// aloneInLevels is the same on a node that has this rank alone. Sums of 16-bit floats go to sums.
func (a *Args) aloneInLevels(in, out Part, sums, rooms unsafe.Pointer, place int) *levelPart {
	sum := out
	if reduce.Is16(a.DType) {
		sum.Data = sums
	}
	return &levelPart{before: []nodePhase{{prepare: func() error { return a.widen(sum, in) }}}, wire: a.onRailOf(rooms, place, sum, out)}
}

// widen makes the sum of a node that has this rank alone.
func (a *Args) widen(sum, in Part) error {
	switch {
	case reduce.Is16(a.DType):
		scaled := a.Reduce
		if scaled != op.PremulSum {
			scaled = op.Sum
		}
		fold := reduce.NewFold(a.DType, scaled, 1, a.Scale).To(op.Float32)
		fold.Run(sum.Data, []unsafe.Pointer{in.Data}, in.Count)
	case a.Reduce == op.PremulSum:
		return reduce.ScaleTo(sum.Data, in.Data, in.Count, a.DType, a.Scale)
	default:
		a.copyElements(sum.Data, in.Data, in.Count)
	}
	return nil
}

// onRailOf returns the sum of this rank's slice with those of its counterparts. own gets it, which may be sum.
func (a *Args) onRailOf(rooms unsafe.Pointer, place int, sum, own Part) *pieces {
	rail := a.Levels.Rail
	of := a.cut(own.Count, len(rail))
	get := a.views(own, of)
	return a.onRail(rooms, place, viewsOf(sum, of, a.sumElem()), get[slices.Index(rail, a.Rank)], get)
}

// onRail returns the sum of what this rank and its counterparts give. rooms is memory of railsScratch.
func (a *Args) onRail(rooms unsafe.Pointer, place int, give []Part, own Part, get []Part) *pieces {
	rooms = unsafe.Add(rooms, int64(place)*a.piecesScratch(len(a.Levels.Rail), a.sumElem()))
	return a.newRail(place, a.betweenNodes(), rooms, give, own, get)
}

// newRail returns an exchange with this rank's counterparts. Nothing is summed up if give is nil.
func (a *Args) newRail(place int, f reduce.Fold, room unsafe.Pointer, give []Part, own Part, get []Part) *pieces {
	x := a.newPieces(a.Levels.Rail, f, a.sumElem(), room, give, own, get)
	x.rail, x.tags = a.Levels.LocalRank, int32(place)*tagsOfPieces
	return x
}

// views returns slices of a tensor.
func (a *Args) views(whole Part, of []slice) []Part { return viewsOf(whole, of, a.elem()) }

func viewsOf(whole Part, of []slice, elem int64) []Part {
	parts := make([]Part, len(of))
	for i, s := range of {
		parts[i] = Part{Data: unsafe.Add(whole.Data, s.from*elem), Count: s.count}
	}
	return parts
}

// inHeap tells whether the other members on this node can map a tensor of this rank.
func (a *Args) inHeap(part Part) bool {
	own := heap.IfMade()
	if own == nil {
		return false
	}
	_, ok := own.Find(part.Data, part.Count*a.elem())
	return ok
}

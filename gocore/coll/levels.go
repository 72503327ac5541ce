package coll

import (
	"slices"
	"sync"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/heap"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/reduce"
)

// Levels is what a group over nodes needs to work in levels: its members on this node share memory, and each of the
// first ones is the end of a rail to the other nodes.
type Levels struct {
	mu    sync.Mutex
	Here  int            // this rank among the members on its node
	Many  int            // how many these are
	Rail  []int          // the members that exchange the slice of this rank, one of each node, in the order of the nodes; nil: none
	Nodes [][]int        // the members by node
	Stage unsafe.Pointer // nil before a collective first needs them: see Ready
	Part  unsafe.Pointer
	// Start begins a collective of the members on this node, and returns what tells whether it is over.
	Start func(d *op.Desc) (over func() (bool, error), err error)
}

// levelBytes is how much of a tensor goes through the levels at once. A rank has as much memory in its heap for a tensor
// that lies elsewhere (Stage), and for its slice (Part).
var levelBytes int64 = 16 << 20

// levelLeast is the least tensor in bytes for which the phases on the node cost less than they save on the wire.
var levelLeast int64 = 1 << 20

// partialBytes is the length of a partial sum of 16-bit floats.
const partialBytes = 4

// Partial tells whether to is the type of partial sums of 16-bit floats of type of.
func Partial(of, to op.DType) bool { return reduce.Is16(of) && to == op.Float32 }

// sumElem returns the bytes of an element of the sums of a node.
func (a *Args) sumElem() int64 {
	if reduce.Is16(a.DType) {
		return partialBytes
	}
	return a.elem()
}

// LevelBytes returns levelBytes.
func LevelBytes() int64 { return levelBytes }

// Ready takes Stage and Part from the heap of this process, unless that was done or the call does not need them. It tells
// whether this member can do the call in levels.
func (l *Levels) Ready(a *Args) bool {
	if a.Forced&WithoutLevels != 0 || !a.large() || !hasAlgorithm("levels", a.Code) && a.Code != op.AllReduceCoalesced {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.Many == 1 || l.Stage != nil {
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
	return a.piecesScratch(len(a.Levels.Rail), a.sumElem()) + a.inputScratch() + a.ownSumScratch()
}, build: func(a *Args, p *Program) error {
	input, err := a.inputApart(p)
	if err != nil {
		return err
	}
	room, err := a.piecesRoom(p, len(a.Levels.Rail), a.sumElem())
	if err != nil {
		return err
	}
	sum := Part{Data: a.Levels.Part}
	if bytes := a.ownSumScratch(); bytes > 0 {
		if sum.Data, err = p.Alloc(bytes); err != nil {
			return err
		}
	}
	step := levelBytes / a.sumElem()
	for from := int64(0); from == 0 || from < input.Count; from += step {
		n := min(step, input.Count-from)
		a.addLevels(p, room, Part{Data: a.at(input.Data, from), Count: n}, Part{Data: a.at(a.Recv[0].Data, from), Count: n}, sum)
	}
	return nil
}}

// ownSumScratch returns the memory for the sum of a node that has this rank alone. Only sums of 16-bit floats need it:
// others lie in the result.
func (a *Args) ownSumScratch() int64 {
	if a.Levels.Many > 1 || !reduce.Is16(a.DType) {
		return 0
	}
	return pad(min(levelBytes, max(1, a.Recv[0].Count)*partialBytes))
}

// inLevels tells whether all members can do the call in levels.
func inLevels(s *Sig) bool {
	return s.Rails > 0 && s.Agreed&ForLevels != 0 && s.large() && s.Forced&WithoutLevels == 0
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

// reduceScatterLevels: for each node, the members here sum up the parts of its members, each the part of its counterpart
// there. The counterparts exchange these sums. Bytes that leave a node: (1-1/N) of the input.
var reduceScatterLevels = Algorithm{Name: "levels", Memory: hostMemory, Enabled: onEvenNodes, polls: always, scratch: func(a *Args) int64 {
	return a.piecesScratch(len(a.Levels.Rail), a.sumElem()) + a.apartScratch()
}, build: func(a *Args, p *Program) error {
	sends, err := a.keepApart(p)
	if err != nil {
		return err
	}
	room, err := a.piecesRoom(p, len(a.Levels.Rail), a.sumElem())
	if err != nil {
		return err
	}
	l, parts := a.Levels, a.perRank(sends)
	nodes := int64(len(l.Nodes))
	step := levelBytes / a.sumElem() / max(nodes, int64(l.Many)) // Part has a sum for each node, Stage the parts for one node
	for from := int64(0); from == 0 || from < a.Count; from += step {
		n := min(step, a.Count-from)
		sums := make([]Part, nodes)
		for k, members := range l.Nodes {
			sums[k] = Part{Data: unsafe.Add(l.Part, int64(k)*n*a.sumElem()), Count: n}
			a.onNode(p, op.ReduceScatter, a.copied(p, chosen(a, parts, members, from, n)), sums[k:k+1])
		}
		a.addRail(p, room, sums, Part{Data: a.at(a.Recv[0].Data, from), Count: n}, nil)
	}
	return nil
}}

// allGatherLevels: counterparts exchange their parts. Then for each node the members here gather what they have of it.
// Bytes that leave a node: (N-1) times the parts of its members.
var allGatherLevels = Algorithm{Name: "levels", Memory: hostMemory, Enabled: onEvenNodes, polls: always, scratch: (*Args).apartScratch, build: func(a *Args, p *Program) error {
	sends, err := a.keepApart(p)
	if err != nil {
		return err
	}
	l, parts := a.Levels, a.perRank(a.Recv)
	nodes := int64(len(l.Nodes))
	step := levelBytes / a.elem() / max(nodes, int64(l.Many))
	for from := int64(0); from == 0 || from < a.Count; from += step {
		n := min(step, a.Count-from)
		got := make([]Part, nodes)
		for k := range got {
			got[k] = Part{Data: a.at(l.Part, int64(k)*n), Count: n}
		}
		mine := slices.Index(l.Rail, a.Rank)
		a.copySteps(p, got[mine:mine+1], []Part{{Data: a.at(sends[0].Data, from), Count: n}})
		a.addPieces(p, a.Levels.Rail, reduce.Fold{}, 0, nil, nil, got[mine], got)
		for k, members := range l.Nodes {
			results := chosen(a, parts, members, from, n)
			list := a.mappable(results)
			a.onNode(p, op.AllGather, got[k:k+1], list)
			a.copySteps(p, results, list)
		}
	}
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

// mappable returns parts, or as many parts one after the other in Stage if the other members on this node cannot map one
// of them.
func (a *Args) mappable(parts []Part) []Part {
	if !slices.ContainsFunc(parts, func(part Part) bool { return !a.inHeap(part) }) {
		return parts
	}
	list, from := make([]Part, len(parts)), int64(0)
	for i, part := range parts {
		list[i] = Part{Data: a.at(a.Levels.Stage, from), Count: part.Count}
		from += part.Count
	}
	return list
}

// copied returns mappable(parts), with a step that copies what they hold.
func (a *Args) copied(p *Program, parts []Part) []Part {
	list := a.mappable(parts)
	a.copySteps(p, list, parts)
	return list
}

// copySteps appends a copy of each part that is not in its place.
func (a *Args) copySteps(p *Program, to, from []Part) {
	if to[0].Data == from[0].Data {
		return // mappable returns all as they are, or none
	}
	p.Do(func() error {
		for i := range to {
			a.copyElements(to[i].Data, from[i].Data, from[i].Count)
		}
		return nil
	})
}

// addLevels appends the steps for a part of the tensor. sum is where this rank's slice of the node's sum goes.
func (a *Args) addLevels(p *Program, room unsafe.Pointer, in, out, sum Part) {
	l := a.Levels
	if l.Many == 1 {
		if sum.Count = in.Count; !reduce.Is16(a.DType) {
			sum.Data = out.Data
		}
		p.Do(func() error { return a.widen(sum, in) })
		a.addRailOf(p, room, sum, out)
		return
	}
	shares := append(a.cut(in.Count, a.Rails), make([]slice, l.Many-a.Rails)...)
	sum.Count = shares[l.Here].count
	a.onNode(p, op.ReduceScatter, a.views(a.copied(p, []Part{in})[0], shares), []Part{sum})
	own := sum
	if reduce.Is16(a.DType) {
		own.Data = unsafe.Add(l.Stage, levelBytes/2) // the half that no part of such a tensor needs
	}
	if l.Rail != nil {
		a.addRailOf(p, room, sum, own)
	}
	result := a.mappable([]Part{out})
	a.onNode(p, op.AllGather, []Part{own}, a.views(result[0], shares))
	a.copySteps(p, []Part{out}, result)
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

// addRailOf appends the sum of this rank's slice with those of its counterparts. own gets it, which may be sum.
func (a *Args) addRailOf(p *Program, room unsafe.Pointer, sum, own Part) {
	rail := a.Levels.Rail
	of := a.cut(own.Count, len(rail))
	get := a.views(own, of)
	a.addRail(p, room, viewsOf(sum, of, a.sumElem()), get[slices.Index(rail, a.Rank)], get)
}

// addRail appends a sum with this rank's counterparts (addPieces).
func (a *Args) addRail(p *Program, room unsafe.Pointer, give []Part, own Part, get []Part) {
	between, sums := a.Reduce, a.DType
	if between == op.PremulSum {
		between = op.Sum // each was multiplied on its node
	}
	if reduce.Is16(a.DType) {
		sums = op.Float32
	}
	a.addPieces(p, a.Levels.Rail, reduce.NewFold(sums, between, a.Size, 0).To(a.DType), a.sumElem(), room, give, own, get)
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

// onNode appends a collective of the members on this node.
func (a *Args) onNode(p *Program, code op.Code, sends, recvs []Part) {
	between := a.Reduce
	switch {
	case code == op.AllGather:
		between = 0
	case between == op.Avg:
		between = op.Sum // divided between the nodes, by the size of the whole group
	}
	var over func() (bool, error)
	p.UntilOver(func() (bool, error) {
		if over == nil {
			send, recv := a.bufs(sends), a.bufs(recvs)
			if code == op.ReduceScatter && reduce.Is16(a.DType) {
				recv[0].DType = op.Float32
			}
			d := op.Desc{Code: code, ReduceOp: between, Scale: a.Scale, Flags: op.FlagAsync, TimeoutNS: -1,
				NSend: int32(len(send)), Send: unsafe.Pointer(&send[0]), NRecv: int32(len(recv)), Recv: unsafe.Pointer(&recv[0])}
			var err error
			if over, err = a.Levels.Start(&d); err != nil {
				return false, err
			}
		}
		return over()
	}, nil, func() Phase { return Phase{OnNode, a.Levels.Here, -1} })
}

// bufs describes parts for another collective.
func (a *Args) bufs(parts []Part) []op.Buf {
	list := make([]op.Buf, len(parts))
	for i, part := range parts {
		list[i] = op.Buf{Data: part.Data, Count: part.Count, DType: a.DType, DeviceType: op.DeviceCPU}
	}
	return list
}

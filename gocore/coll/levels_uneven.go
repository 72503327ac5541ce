package coll

import (
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/reduce"
)

// This file has reduce_scatter and all_gather in levels where the rank i of each node cannot just take the share of the
// rank i of another: shares differ in length, or nodes in their number of ranks. The shares of the ranks of a node, one
// after the other, are the shares of the node. As many ranks as the smallest node has are the ends of rails, and each of
// them exchanges one slice of the shares of every node. So in the end the slices are gathered on the node, and each rank
// takes its share. Bytes that leave a node are those of even nodes.

// onUnevenNodes tells whether all members can do such a call in levels.
func onUnevenNodes(s *Sig) bool { return inLevels(s) && !onEvenNodes(s) }

// ofNode returns the parts of the members of a node, and how long they are together.
func ofNode(parts []Part, members []int) (list []Part, count int64) {
	for _, m := range members {
		list = append(list, parts[m])
	}
	return list, totalCount(list)
}

// across returns up to n elements, from number from on, of parts one after the other: the pieces that each part has of
// them, and how many they are.
func (a *Args) across(parts []Part, from, n int64) (list []Part, count int64) {
	for _, part := range parts {
		begin := min(from, part.Count)
		piece := Part{Data: a.at(part.Data, begin), Count: min(n-count, part.Count-begin)}
		list = append(list, piece)
		from, count = from-begin, count+piece.Count
	}
	return list, count
}

// inOne returns pieces as one part, for the other members on this node: as they are, or in memory at stage.
func (a *Args) inOne(stage unsafe.Pointer, pieces []Part) (whole Part, copied bool) {
	if whole, ok := a.joined(pieces); ok && a.inHeap(whole) {
		return whole, false
	}
	return Part{Data: stage, Count: totalCount(pieces)}, true
}

// gatherInto copies pieces to one part, and spread copies them back.
func (a *Args) gatherInto(whole Part, pieces []Part) {
	a.copyParts(a.apart(whole, pieces), pieces)
}

func (a *Args) spread(pieces []Part, whole Part) { a.copyParts(pieces, a.apart(whole, pieces)) }

// apart returns where in whole each piece is.
func (a *Args) apart(whole Part, pieces []Part) []Part {
	list, from := make([]Part, len(pieces)), int64(0)
	for i := range pieces {
		list[i] = Part{Data: a.at(whole.Data, from), Count: pieces[i].Count}
		from += pieces[i].Count
	}
	return list
}

// room hands out memory from at on, in cache lines.
type room struct{ at unsafe.Pointer }

func (r *room) take(bytes int64) unsafe.Pointer {
	at := r.at
	r.at = unsafe.Add(at, (bytes+63)&^63)
	return at
}

// unevenSteps returns how many elements of the shares of each node go in a part, and how many parts there are.
func (a *Args) unevenSteps(shares []Part) (step int64, count int) {
	step, count = a.levelStep(len(a.Levels.Nodes)+1), 1
	for _, members := range a.Levels.Nodes {
		_, n := ofNode(shares, members)
		count = max(count, parts(n, step))
	}
	return step, count
}

// home returns the node of this rank, and where its share begins among those of the node.
func (a *Args) home(shares []Part) (node int, begin int64) {
	node, place := a.Levels.seat(a.Rank)
	_, begin = ofNode(shares, a.Levels.Nodes[node][:place])
	return node, begin
}

var reduceScatterLevelsUneven = Algorithm{Name: "levels", Memory: hostMemory, Enabled: onUnevenNodes, polls: always, scratch: (*Args).scatteredScratch, build: func(a *Args, p *Program) error {
	given, rooms, err := a.scatteredOnRails(p)
	if err != nil {
		return err
	}
	step, count := a.unevenSteps(given)
	a.addInParts(p, count, func(part, place int) *levelPart {
		return a.scatteredUnevenly(given, int64(part)*step, step, rooms, place)
	})
	return nil
}}

// scatteredUnevenly is a part of a reduce_scatter.
func (a *Args) scatteredUnevenly(given []Part, from, step int64, rooms unsafe.Pointer, place int) *levelPart {
	l, made := a.Levels, &levelPart{}
	stage, memory := l.place(place)
	left := room{memory}
	sums := make([]Part, len(l.Nodes))
	var here int64 // elements of this node
	home, begin := a.home(given)
	for k, members := range l.Nodes {
		shares, _ := ofNode(given, members)
		inputs, n := a.across(shares, from, step)
		of := a.rails(n)
		if k == home {
			here = n
		}
		sums[k] = Part{Data: left.take(of[l.LocalRank].count * a.sumElem()), Count: of[l.LocalRank].count}
		if l.LocalSize == 1 {
			made.before = append(made.before, nodePhase{prepare: func() error { return a.widenAll(sums[k], inputs) }})
			continue
		}
		whole, copied := a.inOne(stage, inputs)
		made.before = append(made.before, nodePhase{code: op.ReduceScatter, sends: a.views(whole, of), recvs: sums[k : k+1], prepare: func() error {
			if copied {
				a.gatherInto(whole, inputs)
			}
			return nil
		}})
	}
	if l.LocalSize == 1 {
		mine, _ := a.across(a.Recv, from, here)
		made.wire = a.onRail(rooms, place, sums, mine[0], nil)
		return made
	}
	own := Part{Data: left.take(sums[home].Count * a.elem()), Count: sums[home].Count}
	if l.Rail != nil {
		made.wire = a.onRail(rooms, place, sums, own, nil)
	}
	whole := Part{Data: stage, Count: here}
	made.behind = []nodePhase{{code: op.AllGather, sends: []Part{own}, recvs: a.views(whole, a.rails(here)), finish: func() {
		mine, at := a.overlapOf(a.Recv[0], begin, from, here)
		a.copyElements(mine.Data, a.at(stage, at), mine.Count)
	}}}
	return made
}

// overlapOf returns what a share, which begins at element begin of those of its node, has of n elements from number from
// on, and where it begins there.
func (a *Args) overlapOf(share Part, begin, from, n int64) (part Part, at int64) {
	first := min(max(from, begin), begin+share.Count)
	last := max(first, min(from+n, begin+share.Count))
	return Part{Data: a.at(share.Data, first-begin), Count: last - first}, max(0, first-from)
}

// widenAll makes the sum of a node that has this rank alone of several pieces.
func (a *Args) widenAll(sum Part, pieces []Part) error {
	for _, piece := range pieces {
		sum.Count = piece.Count
		if err := a.widen(sum, piece); err != nil {
			return err
		}
		sum.Data = unsafe.Add(sum.Data, piece.Count*a.sumElem())
	}
	return nil
}

var allGatherLevelsUneven = Algorithm{Name: "levels", Memory: hostMemory, Enabled: onUnevenNodes, polls: always, scratch: (*Args).apartScratch, build: func(a *Args, p *Program) error {
	sends, err := a.keepApart(p)
	if err != nil {
		return err
	}
	results := a.perRank(a.Recv)
	step, count := a.unevenSteps(results)
	a.addInParts(p, count, func(part, place int) *levelPart {
		return a.gatheredUnevenly(sends[0], results, int64(part)*step, step, place)
	})
	return nil
}}

// gatheredUnevenly is a part of an all_gather.
func (a *Args) gatheredUnevenly(share Part, results []Part, from, step int64, place int) *levelPart {
	l, made := a.Levels, &levelPart{}
	stage, memory := l.place(place)
	left, staged := room{memory}, room{stage}
	home, begin := a.home(results)
	shares, _ := ofNode(results, l.Nodes[home])
	pieces, here := a.across(shares, from, step)
	whole := Part{Data: staged.take(here * a.elem()), Count: here} // what the ranks of this node have
	mine, _ := a.overlapOf(share, begin, from, here)
	first := nodePhase{finish: func() { a.spread(pieces, whole) }}
	if l.LocalSize == 1 {
		first.prepare = func() error {
			a.copyElements(whole.Data, mine.Data, mine.Count)
			return nil
		}
	} else {
		given := a.inStage(left.take(mine.Count*a.elem()), []Part{mine})
		first.code, first.sends, first.recvs = op.AllGather, given, a.apart(whole, pieces)
		first.prepare = func() error {
			a.copyParts(given, []Part{mine})
			return nil
		}
	}
	made.before = []nodePhase{first}
	got := make([]Part, len(l.Nodes))
	for k, members := range l.Nodes {
		shares, _ := ofNode(results, members)
		to, n := a.across(shares, from, step)
		of := a.rails(n)
		if k == home {
			got[k] = a.views(whole, of)[l.LocalRank]
			continue
		}
		got[k] = Part{Data: left.take(of[l.LocalRank].count * a.elem()), Count: of[l.LocalRank].count}
		if l.LocalSize == 1 {
			made.behind = append(made.behind, nodePhase{finish: func() { a.spread(to, got[k]) }})
			continue
		}
		theirs, copied := a.inOne(staged.at, to)
		made.behind = append(made.behind, nodePhase{code: op.AllGather, sends: got[k : k+1], recvs: a.views(theirs, of), finish: func() {
			if copied {
				a.spread(to, theirs)
			}
		}})
	}
	if l.Rail != nil {
		made.wire = a.newRail(place, reduce.Fold{}, nil, nil, got[home], got)
	}
	return made
}

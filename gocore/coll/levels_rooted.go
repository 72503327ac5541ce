package coll

import (
	"slices"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/reduce"
)

// broadcastLevels: the members of the root's node copy the tensor in the memory that they share. Each of the first ones
// sends a slice to its counterparts on the other nodes, which gather it there. Bytes that leave the root's node: (N-1)S
// for N nodes.
var broadcastLevels = Algorithm{Name: "levels", Memory: hostMemory, Enabled: inLevels, polls: always, build: func(a *Args, p *Program) error {
	step := a.levelStep(1)
	a.addInParts(p, parts(a.Count, step), func(part, place int) *levelPart {
		from := int64(part) * step
		return a.broadcastInLevels(Part{Data: a.at(a.Recv[0].Data, from), Count: min(step, a.Count-from)}, place)
	})
	return nil
}}

// reduceLevels: the first half of allReduceLevels, but the slices of all nodes are summed up on the root's node, and
// gathered there. Bytes that leave another node: S.
var reduceLevels = Algorithm{Name: "levels", Memory: hostMemory, Enabled: inLevels, polls: always, scratch: func(a *Args) int64 {
	if a.Rank == a.Root {
		return a.railsScratch() + a.inputScratch()
	}
	return a.railsScratch()
}, build: func(a *Args, p *Program) (err error) {
	input := a.Part()
	if a.Rank == a.Root {
		if input, err = a.inputApart(p); err != nil {
			return err
		}
	}
	rooms, err := p.Alloc(a.railsScratch())
	if err != nil {
		return err
	}
	step := a.levelStep(1)
	a.addInParts(p, parts(a.Count, step), func(part, place int) *levelPart {
		from := int64(part) * step
		n := min(step, a.Count-from)
		var out Part
		if a.Rank == a.Root {
			out = Part{Data: a.at(a.Recv[0].Data, from), Count: n}
		}
		return a.reducedToRoot(Part{Data: a.at(input.Data, from), Count: n}, out, rooms, place)
	})
	return nil
}}

// rootsNode returns the number of the root's node, the root's place there, and whether this rank is on it.
func (a *Args) rootsNode() (node, place int, here bool) {
	node, place = a.Levels.seat(a.Root)
	return node, place, slices.Contains(a.Levels.Nodes[node], a.Rank)
}

// broadcastInLevels is a part of a broadcast.
func (a *Args) broadcastInLevels(data Part, place int) *levelPart {
	l, made := a.Levels, &levelPart{}
	node, root, here := a.rootsNode()
	of := a.rails(data.Count)
	whole, own := data, data // of a rank that is alone on its node
	if l.LocalSize > 1 {
		stage, memory := l.place(place)
		whole = a.inStage(stage, []Part{data})[0]
		own = Part{Data: memory, Count: of[l.LocalRank].count}
	}
	if here {
		own = a.views(whole, of)[l.LocalRank]
	}
	back := func() { a.copyParts([]Part{data}, []Part{whole}) }
	switch {
	case l.LocalSize == 1:
	case here:
		phase := nodePhase{code: op.Broadcast, root: root, recvs: []Part{whole}, finish: back}
		if a.Rank == a.Root {
			phase.finish, phase.prepare = nil, func() error {
				a.copyParts([]Part{whole}, []Part{data})
				return nil
			}
		}
		made.before = []nodePhase{phase}
	default:
		made.behind = []nodePhase{{code: op.AllGather, sends: []Part{own}, recvs: a.views(whole, of), finish: back}}
	}
	if l.Rail == nil {
		return made
	}
	get := make([]Part, len(l.Nodes)) // only the root's node sends
	get[node] = own
	if !here {
		own = Part{}
	}
	made.wire = a.newRail(place, reduce.Fold{}, nil, nil, own, get)
	return made
}

// reducedToRoot is a part of a reduce. out is the root's result.
func (a *Args) reducedToRoot(in, out Part, rooms unsafe.Pointer, place int) *levelPart {
	l, made := a.Levels, &levelPart{}
	node, _, here := a.rootsNode()
	stage, _ := l.place(place)
	sum, own := a.sumPlaces(in.Count, place)
	if l.LocalSize == 1 {
		made.before = []nodePhase{{prepare: func() error { return a.widen(sum, in) }}}
		if here {
			own = out
		}
	} else {
		made.before = []nodePhase{a.sumOnNode(in, sum, place)}
	}
	if here && l.LocalSize > 1 {
		whole := Part{Data: stage, Count: in.Count}
		phase := nodePhase{code: op.AllGather, sends: []Part{own}}
		if a.Rank == a.Root {
			whole = a.inStage(stage, []Part{out})[0]
			phase.finish = func() { a.copyParts([]Part{out}, []Part{whole}) }
		}
		phase.recvs = a.views(whole, a.rails(in.Count))
		made.behind = []nodePhase{phase}
	}
	if l.Rail == nil {
		return made
	}
	give := make([]Part, len(l.Nodes)) // only the root's node takes
	give[node] = sum
	if !here {
		own = Part{}
	}
	made.wire = a.onRail(rooms, place, give, own, nil)
	return made
}

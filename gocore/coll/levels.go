package coll

import (
	"slices"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/heap"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/reduce"
)

// Levels is what a group over nodes needs to work in levels: its members on this node share memory, and each of the
// first ones is the end of a rail to the other nodes.
type Levels struct {
	Here  int   // this rank among the members on its node
	Many  int   // how many these are
	Rail  []int // the members that exchange the slice of this rank, one of each node, in the order of the nodes; nil: none
	Stage unsafe.Pointer
	Part  unsafe.Pointer
	// Start begins a collective of the members on this node, and returns what tells whether it is over.
	Start func(d *op.Desc) (over func() (bool, error), err error)
}

// levelBytes is how much of a tensor goes through the levels at once. A rank has as much memory in its heap for a tensor
// that lies elsewhere (Stage), and for its slice (Part).
var levelBytes int64 = 4 << 20

// LevelBytes returns the bytes of Stage and of Part.
func LevelBytes() int64 { return levelBytes }

// Beyond returns the memory behind Stage, for Part.
func Beyond(stage unsafe.Pointer) unsafe.Pointer { return unsafe.Add(stage, levelBytes) }

// allReduceLevels: the members of each node sum up in the memory that they share, each of the first ones a slice. It
// exchanges the slice with its counterparts on the other nodes (pieces), and the results are gathered on the node. So
// every byte crosses the wire once, however many members a node has. Bytes that leave a node: 2(1-1/N)S for N nodes.
//
// The sums are in rank order on a node, and in the order of the nodes between them. 16-bit floats are for other
// algorithms, because this one would round at each level.
var allReduceLevels = Algorithm{Name: "levels", Memory: hostMemory, Enabled: func(s *Sig) bool {
	return s.Rails > 0 && !reduce.Is16(s.DType)
}, polls: always, scratch: func(a *Args) int64 {
	return a.piecesScratch(len(a.Levels.Rail)) + a.inputScratch()
}, build: func(a *Args, p *Program) error {
	input, err := a.inputApart(p)
	if err != nil {
		return err
	}
	room, err := a.piecesRoom(p, len(a.Levels.Rail))
	if err != nil {
		return err
	}
	step := levelBytes / a.elem()
	for from := int64(0); from == 0 || from < input.Count; from += step {
		n := min(step, input.Count-from)
		a.addLevels(p, room, Part{Data: a.at(input.Data, from), Count: n}, Part{Data: a.at(a.Recv[0].Data, from), Count: n})
	}
	return nil
}}

// addLevels appends the steps for a part of the tensor.
func (a *Args) addLevels(p *Program, room unsafe.Pointer, in, out Part) {
	l := a.Levels
	if l.Many == 1 {
		p.Do(func() error {
			a.copyElements(out.Data, in.Data, in.Count)
			if a.Reduce == op.PremulSum {
				return a.scale(out)
			}
			return nil
		})
		a.addRail(p, room, out)
		return
	}
	shares := append(a.cut(in.Count, a.Rails), make([]slice, l.Many-a.Rails)...)
	own := Part{Data: l.Part, Count: shares[l.Here].count}
	if !a.inHeap(in) {
		staged := Part{Data: l.Stage, Count: in.Count}
		a.copyStep(p, staged, in)
		in = staged
	}
	a.onNode(p, op.ReduceScatter, a.views(in, shares), []Part{own})
	if l.Rail != nil {
		a.addRail(p, room, own)
	}
	result := out
	if !a.inHeap(out) {
		result.Data = l.Stage
	}
	a.onNode(p, op.AllGather, []Part{own}, a.views(result, shares))
	if result.Data != out.Data {
		a.copyStep(p, out, result)
	}
}

// addRail appends the exchange of a slice with this rank's counterparts.
func (a *Args) addRail(p *Program, room unsafe.Pointer, own Part) {
	rail := a.Levels.Rail
	parts := a.views(own, a.cut(own.Count, len(rail)))
	between := a.Reduce
	if between == op.PremulSum {
		between = op.Sum // each was multiplied on its node
	}
	a.addPieces(p, rail, reduce.NewFold(a.DType, between, a.Size, 0), room, parts, parts[slices.Index(rail, a.Rank)], parts)
}

// views returns slices of a tensor.
func (a *Args) views(whole Part, of []slice) []Part {
	parts := make([]Part, len(of))
	for i, s := range of {
		parts[i] = Part{Data: a.at(whole.Data, s.from), Count: s.count}
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

func (a *Args) copyStep(p *Program, to, from Part) {
	p.Do(func() error {
		a.copyElements(to.Data, from.Data, from.Count)
		return nil
	})
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
	p.Until(func() (bool, error) {
		if over == nil {
			send, recv := a.bufs(sends), a.bufs(recvs)
			d := op.Desc{Code: code, ReduceOp: between, Scale: a.Scale, Flags: op.FlagAsync, TimeoutNS: -1,
				NSend: int32(len(send)), Send: unsafe.Pointer(&send[0]), NRecv: int32(len(recv)), Recv: unsafe.Pointer(&recv[0])}
			var err error
			if over, err = a.Levels.Start(&d); err != nil {
				return false, err
			}
		}
		return over()
	})
}

// bufs describes parts for another collective.
func (a *Args) bufs(parts []Part) []op.Buf {
	list := make([]op.Buf, len(parts))
	for i, part := range parts {
		list[i] = op.Buf{Data: part.Data, Count: part.Count, DType: a.DType, DeviceType: op.DeviceCPU}
	}
	return list
}

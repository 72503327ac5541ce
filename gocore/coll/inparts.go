package coll

import (
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// partsAtOnce is how many parts of a tensor are in the levels at once, each with memory of its own.
const partsAtOnce = 2

// inParts takes a tensor through the levels in parts. While one part is on the wire, the members on this node sum up the
// next one, and gather the one before.
//
// All members on a node begin the phases there in one order: those before the wire of parts 0 and 1, those behind the
// wire of part 0, those before the wire of part 2, and so on. One is under way at a time.
type inParts struct {
	a           *Args
	total, each int64 // elements, of all parts and of one
	count       int   // parts
	make        func(*levelPart)
	rooms       unsafe.Pointer // of the exchanges that are under way at once; nil: nothing is summed up

	parts [partsAtOnce]*levelPart // those under way, by part % partsAtOnce
	turn  int                     // counts those phases on the node, one part's before or behind the wire, that are over
	at    int                     // the phase of these
	over  func() (bool, error)    // of the phase on the node that is under way; nil: none is
	sent  int                     // parts whose exchange is over
	done  int                     // parts that are over
	err   error
}

// levelPart is one part, and what is done with it.
type levelPart struct {
	a           *Args
	l           *Levels
	from, count int64          // its elements
	place       int            // which memory it has, below partsAtOnce
	stage, sums unsafe.Pointer // that memory: for what lies elsewhere, and for slices
	room        unsafe.Pointer // of the pieces that come in

	before []nodePhase
	wire   *pieces // nil: this rank has no rail
	behind []nodePhase
	number int
	ready  bool // before is over
	sent   bool
}

// nodePhase is a phase on the node: local work, then a collective of the members there if code is not 0, then copies.
type nodePhase struct {
	prepare      func()
	in           copies
	code         op.Code
	root         int // of the members on this node, of a broadcast
	sends, recvs []Part
	out          copies
}

// copies are what copyParts does.
type copies struct{ to, from []Part }

// addInParts appends a tensor of total elements, in parts of step elements; of one part if it is empty. make says what is
// done with a part when its turn comes.
func addInParts(a *Args, p *Program, total, step int64, make func(*levelPart)) (err error) {
	r := &inParts{a: a, total: total, each: step, count: int(max(1, (total+step-1)/step)), make: make}
	if a.Trait().Reduces {
		if r.rooms, err = p.Alloc(railsScratch(a)); err != nil {
			return err
		}
	}
	p.UntilOver(r.poll, r.requests, r.phase)
	return nil
}

// begin makes a part.
func (r *inParts) begin(number int) *levelPart {
	a, l, place := r.a, r.a.Levels, number%partsAtOnce
	from := int64(number) * r.each
	m := &levelPart{a: a, l: l, number: number, place: place, from: from, count: min(r.each, r.total-from)}
	if l.Stage != nil {
		at := int64(place) * (levelBytes / partsAtOnce)
		m.stage, m.sums = unsafe.Add(l.Stage, at), unsafe.Add(l.Part, at)
	}
	if r.rooms != nil {
		m.room = unsafe.Add(r.rooms, int64(place)*piecesScratch(a, len(l.Rail), sumElem(a.DType)))
	}
	r.make(m)
	r.parts[place] = m
	return m
}

// poll takes the parts further. After an error nothing more is begun, and it is over when nothing is under way.
func (r *inParts) poll() (over bool, err error) {
	for r.err == nil && (r.onNode() || r.onWire()) {
	}
	if r.err == nil {
		return r.done == r.count, nil
	}
	if r.busy() {
		return false, nil
	}
	return true, r.err
}

// phaseOf returns the part of a turn, and whether the turn is behind the wire.
func (r *inParts) phaseOf(turn int) (part int, behind bool) {
	switch {
	case turn == 0:
		return 0, false
	case turn%2 == 1 && turn/2+1 < r.count:
		return turn/2 + 1, false
	case turn%2 == 1: // there is no part for this turn
		return r.count, false
	}
	return turn/2 - 1, true
}

// onNode begins or ends a phase on the node, and tells whether it did.
func (r *inParts) onNode() bool {
	if r.done == r.count {
		return false
	}
	k, behind := r.phaseOf(r.turn)
	if k == r.count {
		r.turn++
		return true
	}
	part := r.part(k)
	if part == nil { // its place is free: the turns behind the wire come first
		part = r.begin(k)
	}
	list := part.before
	if behind {
		list = part.behind
		if r.sent <= k {
			return false // it is on the wire
		}
	}
	if r.at == len(list) {
		r.turn, r.at = r.turn+1, 0
		part.ready = true
		if behind {
			r.parts[k%partsAtOnce] = nil
			r.done++
		}
		return true
	}
	return r.step(&list[r.at])
}

// step begins or ends one phase.
func (r *inParts) step(phase *nodePhase) bool {
	if r.over == nil {
		if phase.prepare != nil {
			phase.prepare()
		}
		copyParts(r.a, phase.in.to, phase.in.from)
		if phase.code != 0 {
			var err error
			if r.over, err = startOnNode(r.a, phase); err != nil {
				return r.fail(err)
			}
		}
	}
	if r.over != nil {
		over, err := r.over()
		if !over && err == nil {
			return false
		}
		r.over = nil
		if err != nil {
			return r.fail(err)
		}
	}
	copyParts(r.a, phase.out.to, phase.out.from)
	r.at++
	return true
}

// onWire takes the exchanges with the other nodes further, and tells whether one has ended.
func (r *inParts) onWire() (ended bool) {
	for k := r.sent; k < min(r.sent+partsAtOnce, r.count); k++ {
		part := r.part(k)
		if part == nil || !part.ready || part.sent {
			continue
		}
		if part.sent = part.wire == nil; !part.sent {
			over, err := part.wire.poll()
			if err != nil {
				return r.fail(err)
			}
			part.sent = over
		}
	}
	for part := r.part(r.sent); part != nil && part.sent; part = r.part(r.sent) {
		r.sent++
		ended = true
	}
	return ended
}

// part returns a part if it is under way, else nil.
func (r *inParts) part(k int) *levelPart {
	if part := r.parts[k%partsAtOnce]; part != nil && part.number == k {
		return part
	}
	return nil
}

// fail keeps the first error, gives up what is on the wire, and tells the members on this node.
func (r *inParts) fail(err error) bool {
	r.err = err
	for _, part := range r.parts {
		if part != nil && part.wire != nil && part.ready && !part.sent && part.wire.err == nil {
			part.wire.giveUp(err)
		}
	}
	if r.over != nil {
		r.a.Levels.Phases.Fail(err) // else they may wait for a phase that this rank does not begin, and this rank for them
	}
	return false
}

// busy tells, after an error, whether messages or a phase on the node are still under way.
func (r *inParts) busy() (busy bool) {
	for _, part := range r.parts {
		if part != nil && part.wire != nil && part.ready && !part.sent {
			over, _ := part.wire.poll()
			busy = busy || !over
		}
	}
	if r.over != nil {
		if over, err := r.over(); over || err != nil {
			r.over = nil
		}
	}
	return busy || r.over != nil
}

// requests adds the messages under way to b.
func (r *inParts) requests(b *work.Batch) {
	for _, part := range r.parts {
		if part != nil && part.wire != nil && part.ready && !part.sent {
			part.wire.requests(b)
		}
	}
}

// phase tells what is waited for: the members on this node, if a phase there is under way, else the wire.
func (r *inParts) phase() Phase {
	if part := r.part(r.sent); r.over == nil && part != nil && part.ready && part.wire != nil {
		return part.wire.phase()
	}
	return Phase{OnNode, r.a.Levels.LocalRank, -1}
}

// startOnNode begins a collective of the members on this node.
func startOnNode(a *Args, phase *nodePhase) (over func() (bool, error), err error) {
	between := a.Reduce
	switch {
	case !phase.code.Trait().Reduces:
		between = 0
	case between == op.Avg:
		between = op.Sum // divided between the nodes, by the size of the whole group
	}
	send, recv := bufs(a, phase.sends), bufs(a, phase.recvs)
	if phase.code == op.ReduceScatter {
		recv[0].DType = sumType(a.DType)
	}
	return a.Levels.Phases.Start(&op.Desc{Code: phase.code, ReduceOp: between, Root: int32(phase.root), Scale: a.Scale, Flags: op.FlagAsync, TimeoutNS: -1,
		NSend: int32(len(send)), Send: unsafe.Pointer(unsafe.SliceData(send)), NRecv: int32(len(recv)), Recv: unsafe.Pointer(&recv[0])})
}

// bufs describes parts for another collective.
func bufs(a *Args, parts []Part) []op.Buf {
	list := make([]op.Buf, len(parts))
	for i, part := range parts {
		list[i] = op.Buf{Data: part.Data, Count: part.Count, DType: a.DType, DeviceType: op.DeviceCPU}
	}
	return list
}

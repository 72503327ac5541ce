package coll

import (
	"slices"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/reduce"
	"github.com/paddlempi/paddlempi/gocore/transport"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// Tags of the messages of pieces.
const (
	giveTag = ArrivalTag + 1 + iota
	getTag
)

// pieceBytes is the length of a message. Long parts go in pieces, so that the wire, the sum of the piece before and
// the way back of the one before that overlap.
var pieceBytes int64 = 256 << 10

// piecesAtOnce is how many pieces of one part are under way.
const piecesAtOnce = 3

// pieces exchanges parts between all pairs of ranks, in pieces, in up to two legs. First each rank gives each other rank
// the part of its input that this one sums up. Then it sends its sum to all. Each leg may be missing. A sum is in rank
// order, 16-bit floats in float32 with one rounding. So all ranks get the same bits, and the same from run to run.
//
// Bytes that leave a rank, for a tensor of S bytes: (1-1/n)S in each leg, which is the least possible.
type pieces struct {
	a    *Args
	me   int    // this rank among those that take part
	step int64  // elements of a piece
	give []Part // what this rank gives to each of them; nil: nothing is summed up
	own  Part   // where the sum goes; without a first leg, what this rank sends
	get  []Part // where the other ranks' sums go; nil: they stay where they are

	fold   reduce.Fold
	room   unsafe.Pointer // of the pieces that come in: piecesAtOnce for each rank
	srcs   []unsafe.Pointer
	peers  []peer // in the order in which this rank sends
	summed int64  // pieces of own
	err    error
}

// peer is another rank, and the messages with it that are under way.
type peer struct {
	rank                     int32
	i                        int // among those that take part
	given, taken, sent, gets track
}

// pieceStep returns the elements of a piece.
func (a *Args) pieceStep() int64 { return pieceBytes / a.elem() }

// piecesScratch returns the scratch memory of a sum over n ranks.
func (a *Args) piecesScratch(n int) int64 { return a.scratch(int64(n) * piecesAtOnce * a.pieceStep()) }

// piecesRoom takes that memory.
func (a *Args) piecesRoom(p *Program, n int) (unsafe.Pointer, error) {
	return a.alloc(p, int64(n)*piecesAtOnce*a.pieceStep())
}

// addPieces appends the exchange among the ranks who, in the order of the sum. f sums up, and room is from piecesRoom, unless give is nil.
func (a *Args) addPieces(p *Program, who []int, f reduce.Fold, room unsafe.Pointer, give []Part, own Part, get []Part) {
	x := &pieces{a: a, me: slices.Index(who, a.Rank), step: a.pieceStep(), fold: f, room: room, give: give, own: own, get: get}
	n := len(who)
	x.srcs = make([]unsafe.Pointer, n)
	for d := 1; d < n; d++ {
		i := (x.me + d) % n
		x.peers = append(x.peers, peer{rank: int32(who[i]), i: i})
	}
	p.UntilOver(x.poll, x.requests)
}

// piecesOf returns how many pieces a part has.
func (x *pieces) piecesOf(part Part) int64 { return (part.Count + x.step - 1) / x.step }

// piece returns where piece k of a part is, and its elements.
func (x *pieces) piece(part Part, k int64) (at unsafe.Pointer, elements int64) {
	return x.a.at(part.Data, k*x.step), min(x.step, part.Count-k*x.step)
}

// incoming returns where piece k of what number i of those that take part gives goes.
func (x *pieces) incoming(i int, k int64) unsafe.Pointer {
	return x.a.at(x.room, (int64(i)*piecesAtOnce+k%piecesAtOnce)*x.step)
}

// requests adds those that are under way to b.
func (x *pieces) requests(b *work.Batch) {
	poller := x.a.Wire.Poller()
	for i := range x.peers {
		for _, t := range x.peers[i].tracks() {
			t.addTo(b, poller)
		}
	}
}

// poll takes the exchange further, and tells whether it is over. After an error it starts nothing more, and it is over
// when nothing is under way.
func (x *pieces) poll() (over bool, err error) {
	wire, underWay := x.a.Wire, false
	for i := range x.peers {
		for _, r := range x.peers[i].tracks() {
			if err := r.reap(wire); err != nil && x.err == nil {
				x.err = err
				x.cancel()
			}
			underWay = underWay || r.ended < r.started
		}
	}
	if x.err != nil && underWay {
		return false, nil
	}
	if x.err != nil {
		return true, x.err
	}
	if err := x.start(); err != nil {
		x.err = err
		x.cancel()
		return false, nil
	}
	return x.over(), nil
}

// start starts what may start: receives before sends, because a message that finds no receive is copied.
func (x *pieces) start() error {
	wire, elem := x.a.Wire, x.a.elem()
	mine := x.piecesOf(x.own)
	for i := range x.peers {
		p := &x.peers[i]
		for x.give != nil && p.taken.started < mine && p.taken.started < x.summed+piecesAtOnce && !p.taken.full() {
			_, n := x.piece(x.own, p.taken.started)
			if err := p.taken.add(wire.Receive(x.incoming(p.i, p.taken.started), n*elem, p.rank, giveTag)); err != nil {
				return err
			}
		}
		if x.get != nil {
			last := x.piecesOf(x.get[p.i])
			if x.give != nil {
				last = min(last, p.given.ended) // in place, a piece is sent before what replaces it is received
			}
			for p.gets.started < last && !p.gets.full() {
				at, n := x.piece(x.get[p.i], p.gets.started)
				if err := p.gets.add(wire.Receive(at, n*elem, p.rank, getTag)); err != nil {
					return err
				}
			}
		}
	}
	for i := range x.peers {
		p := &x.peers[i]
		for x.give != nil && p.given.started < x.piecesOf(x.give[p.i]) && !p.given.full() {
			at, n := x.piece(x.give[p.i], p.given.started)
			if err := p.given.add(wire.Send(at, n*elem, p.rank, giveTag)); err != nil {
				return err
			}
		}
	}
	for x.summed < mine && x.mayPass() {
		if err := x.pass(); err != nil {
			return err
		}
	}
	return nil
}

// mayPass tells whether the next piece of own is there from all ranks, and may be sent.
func (x *pieces) mayPass() bool {
	for i := range x.peers {
		p := &x.peers[i]
		if x.give != nil && p.taken.ended == x.summed || x.get != nil && p.sent.full() {
			return false
		}
	}
	return true
}

// pass sums up the next piece of own, and sends it.
func (x *pieces) pass() error {
	at, n := x.piece(x.own, x.summed)
	if x.give != nil {
		for i := range x.srcs {
			x.srcs[i] = x.incoming(i, x.summed)
		}
		x.srcs[x.me], _ = x.piece(x.give[x.me], x.summed)
		x.fold.Run(at, x.srcs, n)
	}
	x.summed++
	if x.get == nil {
		return nil
	}
	for i := range x.peers {
		p := &x.peers[i]
		if err := p.sent.add(x.a.Wire.Send(at, n*x.a.elem(), p.rank, getTag)); err != nil {
			return err
		}
	}
	return nil
}

func (x *pieces) over() bool {
	mine := x.piecesOf(x.own)
	if x.summed < mine {
		return false
	}
	for i := range x.peers {
		p := &x.peers[i]
		if x.give != nil && p.given.ended < x.piecesOf(x.give[p.i]) ||
			x.get != nil && (p.sent.ended < mine || p.gets.ended < x.piecesOf(x.get[p.i])) {
			return false
		}
	}
	return true
}

// cancel gives up the receives: the other ranks may send nothing more.
func (x *pieces) cancel() {
	for i := range x.peers {
		x.peers[i].taken.cancel(x.a.Wire)
		x.peers[i].gets.cancel(x.a.Wire)
	}
}

func (p *peer) tracks() [4]*track { return [4]*track{&p.given, &p.taken, &p.sent, &p.gets} }

// track is the messages of one kind with a peer, in their order. They end in any order, and count as ended in theirs.
type track struct {
	started, ended int64
	requests       [piecesAtOnce]*transport.Request
}

// idle tells whether none is under way.
func (t *track) idle() bool { return t.started == t.ended }

func (t *track) full() bool { return t.started-t.ended == piecesAtOnce }

func (t *track) add(q *transport.Request, err error) error {
	if err == nil {
		t.requests[t.started%piecesAtOnce] = q
		t.started++
	}
	return err
}

// addTo adds those that are not done to b.
func (t *track) addTo(b *work.Batch, poller work.Poller) {
	for k := t.ended; k < t.started; k++ {
		if q := t.requests[k%piecesAtOnce]; q.Done == 0 {
			b.Add(poller, q.Address())
		}
	}
}

// reap releases those that have ended, and returns the first error.
func (t *track) reap(by transport.Requests) (first error) {
	for t.ended < t.started {
		q := t.requests[t.ended%piecesAtOnce]
		if q.Done == 0 {
			break
		}
		if err := by.Err(q); err != nil && first == nil {
			first = err
		}
		by.Release(q)
		t.ended++
	}
	return first
}

func (t *track) cancel(by transport.Endpoint) {
	for k := t.ended; k < t.started; k++ {
		if q := t.requests[k%piecesAtOnce]; q.Done == 0 {
			_ = by.Cancel(q)
		}
	}
}

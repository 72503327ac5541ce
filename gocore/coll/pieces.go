package coll

import (
	"slices"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/reduce"
	"github.com/paddlempi/paddlempi/gocore/transport"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// Tags of the messages of pieces. Exchanges that are under way at once have different ones: see inParts.
const (
	giveTag = ArrivalTag + 1 + iota
	getTag
	tagsOfPieces = iota
)

// Pieces says how long a message is, and how many of each kind are under way with each other rank. Long parts go in pieces, so that the
// wire, the sum of the piece before and the way back of the one before that overlap. The zero value is the usual one.
type Pieces struct {
	Bytes  int64 // of elements as the tensor has them
	AtOnce int64 // up to mostAtOnce
	// Whole says that each of two nodes gives its whole sum to the other one, and both add, as ranks do in allReduceDoubling.
	Whole bool
}

const mostAtOnce = 12

// usualPieces are shorter than the 64 KiB that Open MPI sends by TCP without asking the receiver first. Which are the fastest depends
// on the network and on the MPI: see Ways.
var usualPieces = Pieces{Bytes: 60 << 10, AtOnce: mostAtOnce}

func (a *Args) pieces() Pieces {
	if a.Pieces.Bytes == 0 {
		return usualPieces
	}
	return a.Pieces
}

// pieces exchanges parts between all pairs of ranks, in pieces, in up to two legs. First each rank gives each other rank
// the part of its input that this one sums up. Then it sends its sum to all. Each leg may be missing. What a rank gives
// to others and its own part may be one tensor: then it is in place, and a piece is sent before its sum replaces it. A sum is in rank
// order, 16-bit floats in float32 with one rounding. So all ranks get the same bits, and the same from run to run.
//
// Bytes that leave a rank, for a tensor of S bytes: (1-1/n)S in each leg, which is the least possible.
type pieces struct {
	a    *Args
	me   int // this rank among those that take part
	rail int
	tags int32  // is added to the tags
	step int64  // elements of a piece
	most int64  // pieces of one kind that are under way with a peer
	elem int64  // bytes of an element of the first leg: those of partial sums are longer (Partial)
	give []Part // what this rank gives to each of them; nil: nothing is summed up
	own  Part   // where the sum goes; without a first leg, what this rank sends
	each []Part // without a first leg: what this rank sends to each of them, as long as own; nil: own
	get  []Part // where the other ranks' sums go; nil: they stay where they are

	meanwhile func() // local work for when the first messages are under way; nil: none

	fold   reduce.Fold
	room   unsafe.Pointer // of the pieces that come in: most for each peer
	srcs   []unsafe.Pointer
	peers  []peer // in the order in which this rank sends
	summed int64  // pieces of own
	failed int    // the rank whose message failed
	err    error
}

// peer is another rank, and the messages with it that are under way.
type peer struct {
	rank                     int32
	i                        int   // among those that take part
	place                    int64 // in room
	given, taken, sent, gets track
}

// piecesOf returns how many pieces a part has.
func (x *pieces) piecesOf(part Part) int64 { return (part.Count + x.step - 1) / x.step }

// piece returns where piece k of a part is, whose elements have elem bytes, and its elements.
func (x *pieces) piece(part Part, elem, k int64) (at unsafe.Pointer, elements int64) {
	from := k * x.step
	return unsafe.Add(part.Data, from*elem), min(x.step, part.Count-from)
}

// piecesScratch returns the scratch memory of a sum over n ranks, whose elements have elem bytes.
func piecesScratch(a *Args, n int, elem int64) int64 {
	of := a.pieces()
	return pad(int64(n-1) * of.AtOnce * (of.Bytes / a.elem()) * elem)
}

// addPieces appends the exchange among all ranks. Nothing is summed up if give is nil.
func addPieces(a *Args, p *Program, give []Part, own Part, get []Part) (x *pieces, err error) {
	x = &pieces{a: a, elem: a.elem(), give: give, own: own, get: get}
	if give != nil {
		x.fold = reduce.NewFold(a.DType, a.Reduce, a.Size, a.Scale)
		if x.room, err = p.Alloc(piecesScratch(a, a.Size, x.elem)); err != nil {
			return nil, err
		}
	}
	x.among(transport.EveryRank(a.Size))
	p.UntilOver(x.poll, x.requests, x.phase)
	return x, nil
}

// among says who takes part, in the order of the sum.
func (x *pieces) among(who []int) {
	n, of := len(who), x.a.pieces()
	x.me, x.step, x.most, x.failed = slices.Index(who, x.a.Rank), of.Bytes/x.a.elem(), of.AtOnce, -1
	x.srcs = make([]unsafe.Pointer, n)
	for d := 1; d < n; d++ {
		i := (x.me + d) % n
		x.peers = append(x.peers, peer{rank: int32(who[i]), i: i, place: int64(d - 1)})
	}
}

// incoming returns where piece k of what a peer gives goes.
func (x *pieces) incoming(p *peer, k int64) unsafe.Pointer {
	return unsafe.Add(x.room, (p.place*x.most+k%x.most)*x.step*x.elem)
}

// phase names the rank that this one waits for: first one that has not sent all of its part, then one that has not taken
// all of this rank's.
func (x *pieces) phase() Phase {
	phase := Phase{BetweenNodes, x.rail, -1}
	if x.err != nil {
		phase.Partner = x.failed
		return phase
	}
	for i := range x.peers {
		p := &x.peers[i]
		if x.give != nil && p.taken.ended < x.piecesOf(x.own) || x.get != nil && p.gets.ended < x.piecesOf(x.get[p.i]) {
			phase.Partner = int(p.rank)
			return phase
		}
		if phase.Partner < 0 && !(p.given.idle() && p.sent.idle()) {
			phase.Partner = int(p.rank)
		}
	}
	return phase
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
	underWay := false
	for i := range x.peers {
		for _, r := range x.peers[i].tracks() {
			if err := x.reap(r, x.peers[i].rank); err != nil && x.err == nil {
				x.failed = int(x.peers[i].rank)
				x.giveUp(err)
			}
			underWay = underWay || !r.idle()
		}
	}
	if x.err != nil && underWay {
		return false, nil
	}
	if x.err != nil {
		return true, x.err
	}
	if err := x.start(); err != nil {
		x.giveUp(err)
		return false, nil
	}
	if x.meanwhile != nil {
		x.meanwhile()
		x.meanwhile = nil
	}
	return x.over(), nil
}

// start starts what may start: receives before sends, because a message that finds no receive is copied. It sums up the
// pieces that have come, and sends the sums.
func (x *pieces) start() error {
	for {
		for i := range x.peers {
			if err := x.receive(&x.peers[i]); err != nil {
				return x.failedWith(&x.peers[i], err)
			}
		}
		for i := range x.peers {
			if err := x.sendGiven(&x.peers[i]); err != nil {
				return x.failedWith(&x.peers[i], err)
			}
		}
		if x.summed == x.piecesOf(x.own) || !x.mayPass() {
			return nil
		}
		if err := x.pass(); err != nil {
			return err
		}
	}
}

// receive starts the receives from a peer: what it gives, and its sums.
func (x *pieces) receive(p *peer) error {
	wire, last := x.a.Wire, int64(0)
	if x.give != nil {
		last = min(x.piecesOf(x.own), x.summed+x.most)
	}
	for p.taken.started < last {
		_, n := x.piece(x.own, 0, p.taken.started)
		if err := p.taken.receive(wire, x.incoming(p, p.taken.started), n*x.elem, p.rank, giveTag+x.tags); err != nil {
			return err
		}
	}
	if x.get == nil {
		return nil
	}
	elem, last := x.a.elem(), x.piecesOf(x.get[p.i])
	if x.give != nil {
		last = min(last, p.given.ended) // in place, a piece is sent before what replaces it is received
	}
	for p.gets.started < last && !p.gets.full(x.most) {
		at, n := x.piece(x.get[p.i], elem, p.gets.started)
		if err := p.gets.receive(wire, at, n*elem, p.rank, getTag+x.tags); err != nil {
			return err
		}
	}
	return nil
}

// sendGiven starts the messages of what this rank gives to a peer.
func (x *pieces) sendGiven(p *peer) error {
	for x.give != nil && p.given.started < x.piecesOf(x.give[p.i]) && !p.given.full(x.most) {
		at, n := x.piece(x.give[p.i], x.elem, p.given.started)
		if err := p.given.send(x.a.Wire, at, n*x.elem, p.rank, giveTag+x.tags); err != nil {
			return err
		}
	}
	return nil
}

// mayPass tells whether the next piece of own is there from all ranks, and may be written and sent: in place, what it
// replaces was sent.
func (x *pieces) mayPass() bool {
	for i := range x.peers {
		p := &x.peers[i]
		if x.get != nil && p.sent.full(x.most) || x.give != nil && p.taken.ended == x.summed {
			return false
		}
		if x.give != nil && x.give[p.i].Data == x.own.Data && p.given.ended < min(x.summed+1, x.piecesOf(x.give[p.i])) {
			return false
		}
	}
	return true
}

// pass sums up the next piece of own, and sends it.
func (x *pieces) pass() error {
	at, n := x.piece(x.own, x.a.elem(), x.summed)
	if x.give != nil {
		for i := range x.peers {
			x.srcs[x.peers[i].i] = x.incoming(&x.peers[i], x.summed)
		}
		x.srcs[x.me], _ = x.piece(x.give[x.me], x.elem, x.summed)
		x.fold.Run(at, x.srcs, n)
	}
	x.summed++
	if x.get == nil {
		return nil
	}
	for i := range x.peers {
		p := &x.peers[i]
		if x.each != nil {
			at, _ = x.piece(x.each[p.i], x.a.elem(), p.sent.started)
		}
		if err := p.sent.send(x.a.Wire, at, n*x.a.elem(), p.rank, getTag+x.tags); err != nil {
			return x.failedWith(p, err)
		}
	}
	return nil
}

// failedWith keeps whose message it was.
func (x *pieces) failedWith(p *peer, err error) error {
	x.failed = int(p.rank)
	return err
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

// giveUp ends the exchange because of err: it starts nothing more, and gives up the receives, because the other ranks may
// send nothing more.
func (x *pieces) giveUp(err error) {
	x.err = err
	for i := range x.peers {
		x.peers[i].taken.cancel(x.a.Wire)
		x.peers[i].gets.cancel(x.a.Wire)
	}
}

func (p *peer) tracks() [4]*track { return [4]*track{&p.given, &p.taken, &p.sent, &p.gets} }

// track is the messages of one kind with a peer, in their order. They end in any order, and count as ended in theirs.
type track struct {
	started, ended int64
	requests       [mostAtOnce]*transport.Request
	bytes          [mostAtOnce]int64 // of a message that is received
}

// idle tells whether none is under way.
func (t *track) idle() bool { return t.started == t.ended }

func (t *track) full(most int64) bool { return t.started-t.ended == most }

func (t *track) send(by transport.Endpoint, data unsafe.Pointer, bytes int64, to, tag int32) error {
	q, err := by.Send(data, bytes, to, tag)
	return t.add(q, -1, err)
}

func (t *track) receive(by transport.Endpoint, data unsafe.Pointer, bytes int64, from, tag int32) error {
	q, err := by.Receive(data, bytes, from, tag)
	return t.add(q, bytes, err)
}

func (t *track) add(q *transport.Request, bytes int64, err error) error {
	if err == nil {
		k := t.started % mostAtOnce
		t.requests[k], t.bytes[k] = q, bytes
		t.started++
	}
	return err
}

// addTo adds those that are not done to b.
func (t *track) addTo(b *work.Batch, poller work.Poller) {
	for k := t.ended; k < t.started; k++ {
		if q := t.requests[k%mostAtOnce]; !q.Done() {
			b.Add(poller, q.Address())
		}
	}
}

// reap releases those of t, of messages with a rank, that have ended, and returns the first error.
func (x *pieces) reap(t *track, rank int32) (first error) {
	by := x.a.Wire
	for t.ended < t.started {
		k := t.ended % mostAtOnce
		q := t.requests[k]
		if !q.Done() {
			break
		}
		err := by.Err(q)
		if err == nil && t.bytes[k] >= 0 && q.Cancelled == 0 && q.Bytes != t.bytes[k] {
			err = x.a.notAsAgreed(int(rank))
		}
		if err != nil && first == nil {
			first = err
		}
		by.Release(q)
		t.ended++
	}
	return first
}

func (t *track) cancel(by transport.Endpoint) {
	for k := t.ended; k < t.started; k++ {
		if q := t.requests[k%mostAtOnce]; !q.Done() {
			_ = by.Cancel(q)
		}
	}
}

package coll

import (
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/reduce"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// allReduceDoubling serves two ranks on two nodes. Each gives its whole tensor to the other one, in pieces, and both sum
// up. That is recursive doubling (Thakur, Rabenseifner, Gropp 2005), and for two ranks as many bytes leave a rank as
// leave it by slices: S. But no message waits for a sum, so the wire is never idle; each rank does the whole sum for it.
var allReduceDoubling = Algorithm{Name: "doubling", Memory: hostMemory, Enabled: func(s *Sig) bool {
	return onApartNodes(s) && s.Size == 2
}, polls: always, scratch: func(a *Args) int64 {
	return a.scratch(piecesAtOnce*a.pieceStep()) + a.inputScratch()
}, build: func(a *Args, p *Program) error {
	input, err := a.inputApart(p)
	if err != nil {
		return err
	}
	x := &doubling{a: a, fold: a.newFold(), mine: input, result: a.Recv[0], srcs: make([]unsafe.Pointer, 2)}
	if x.room, err = a.alloc(p, piecesAtOnce*a.pieceStep()); err != nil {
		return err
	}
	p.UntilOver(x.poll, x.requests, x.phase)
	return nil
}}

// doubling is the exchange of a tensor with the other rank. A sum is in rank order, so both get the same bits.
type doubling struct {
	a      *Args
	fold   reduce.Fold
	mine   Part           // what this rank gives; it may be result
	result Part           // where the sum goes
	room   unsafe.Pointer // of the pieces that come in
	sent   track
	taken  track
	summed int64 // pieces of result
	srcs   []unsafe.Pointer
	err    error
}

func (x *doubling) other() int { return 1 - x.a.Rank }

func (x *doubling) phase() Phase { return Phase{BetweenNodes, 0, x.other()} }

func (x *doubling) requests(b *work.Batch) {
	poller := x.a.Wire.Poller()
	x.sent.addTo(b, poller)
	x.taken.addTo(b, poller)
}

// poll takes the exchange further, and tells whether it is over. After an error it starts nothing more, and it is over
// when nothing is under way.
func (x *doubling) poll() (over bool, err error) {
	for _, t := range []*track{&x.taken, &x.sent} {
		if err := x.a.reap(t, x.other()); err != nil {
			x.fail(err)
		}
	}
	if x.err == nil {
		if err := x.start(); err != nil {
			x.fail(err)
		}
	}
	if x.err != nil {
		if x.sent.idle() && x.taken.idle() {
			return true, x.err
		}
		return false, nil
	}
	return x.summed == x.pieces() && x.sent.idle(), nil
}

// fail keeps the first error, and gives up the receives: the other rank may send nothing more.
func (x *doubling) fail(err error) {
	if x.err == nil {
		x.err = err
		x.taken.cancel(x.a.Wire)
	}
}

func (x *doubling) pieces() int64 { return x.a.piecesOf(x.result) }

func (x *doubling) incoming(k int64) unsafe.Pointer {
	return x.a.at(x.room, k%piecesAtOnce*x.a.pieceStep())
}

// start sums up the pieces that have come, and starts what may start: receives before sends, because a message that finds
// no receive is copied.
func (x *doubling) start() error {
	wire, elem, other := x.a.Wire, x.a.elem(), int32(x.other())
	for {
		for x.taken.started < min(x.pieces(), x.summed+piecesAtOnce) {
			_, n := x.a.piece(x.result, x.taken.started)
			if err := x.taken.receive(wire, x.incoming(x.taken.started), n*elem, other, giveTag); err != nil {
				return err
			}
		}
		for x.sent.started < x.pieces() && !x.sent.full() {
			at, n := x.a.piece(x.mine, x.sent.started)
			if err := x.sent.send(wire, at, n*elem, other, giveTag); err != nil {
				return err
			}
		}
		// In place, a piece is sent before the sum replaces it.
		if x.summed == x.taken.ended || x.mine.Data == x.result.Data && x.summed == x.sent.ended {
			return nil
		}
		at, n := x.a.piece(x.result, x.summed)
		x.srcs[x.a.Rank], _ = x.a.piece(x.mine, x.summed)
		x.srcs[x.other()] = x.incoming(x.summed)
		x.fold.Run(at, x.srcs, n)
		x.summed++
	}
}

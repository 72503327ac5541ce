package messages

import (
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/cuda"
	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/transport"
)

// A message of more than longest bytes may go in pieces, so that tensors that are not contiguous, lists of tensors and
// tensors in device memory need no copy of the whole. Neither side knows how the tensors of the other lie, so all messages
// of that length begin alike:
//
//  1. The sender sends a header in the place of the message, which a receive or a probe finds by source and tag.
//  2. The receiver answers that it takes the message, whole or in pieces, or that it has no room of that length. It is
//     whole if on both sides the transport can be given the address of all of it.
//  3. The sender sends the message, or its pieces, of which two are under way.
//
// Answers and pieces have tags of their own, on the communicator of the group's collectives.
const (
	longest    = 16 << 20
	pieceBytes = longest / lanes
	lanes      = 2 // pieces under way
)

// LongTag is the first of the tags of answers and pieces. There are two for each of longIDs messages.
const (
	LongTag = 1 << 11
	longIDs = 1 << 12
)

// header is what is sent in the place of a long message. No receive of longest bytes or less takes it for its message.
type header struct {
	mark uint64
	// what has the length in its upper 44 bits, then 12 bits with the number of the message, then whether the sender has
	// it in one place.
	what uint64
}

const (
	headerMark  = 0x9d3c_51e7_0b86_f24d // no message is likely to begin with it
	headerBytes = 16
	wholeBit    = 1
	idShift     = 8
	lengthShift = 20
)

func (h header) whole() bool   { return h.what&wholeBit != 0 }
func (h header) id() int32     { return int32(h.what >> idShift & (longIDs - 1)) }
func (h header) length() int64 { return int64(h.what >> lengthShift) }

// The answers.
const (
	noRoom   = 1 + iota // the receiver has no room of that length: nothing is sent
	inWhole             // in one message
	inPieces            // in pieces
)

// requestsOfTransfer is the most requests of a transfer that are under way at once.
const requestsOfTransfer = 2 + lanes

// long is the part of a transfer that follows the header.
type long struct {
	tr     *transfer
	on     transport.Endpoint // of answers and pieces
	block  unsafe.Pointer     // room for two pieces, or for what comes instead of a header; nil if the tensor is that room
	words  unsafe.Pointer     // the header, and behind it the answer
	id     int32
	peer   int32 // the other rank, once it is known
	answer *transport.Request

	announced bool  // the header has come, or was sent
	length    int64 // of the message that was announced
	begun     bool  // the pieces, or the whole, are under way
	step      int64 // bytes of a piece
	next      int64 // the first byte that no request or copy was started for
	lanes     [lanes]pieceLane
	over      bool
	gaveUp    bool // it was given up: nothing more will come
	err       error
}

// pieceLane is a piece under way. It is copied and then sent, or received and then copied.
type pieceLane struct {
	request *transport.Request // nil: none
	copied  cuda.Event         // the end of its copy; 0: none
	from, n int64
}

// newLong prepares a long message.
func (g *Messages) newLong(tr *transfer) (*long, error) {
	l := &long{tr: tr, peer: tr.peer, length: tr.bytes}
	var err error
	if l.on, err = g.sideEndpoint(); err != nil {
		return nil, err
	}
	if l.words, err = mem.Alloc(headerBytes + 8); err != nil {
		return nil, err
	}
	inPlace := tr.data != nil && tr.onDevice == nil
	if tr.receives && !inPlace || tr.data == nil && tr.onDevice == nil {
		l.block, err = mem.Alloc(longest) // what is not used of it takes no memory
	}
	if !tr.receives {
		l.id = int32(g.longs.Add(1) % longIDs)
	}
	return l, err
}

func (l *long) header() *header { return (*header)(l.words) }
func (l *long) word() *uint64   { return (*uint64)(unsafe.Add(l.words, headerBytes)) }

// tag returns the tag of the answer, or of the pieces.
func (l *long) tag(pieces bool) int32 {
	if pieces {
		return LongTag + 2*l.id + 1
	}
	return LongTag + 2*l.id
}

// announce sends the header.
func (l *long) announce(comm transport.Endpoint) (*transport.Request, error) {
	h := header{headerMark, uint64(l.length)<<lengthShift | uint64(l.id)<<idShift}
	if l.tr.data != nil {
		h.what |= wholeBit
	}
	*l.header(), *l.word(), l.announced = h, 0, true
	var err error
	if l.answer, err = l.on.Receive(unsafe.Pointer(l.word()), 8, l.peer, l.tag(false)); err != nil {
		return nil, err
	}
	return comm.Send(l.words, headerBytes, l.peer, l.tr.tag)
}

// follow takes the part of a transfer behind its first message further. Also a receive for a short message looks whether
// it has taken a header: then the sender waits for its answer.
func (m *message) follow(tr *transfer) {
	if tr.request == nil || tr.request.Done == 0 || tr.dropped || tr.long != nil && tr.long.over {
		return
	}
	if tr.receives && (tr.long == nil || !tr.long.announced) {
		h, ok := m.headerIn(tr)
		if !ok {
			if tr.long != nil {
				tr.long.over = true // outcome says what has come instead
			}
			return
		}
		if tr.long == nil {
			tr.long = &long{tr: tr}
			tr.long.on, tr.long.err = m.g.sideEndpoint()
			if tr.long.err == nil {
				tr.long.words, tr.long.err = mem.Alloc(headerBytes + 8)
			}
		}
		if tr.long.err == nil {
			tr.long.err = tr.long.reply(h)
		}
	}
	l := tr.long
	if l == nil {
		return
	}
	if m.comm.Err(tr.request) != nil {
		l.over = l.answer == nil // the header was not sent
		l.leave()
	}
	if err := l.poll(); err != nil && l.err == nil {
		l.err = err
	}
	if l.err != nil || l.gaveUp {
		l.endEarly()
	}
	m.g.Env.Engine.CalledMPI()
}

// headerIn returns the header that a receive has taken, if it has taken one. In device memory nothing is looked for: the
// sender of a long message that comes there, in the place of one of headerBytes, gets no answer.
func (m *message) headerIn(tr *transfer) (header, bool) {
	r := tr.request
	if r.Bytes != headerBytes || r.Cancelled != 0 || m.comm.Err(r) != nil {
		return header{}, false
	}
	data, room := tr.room()
	if room < headerBytes || tr.onDevice != nil && tr.onDevice.blocks[0] == nil && tr.long == nil {
		return header{}, false
	}
	h := *(*header)(data)
	return h, h.mark == headerMark
}

// reply answers a header. If there is room for the message, its pieces can come then.
func (l *long) reply(h header) error {
	tr := l.tr
	l.announced, l.peer, l.id, l.length = true, tr.request.Source, h.id(), h.length()
	answer := uint64(noRoom)
	if l.length == tr.bytes {
		answer = inPieces
		if h.whole() && tr.data != nil {
			answer = inWhole
		}
		if err := l.begin(answer); err != nil {
			return err
		}
	}
	*l.word() = answer
	var err error
	l.answer, err = l.on.Send(unsafe.Pointer(l.word()), 8, l.peer, l.tag(false))
	return err
}

// poll takes l further.
func (l *long) poll() error {
	if l.answer != nil && l.answer.Done != 0 {
		err, cancelled := l.on.Err(l.answer), l.answer.Cancelled != 0
		l.on.Release(l.answer)
		if l.answer = nil; err != nil || cancelled {
			l.gaveUp = cancelled
			return err
		}
		if !l.tr.receives {
			if err := l.begin(*l.word()); err != nil || l.over {
				return err
			}
		}
	}
	if !l.begun {
		l.over = l.tr.receives && l.answer == nil // a receive without room has answered; a sender waits for the answer
		return nil
	}
	return l.move()
}

// begin begins to send or to receive as the receiver has answered.
func (l *long) begin(answer uint64) error {
	switch answer {
	case noRoom:
		l.over = true
		return nil
	case inWhole:
		l.step = l.length
	case inPieces:
		l.step = pieceBytes
	default:
		return status.New(status.MPI, "rank %d of the group has answered %d to a message: it is damaged", l.peer, answer)
	}
	l.begun = true
	return l.move()
}

// move takes the pieces further.
func (l *long) move() error {
	busy := false
	for i := range l.lanes {
		if err := l.moveLane(i); err != nil {
			return err
		}
		busy = busy || l.lanes[i].request != nil || l.lanes[i].copied != 0
	}
	l.over = !busy && l.next >= l.length && l.answer == nil
	return nil
}

// moveLane takes the piece of a lane as far as it can be, and then begins the next one.
func (l *long) moveLane(i int) error {
	ln, tr := &l.lanes[i], l.tr
	for {
		switch {
		case ln.copied != 0:
			d := tr.onDevice.device
			if done, err := d.Query(ln.copied); !done || err != nil {
				return err
			}
			d.PutEvent(ln.copied)
			ln.copied = 0
			if !tr.receives {
				if err := l.transfer(i); err != nil {
					return err
				}
			}
		case ln.request != nil:
			if ln.request.Done == 0 {
				return nil
			}
			err, cancelled := l.on.Err(ln.request), ln.request.Cancelled != 0
			if err == nil && !cancelled && tr.receives && ln.request.Bytes != ln.n {
				err = status.New(status.MPI, "a piece of %d bytes of a message of %d bytes has come with %d", ln.n, l.length, ln.request.Bytes)
			}
			l.on.Release(ln.request)
			ln.request = nil
			if cancelled {
				l.gaveUp = true
			}
			if err != nil || cancelled {
				return err
			}
			if tr.receives {
				if err := l.copy(i); err != nil {
					return err
				}
			}
		case l.next >= l.length || l.gaveUp || l.err != nil:
			return nil
		default:
			ln.from, ln.n = l.next, min(l.step, l.length-l.next)
			l.next += ln.n
			if !tr.receives {
				if err := l.copy(i); err != nil {
					return err
				}
			}
			if ln.copied == 0 {
				if err := l.transfer(i); err != nil {
					return err
				}
			}
		}
	}
}

// place returns where the piece of a lane is given to the transport.
func (l *long) place(i int) unsafe.Pointer {
	switch {
	case l.tr.data != nil:
		return unsafe.Add(l.tr.data, l.lanes[i].from)
	case l.tr.onDevice != nil:
		return l.tr.onDevice.blocks[i].Data
	}
	return unsafe.Add(l.block, int64(i)*pieceBytes)
}

func (l *long) transfer(i int) (err error) {
	ln := &l.lanes[i]
	if l.tr.receives {
		ln.request, err = l.on.Receive(l.place(i), ln.n, l.peer, l.tag(true))
	} else {
		ln.request, err = l.on.Send(l.place(i), ln.n, l.peer, l.tag(true))
	}
	return err
}

// copy copies a piece between the tensors and its block, or queues that copy.
func (l *long) copy(i int) (err error) {
	ln := &l.lanes[i]
	switch {
	case l.tr.data != nil:
		return nil
	case l.tr.onDevice != nil:
		ln.copied, err = l.tr.onDevice.move(l.place(i), ln.from, ln.n)
		return err
	}
	return l.tr.packed.copy(l.place(i), ln.from, ln.n, l.tr.receives, 0)
}

// endEarly ends l after an error, when nothing of it is under way.
func (l *long) endEarly() {
	busy := l.answer != nil && l.answer.Done == 0
	for i := range l.lanes {
		busy = busy || l.lanes[i].request != nil && l.lanes[i].request.Done == 0
	}
	l.over = !busy
}

// leave cancels what l still waits to receive.
func (l *long) leave() {
	l.gaveUp = true
	if l.answer != nil && !l.tr.receives && l.answer.Done == 0 {
		_ = l.on.Cancel(l.answer)
	}
	for i := range l.lanes {
		if r := l.lanes[i].request; r != nil && l.tr.receives && r.Done == 0 {
			_ = l.on.Cancel(r)
		}
	}
}

func (l *long) pending(list []uintptr) []uintptr {
	if l.answer != nil && l.answer.Done == 0 {
		list = append(list, l.answer.Address())
	}
	for i := range l.lanes {
		if r := l.lanes[i].request; r != nil && r.Done == 0 {
			list = append(list, r.Address())
		}
	}
	return list
}

// free gives back what l holds. Nothing of it is under way.
func (l *long) free() {
	if l.answer != nil {
		l.on.Release(l.answer)
	}
	for i := range l.lanes {
		if r := l.lanes[i].request; r != nil {
			l.on.Release(r)
		}
		if e := l.lanes[i].copied; e != 0 {
			l.tr.onDevice.device.PutEvent(e)
		}
	}
	for _, p := range []unsafe.Pointer{l.block, l.words} {
		if p != nil {
			mem.Free(p)
		}
	}
}

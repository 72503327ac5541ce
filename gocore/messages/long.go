package messages

// #include "quick.h"
import "C"

import (
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/cuda"
	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/transport"
)

// A message of more than longest bytes goes in pieces, so that tensors that are not contiguous, lists of tensors and
// tensors in device memory need no copy of the whole. Neither side knows how the tensors of the other lie, so all messages
// of that length go alike:
//
//  1. The sender sends a header in the place of the message, which a receive or a probe finds by source and tag.
//  2. The pieces follow with a tag of their own, on the communicator of the group's collectives. A side whose tensors need
//     copies has two under way: one is copied while the other is transferred. Another side has up to lanesInPlace.
//
// A receiver that has no room of that length takes the pieces, and drops them: the sender cannot be stopped.
const (
	longest      = 16 << 20
	pieceBytes   = longest / lanes
	lanes        = 2
	lanesInPlace = 16
)

// LongTag is the first of the tags of pieces. There is one for each of longIDs messages.
const (
	LongTag = 1 << 11
	longIDs = 1 << 13
)

// header is what is sent in the place of a long message.
type header struct {
	mark uint64
	what uint64 // the length of the message in the upper 48 bits, and its number
}

const (
	headerMark  = 0x9d3c_51e7_0b86_f24d // no message of headerBytes is likely to begin with it
	headerBytes = C.PQ_HEADER
	lengthShift = 16
)

func (h header) id() int32     { return int32(h.what & (longIDs - 1)) }
func (h header) length() int64 { return int64(h.what >> lengthShift) }

// requestsOfTransfer is the most requests of a transfer that are under way at once.
const requestsOfTransfer = 1 + lanesInPlace

// long is the part of a transfer that follows the header.
type long struct {
	tr    *transfer
	on    transport.Endpoint // of the pieces
	block unsafe.Pointer     // room for two pieces, or for what comes instead of a header; nil if the tensor is that room
	words unsafe.Pointer     // of a sender: the header
	id    int32
	peer  int32 // the other rank, once it is known

	announced bool  // the header has come, or was sent
	drops     bool  // there is no room for the message
	length    int64 // of the message that was announced
	next      int64 // the first byte that no lane has had
	turn      int64 // the first byte that was not given to the transport: the pieces go in their order
	lanes     []lane
	over      bool
	gaveUp    bool // it was given up: nothing more will come
	err       error
}

// lane takes one piece after another. A piece is copied and then sent, or received and then copied.
type lane struct {
	state   laneState
	request *transport.Request // while it is moving
	copied  cuda.Event         // while it is copying: the end of the copy
	from, n int64
}

type laneState int

const (
	idle    laneState = iota
	copying           // a device copies it
	ready             // it can be sent when those before it were
	moving            // the transport has it
)

// newLong prepares a long message.
func (g *Messages) newLong(tr *transfer) (*long, error) {
	l := &long{tr: tr, peer: tr.peer, length: tr.bytes}
	var err error
	if l.on, err = g.sideEndpoint(); err != nil {
		return nil, err
	}
	l.lanes = make([]lane, lanes)
	if tr.data != nil {
		l.lanes = make([]lane, min(lanesInPlace, (tr.bytes+pieceBytes-1)/pieceBytes))
	}
	if inPlace := tr.data != nil && tr.onDevice == nil; tr.receives && !inPlace || tr.data == nil && tr.onDevice == nil {
		if l.block, err = mem.Alloc(longest); err != nil { // what is not used of it takes no memory
			return nil, err
		}
	}
	if !tr.receives {
		l.id = int32(g.longs.Add(1) % longIDs)
		l.words, err = mem.Alloc(headerBytes)
	}
	return l, err
}

func (l *long) tag() int32 { return LongTag + l.id }

// announce sends the header.
func (l *long) announce(comm transport.Endpoint) (*transport.Request, error) {
	*(*header)(l.words) = header{headerMark, uint64(l.length)<<lengthShift | uint64(l.id)}
	l.announced = true
	return comm.Send(l.words, headerBytes, l.peer, l.tr.tag)
}

// Rest returns what follows the first message of a send, of so many bytes: more bytes, in pieces of most at most.
func (g *Messages) Rest(first unsafe.Pointer, bytes int64) (on transport.Endpoint, tag int32, more, most int64) {
	if bytes != headerBytes || (*header)(first).mark != headerMark {
		return nil, 0, 0, 0
	}
	on, err := g.sideEndpoint()
	if err != nil {
		return nil, 0, 0, 0
	}
	h := *(*header)(first)
	return on, LongTag + h.id(), h.length(), pieceBytes
}

// follow takes the part of a transfer behind its first message further. Also a receive for a short message looks whether
// it has taken a header.
func (m *message) follow(tr *transfer) {
	if tr.request == nil || tr.dropped || tr.long != nil && tr.long.over || tr.long == nil && !tr.receives {
		return
	}
	if tr.request.Done() && tr.receives && (tr.long == nil || !tr.long.announced) {
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
		}
		tr.long.isAnnounced(h)
	}
	l := tr.long
	if l == nil || !l.announced || tr.receives && m.copiesSend() {
		return
	}
	if l.err == nil && !l.gaveUp {
		l.err = l.move()
	}
	if l.err != nil || l.gaveUp {
		l.endEarly()
	}
	m.g.Env.Engine.CalledMPI()
}

// copiesSend tells whether a device still copies what a sendrecv sends. What is received may be written over that.
func (m *message) copiesSend() bool {
	send := &m.transfers[0]
	return m.n == 2 && send.onDevice != nil && send.onDevice.gate != 0 && !send.dropped
}

// headerIn returns the header that a receive has taken, if it has taken one.
func (m *message) headerIn(tr *transfer) (h header, ok bool) {
	r := tr.request
	if r.Bytes != headerBytes || r.Cancelled != 0 || m.comm.Err(r) != nil {
		return h, false
	}
	data, room := tr.room()
	if !tr.onDevice.direct() || tr.long != nil {
		h = *(*header)(data)
		return h, h.mark == headerMark
	}
	if room <= headerBytes {
		return h, false // the message itself: newDeviceTensor gives MPI no such address, unless it has to
	}
	err := tr.onDevice.now((*[headerBytes]byte)(unsafe.Pointer(&h)), false)
	return h, err == nil && h.mark == headerMark
}

// isAnnounced reads a header that was received.
func (l *long) isAnnounced(h header) {
	l.announced, l.peer, l.id, l.length = true, l.tr.request.Source, h.id(), h.length()
	if l.length == l.tr.bytes {
		return
	}
	l.drops, l.lanes = true, make([]lane, 1)
	if l.block == nil && l.err == nil {
		l.block, l.err = mem.Alloc(longest)
	}
}

// move takes the pieces further.
func (l *long) move() error {
	busy := false
	for i := range l.lanes {
		if err := l.moveLane(i); err != nil {
			return err
		}
		busy = busy || l.lanes[i].state != idle
	}
	l.over = !busy && l.next >= l.length && l.tr.request.Done()
	return nil
}

// moveLane takes the piece of a lane as far as it can be, and then begins the next one.
func (l *long) moveLane(i int) (err error) {
	ln, tr := &l.lanes[i], l.tr
	for {
		switch ln.state {
		case copying:
			d := tr.onDevice.device
			if done, err := d.Query(ln.copied); !done || err != nil {
				return err
			}
			d.PutEvent(ln.copied)
			ln.copied = 0
			if ln.state = idle; !tr.receives {
				ln.state = ready
			}
		case ready:
			if ln.from != l.turn {
				return nil
			}
			if tr.receives {
				ln.request, err = l.on.Receive(l.place(i), ln.n, l.peer, l.tag())
			} else {
				ln.request, err = l.on.Send(l.place(i), ln.n, l.peer, l.tag())
			}
			if err != nil {
				return err
			}
			l.turn += ln.n
			ln.state = moving
		case moving:
			if !ln.request.Done() {
				return nil
			}
			err, got := l.on.Err(ln.request), ln.request.Bytes
			l.gaveUp = l.gaveUp || ln.request.Cancelled != 0
			l.on.Release(ln.request)
			ln.request, ln.state = nil, idle
			switch {
			case err != nil || l.gaveUp:
				return err
			case tr.receives && got != ln.n:
				return status.New(status.MPI, "a piece of %d bytes of a message of %d bytes has come with %d", ln.n, l.length, got)
			case tr.receives && !l.drops:
				ln.state, err = l.copy(i)
			}
			if err != nil {
				return err
			}
		case idle:
			if l.next >= l.length {
				return nil
			}
			ln.from, ln.n = l.next, min(pieceBytes, l.length-l.next)
			l.next += ln.n
			if ln.state = ready; !tr.receives {
				if ln.state, err = l.copy(i); err != nil {
					return err
				}
				if ln.state == idle {
					ln.state = ready
				}
			}
		}
	}
}

// place returns where the piece of a lane is given to the transport.
func (l *long) place(i int) unsafe.Pointer {
	switch {
	case l.drops:
		return l.block
	case l.tr.data != nil:
		return unsafe.Add(l.tr.data, l.lanes[i].from)
	case l.tr.onDevice != nil:
		return l.tr.onDevice.blocks[i].Data
	}
	return unsafe.Add(l.block, int64(i)*pieceBytes)
}

// copy copies a piece between the tensors and its block, and returns idle. If a device does that, it returns copying.
func (l *long) copy(i int) (laneState, error) {
	ln, tr := &l.lanes[i], l.tr
	switch {
	case tr.data != nil:
		return idle, nil
	case tr.onDevice != nil:
		var err error
		ln.copied, err = tr.onDevice.move(l.place(i), ln.from, ln.n)
		if err != nil {
			return idle, err
		}
		return copying, nil
	}
	return idle, tr.packed.copy(l.place(i), ln.from, ln.n, tr.receives, 0)
}

// endEarly ends l after an error, when nothing of it is under way.
func (l *long) endEarly() {
	l.over = l.tr.request.Done()
	for i := range l.lanes {
		if r := l.lanes[i].request; r != nil && !r.Done() {
			l.over = false
		}
	}
}

// leave cancels what l still waits to receive.
func (l *long) leave() {
	l.gaveUp = true
	for i := range l.lanes {
		if r := l.lanes[i].request; r != nil && l.tr.receives && !r.Done() {
			_ = l.on.Cancel(r)
		}
	}
}

func (l *long) pending(list []uintptr) []uintptr {
	for i := range l.lanes {
		if r := l.lanes[i].request; r != nil && !r.Done() {
			list = append(list, r.Address())
		}
	}
	return list
}

// free gives back what l holds. Nothing of it is under way.
func (l *long) free() {
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

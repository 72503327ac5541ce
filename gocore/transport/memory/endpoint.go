// Package memory is a transport between the processes of one node, in memory that they share. It
// implements transport.Comm without MPI.
//
// Each ordered pair of ranks has a ring of bytes (ring.go), in which packets lie (packet.go). A
// short message is a packet or a few, which its receiver keeps if nobody waits for it. Of a long
// message there is only a question until a receive has room for it; then both sides move it
// (stream.go). So a message that nobody takes stops no other one, and what a receiver keeps is
// bounded: beyond mostKept bytes it says that it is full, and its senders hold the messages of the
// application, unless a call waits for what comes from there (bounds).
//
// Nothing moves but in calls: every call of a Poller takes all messages of this process further.
//
// Another process may write anything into the rings. What cannot be ends the pair: its requests
// fail, the others go on.
package memory

// #include "rings.h"
import "C"

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/cma"
	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/transport"
)

// Bytes returns how much memory the processes of a world share.
func Bytes(size int) int64 { return bellsOf(size) + int64(size)*int64(size)*int64(stride(size)) }

// endpoint has the messages of this process.
type endpoint struct {
	rank, size int

	mu       mutex
	shared   *C.pm_endpoint
	pairs    []C.pm_pair // by rank: ends of the rings, and what C knows of a rank
	bells    []bell      // by rank; nil in a small world
	rung     uint64      // this rank's bell, when it was read last
	out      []outbox    // by rank
	in       []inbox     // by rank
	contexts map[uint64]*context
	waiting  int                 // receives that wait for a message from any rank
	asked    map[uint64]*sending // by number: long messages that their receivers do not have yet
	longs    int                 // long messages that this process receives
	streams  int                 // those that it sends, and whose receivers have said go
	matched  map[uint64]*message // by number: those that Match has taken out
	freed    freed
	numbers  uint64
	kept     int64
	fulls    int       // how many ranks this one shows that it is full
	probed   time.Time // when a probe has found no message from any rank
	rounds   []*round

	comms   int  // that are not freed
	closed  bool // none is: the memory is not this process's any more
	release func()
}

// outbox is what goes to a rank.
type outbox struct {
	ring
	o      *endpoint
	to     int
	queue  []*outgoing // packets of this core. The first one may be written in part
	held   []*outgoing // of the application; they go when the queue is empty, and the receiver is not full
	stream *sending    // the long message whose receiver has said go; nil: none
	broken int32       // the code with which requests end; 0: it is not broken
}

// inbox is what comes from a rank.
type inbox struct {
	ring
	o       *endpoint
	from    int
	out     *outbox      // to the same rank
	open    partly       // the message that was begun last
	longs   []*receiving // long messages. The first one is moving
	costs   costs        // of them
	broken  int32        // as of an outbox
	waiting int          // receives that wait for a message from this rank
	probed  time.Time    // when a probe has found no message from it
	reads   verdict      // whether this process may read that rank's memory
	shown   cma.Proof    // by that rank, if it may
	stale   []uint64     // the claims of messages that were left, or begun anew: pieces of them may still come
}

// partly is a message of which some pieces have come.
type partly struct {
	left int64  // bytes that are still to come; 0: it has come whole
	room []byte // where they go; shorter if the rest is not wanted
	r    *receiving
	kept *message // nil once somebody has received it, or nobody can any more
}

// outgoing is a packet that has to be written, and those of the pieces that follow it.
type outgoing struct {
	head packet
	from []byte             // of a message: what is left of it
	r    *transport.Request // ends when all was written; nil: nothing does

	bounded bool // it is of the application
}

// sending is a long message that its receiver does not have yet.
type sending struct {
	span
	r       *transport.Request // nil: it has failed
	to      int
	begun   int64  // where the fragment begins that its receiver wants
	wanted  int64  // how many bytes that has
	packed  int64  // how many of them are written, or lie in part
	part    []byte // a packer's block of the last of these; nil: none is open
	claims  uint64 // see stream.go
	claimed bool   // all pieces are
}

// receiving is a Receive that is not done. The fields after peer are of a long message that comes.
type receiving struct {
	span
	r         *transport.Request
	from, tag int32 // of the context, or a wildcard

	peer   int // rank of the endpoint
	bytes  int64
	number uint64 // by which its sender knows the message
	at     uint64 // where the message is in its sender; 0: not in one piece
	wanted int64  // of bytes: there is no room for more
	begun  int64  // where the fragment begins that is moving
	part   []byte // where it goes; nil: its packer has not opened it
	got    int64  // of its bytes
	claims uint64 // see stream.go
	way    way
	looked int       // how often this rank has looked for a piece in vain
	began  time.Time // when the fragment began to move, if both ways are open
}

// message is one that has come, and that nobody has received.
type message struct {
	transport.Status
	context uint64
	peer    int
	short   unsafe.Pointer // its bytes
	number  uint64         // of a long one
	at      uint64         // of a long one: where it is in its sender
}

func newEndpoint(shared []byte, rank, size int) (*endpoint, error) {
	o := &endpoint{rank: rank, size: size, out: make([]outbox, size), in: make([]inbox, size), contexts: map[uint64]*context{},
		asked: map[uint64]*sending{}, matched: map[uint64]*message{}}
	if bellsOf(size) > 0 {
		o.bells = unsafe.Slice((*bell)(unsafe.Pointer(unsafe.SliceData(shared))), size)
		shared = shared[bellsOf(size):]
	}
	if err := o.share(); err != nil {
		return nil, err
	}
	shown := cma.Show()
	for r := range size {
		p := &o.pairs[r]
		o.out[r] = outbox{o: o, to: r, ring: ringAt(shared, size, rank, r, &p.out)}
		o.in[r] = inbox{o: o, from: r, out: &o.out[r], ring: ringAt(shared, size, r, rank, &p.in)}
		*o.out[r].proof = shown
	}
	return o, nil
}

// Poll takes everything further and tells how many of the requests are done.
func (o *endpoint) Poll(requests []uintptr) (done int) {
	if o.mu.TryLock() { // else another thread does it
		o.progress()
		o.mu.Unlock()
	}
	for i := range requests { // addresses outside the Go heap
		r := *(**transport.Request)(unsafe.Pointer(&requests[i]))
		if r.Done() {
			done++
		}
	}
	return done
}

// progress moves what can be moved. The caller holds mu, also of all methods below.
func (o *endpoint) progress() {
	if o.closed {
		return
	}
	if o.mustLook() {
		for r := range o.size {
			o.in[r].collect()
		}
	}
	o.bounds()
	for r := 0; r < o.size && o.longs > 0; r++ {
		o.in[r].readOn()
	}
	queued := false
	for r := range o.size {
		if out := &o.out[r]; out.waits() || out.stream != nil {
			o.out[r].deliver()
			queued = queued || out.waits()
		}
	}
	o.showMoves(queued)
	o.rounds = slices.DeleteFunc(o.rounds, (*round).step)
}

// send writes a packet as soon as there is room.
func (out *outbox) send(one *outgoing) {
	if one.bounded {
		out.held = append(out.held, one)
	} else {
		out.queue = append(out.queue, one)
	}
	out.deliver()
	out.o.showMoves(true) // for all that this call knows
}

// deliver writes what goes to the rank, as far as there is room.
func (out *outbox) deliver() {
	if out.broken != 0 {
		return
	}
	sound := out.writeQueue()
	queued := uint32(0)
	if out.waits() {
		queued = 1
	}
	atomic.StoreUint32((*uint32)(&out.o.pairs[out.to].queued), queued)
	if sound && len(out.queue) == 0 && out.stream != nil {
		sound = out.streamOn()
	}
	if !sound {
		out.o.breakOff(out.to, codeDamaged)
	}
}

// writeQueue writes the packets that wait, as far as there is room. The receiver's words may be unsound.
func (out *outbox) writeQueue() (sound bool) {
	for {
		if len(out.queue) == 0 && len(out.held) > 0 && atomic.LoadUint32((*uint32)(out.full)) == 0 {
			out.queue, out.held = append(out.queue, out.held[0]), without(out.held, 0)
		}
		if len(out.queue) == 0 {
			return true
		}
		one := out.queue[0]
		if done, sound := out.write(one); !done {
			return sound
		}
		if out.queue = without(out.queue, 0); one.r != nil {
			out.o.end(one.r, 0)
		}
	}
}

// waits tells whether packets wait to be written.
func (out *outbox) waits() bool { return len(out.queue)+len(out.held) > 0 }

// write writes a packet and its pieces, as far as there is room. It tells whether all are written. The receiver's words may
// be unsound.
func (out *outbox) write(one *outgoing) (done, sound bool) {
	for {
		n := min(len(one.from), piece)
		if fits := C.pm_fits(out.ringEnd, C.uint64_t(n)); fits != 1 {
			return false, fits == 0
		}
		if one.head.kind == more {
			one.head.bytes = int64(n)
		}
		out.put(&one.head, one.from[:n])
		if one.from = one.from[n:]; len(one.from) == 0 {
			return true, true
		}
		one.head.kind = more
	}
}

// mustLook tells whether something may have come. The bell is read before what it rings for.
func (o *endpoint) mustLook() bool {
	if o.bells == nil {
		return true
	}
	count := o.bells[o.rank].count.Load()
	look := count != o.rung
	o.rung = count
	return look
}

// collect reads what has come.
func (in *inbox) collect() {
	if in.broken != 0 {
		return
	}
	for {
		var p packet
		come, sound := in.next(&p)
		if !come {
			return
		}
		if !sound || !in.handle(&p) {
			in.o.breakOff(in.from, codeDamaged)
			return
		}
	}
}

// handle takes in the next packet of a ring. It returns false if it cannot be.
func (in *inbox) handle(p *packet) bool {
	switch p.what() {
	case whole, ask:
		return in.message(p)
	case more:
		if p.bytes > in.open.left {
			return false
		}
		in.fill(p)
		return true
	case data:
		return in.takePieces(p)
	}
	in.skip(p)
	switch p.what() {
	case goOn:
		return in.out.goOn(p)
	case lost:
		return in.lostLong(p)
	}
	return in.out.tookAll(p)
}

// message takes in a message, or its first piece.
func (in *inbox) message(p *packet) bool {
	if in.open.left > 0 && p.what() == whole {
		return false
	}
	if in.o.freed.numbers[p.context] { // nobody asks for it any more
		if p.what() == ask {
			in.skip(p)
		} else {
			in.open = partly{left: p.bytes}
			in.fill(p)
		}
		return true
	}
	c := in.o.context(p.context) // this rank may not have made the Comm yet
	m := message{Status: transport.Status{Source: c.places[in.from], Tag: p.tag, Bytes: p.bytes}, context: p.context, peer: in.from, number: p.number, at: p.answer}
	r := c.match(&m)
	if r != nil {
		r.receives(&m)
	}
	switch {
	case p.what() == ask:
		if in.skip(p); r != nil {
			in.receiveLong(r)
			return true
		}
	case r != nil:
		in.open = partly{left: p.bytes, room: r.data, r: r}
		in.fill(p)
		return true
	default:
		if in.o.keep(&m) != nil {
			return false
		}
	}
	kept := new(message)
	*kept = m
	c.came = append(c.came, kept)
	if c.changed(); p.what() == whole {
		in.open = partly{left: p.bytes, room: m.bytes(), kept: kept}
		in.fill(p)
	}
	return true
}

// fill takes a piece of the message that was begun last out of a ring.
func (in *inbox) fill(p *packet) {
	n := int64(p.payload())
	in.take(p, in.open.room)
	in.open.room = in.open.room[min(n, int64(len(in.open.room))):]
	if in.open.left -= n; in.open.left > 0 {
		return
	}
	if in.open.r != nil {
		in.o.received(in.open.r)
	}
	in.open = partly{}
}

// receives says which message a receive has taken.
func (r *receiving) receives(m *message) {
	r.peer, r.bytes, r.number, r.at = m.peer, m.Bytes, m.number, m.at
	r.r.Source, r.r.Tag, r.r.Bytes = m.Source, m.Tag, m.Bytes
}

// received ends a receive whose message is there.
func (o *endpoint) received(r *receiving) {
	code := int32(0)
	if r.bytes > r.length {
		code = codeTruncated
	}
	o.endReceive(r, code)
}

// cancelled ends a receive that was given up.
func (o *endpoint) cancelled(r *receiving) {
	r.r.Cancelled = 1
	o.endReceive(r, 0)
}

// leaveOpen ends a receive that was given up, if it is that of the message that was begun last.
func (in *inbox) leaveOpen(r *transport.Request) bool {
	w := in.open.r
	if w == nil || w.r != r {
		return false
	}
	in.open.r, in.open.room = nil, nil
	in.o.cancelled(w)
	return true
}

// endReceive ends a receive. Nobody knows it any more.
func (o *endpoint) endReceive(r *receiving, code int32) {
	if r.r != nil { // else it has ended
		o.end(r.r, code)
	}
	*r = receiving{}
	receivings.Put(r)
}

// receivings are reused, so that a receive allocates nothing.
var receivings = sync.Pool{New: func() any { return new(receiving) }}

func newReceiving(r *transport.Request, room span, from, tag int32) *receiving {
	w := receivings.Get().(*receiving)
	w.r, w.span, w.from, w.tag = r, room, from, tag
	return w
}

// taken gives a message that has come to a receive.
func (o *endpoint) taken(r *receiving, m *message) {
	r.receives(m)
	switch {
	case m.short == nil && o.in[m.peer].broken != 0:
		o.endReceive(r, o.in[m.peer].broken)
	case m.short == nil:
		o.in[r.peer].receiveLong(r)
	default:
		in := &o.in[m.peer]
		part := m.bytes()
		if in.open.kept == m {
			part = part[:m.Bytes-in.open.left]
		}
		n := copy(r.data, part)
		switch {
		case in.open.kept != m:
			o.received(r)
		case in.broken != 0:
			o.endReceive(r, in.broken)
		default:
			in.open.room, in.open.r = r.data[n:], r
		}
		o.drop(m)
	}
}

// keep makes room for a message that nobody has received.
func (o *endpoint) keep(m *message) (err error) {
	if m.short, err = allocate(max(1, m.Bytes)); err == nil {
		o.kept += m.room()
	}
	return err
}

// room returns how much memory a message takes that is kept.
func (m *message) room() int64 { return m.Bytes + besideKept }

// bytes returns the memory of a message that is kept.
func (m *message) bytes() []byte { return unsafe.Slice((*byte)(m.short), m.Bytes) }

// drop frees the memory of a message.
func (o *endpoint) drop(m *message) {
	if m.short != nil {
		if open := &o.in[m.peer].open; open.kept == m {
			if open.kept = nil; open.r == nil {
				open.room = nil // nobody wants the rest
			}
		}
		mem.Free(m.short)
		m.short = nil
		o.kept -= m.room()
	}
}

// end makes a request done.
func (o *endpoint) end(r *transport.Request, code int32) {
	r.Code = code
	r.End()
}

// breakOff ends the requests with a rank, which is damaged or has died.
func (o *endpoint) breakOff(peer int, code int32) {
	if o.in[peer].broken != 0 {
		return
	}
	in, out := &o.in[peer], &o.out[peer]
	in.broken, out.broken = code, code
	atomic.StoreUint32((*uint32)(&o.pairs[peer].broken), 1)
	for _, one := range append(out.queue, out.held...) {
		if one.r != nil {
			o.end(one.r, code)
		}
	}
	out.queue, out.held = nil, nil
	out.endStream()
	for number, s := range o.asked {
		if s.to == peer {
			delete(o.asked, number)
			o.endSend(s, code)
		}
	}
	if r := in.open.r; r != nil {
		in.open.r, in.open.room = nil, nil
		o.endReceive(r, code)
	}
	for _, r := range in.longs {
		o.endReceive(r, code)
	}
	o.longs -= len(in.longs)
	in.longs, in.stale = nil, nil
	for _, c := range o.contexts {
		for _, r := range slices.Clone(c.waiting) {
			if r.from >= 0 && c.members[r.from] == peer {
				c.waitNoMore(slices.Index(c.waiting, r))
				o.endReceive(r, code)
			}
		}
	}
}

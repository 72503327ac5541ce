// Package memory is a transport between the processes of one node, in memory that they share. It
// implements transport.Comm without MPI.
//
// Each ordered pair of ranks has a ring of bytes (ring.go), in which packets lie (packet.go). A
// short message is one packet, which its receiver keeps if nobody waits for it. Of a long message
// there is only a question until a receive has room for it; then the receiver reads it in the memory
// of its sender (read.go), or its pieces follow. So a message that nobody takes stops no other one,
// and what a receiver keeps is bounded: beyond mostKept bytes it reads no further, and its senders
// wait.
//
// Nothing moves but in calls: every call of a Poller takes all messages of this process further.
//
// Another process may write anything into the rings. What cannot be ends the pair: its requests
// fail, the others go on.
package memory

import (
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/transport"
)

// mostKept is how many bytes of messages that nobody has received yet a process keeps.
const mostKept = 64 << 20

// Codes of requests.
const (
	codeTruncated = 1 + iota // the message is longer than the room
	codeDamaged              // the other process is damaged
	codeDied                 // it has died
)

// Bytes returns how much memory the processes of a world share.
func Bytes(size int) int64 { return bellsOf(size) + int64(size)*int64(size)*stride }

// office has the messages of this process.
type office struct {
	rank, size int

	mu        sync.Mutex
	bells     []bell   // by rank; nil in a small world
	rung      uint64   // this rank's bell, when it was read last
	stalled   bool     // something was left in a ring
	out       []outbox // by rank
	in        []inbox  // by rank
	contexts  map[uint64]*context
	asked     map[uint64]*sending   // by number: long messages that wait for their receiver's answer
	filling   map[uint64]*receiving // by number: long messages whose pieces come
	pulls     []*receiving          // of long messages that this process reads, in the order in which it does
	nonce     unsafe.Pointer        // see proof
	matched   map[uint64]*message   // by number: those that Match has taken out
	numbers   uint64
	kept      int64
	streaming int // long messages whose pieces go
	rounds    []*round

	moving  atomic.Bool // bytes of long messages are moving
	comms   int         // that are not freed
	closed  bool        // none is: the memory is not this process's any more
	release func()
}

// outbox is what goes to a rank.
type outbox struct {
	ring
	queue  []*outgoing
	broken int32 // the code with which requests end; 0: it is not broken
}

// inbox is what comes from a rank.
type inbox struct {
	ring
	broken int32   // as of an outbox
	reads  verdict // whether this process may read that rank's memory
	pid    uint64  // of that rank, if it may
}

// outgoing is a packet that has to be written, or the pieces of a long message.
type outgoing struct {
	head packet
	from []byte   // payload, or what is left of a long message
	of   *sending // ends when the payload was written; nil: nothing does
}

// sending is a Send that is not done.
type sending struct {
	r    *transport.Request
	data []byte
	to   int
}

// receiving is a Receive that is not done. The fields after peer are of a long message that comes.
type receiving struct {
	r         *transport.Request
	data      []byte
	from, tag int32 // of the context, or a wildcard

	peer   int // rank of the office
	bytes  int64
	got    int64
	number uint64 // by which its sender knows the message that this process reads
	at     uint64 // where the message is in its sender
}

// context is what belongs to one Comm.
type context struct {
	waiting []*receiving
	came    []*message
	members []int // rank of the office, by member
	places  map[int]int32
}

// message is one that has come, and that nobody has received.
type message struct {
	transport.Status
	peer   int
	short  unsafe.Pointer // its bytes
	number uint64         // of a long one
	at     uint64         // of a long one: where it is in its sender
	local  *sending       // of a long one from this process
}

func newOffice(shared []byte, rank, size int) *office {
	o := &office{rank: rank, size: size, out: make([]outbox, size), in: make([]inbox, size), contexts: map[uint64]*context{},
		asked: map[uint64]*sending{}, filling: map[uint64]*receiving{}, matched: map[uint64]*message{}}
	if bellsOf(size) > 0 {
		o.bells = unsafe.Slice((*bell)(unsafe.Pointer(unsafe.SliceData(shared))), size)
		shared = shared[bellsOf(size):]
	}
	for r := range size {
		o.out[r].ring, o.in[r].ring = ringAt(shared, size, rank, r), ringAt(shared, size, r, rank)
	}
	o.prove()
	return o
}

// Poll takes everything further and tells how many of the requests are done.
func (o *office) Poll(requests []uintptr) (done int) {
	if o.mu.TryLock() { // else another thread does it
		if !o.closed {
			o.progress()
		}
		o.mu.Unlock()
	}
	for i := range requests { // addresses outside the Go heap
		r := *(**transport.Request)(unsafe.Pointer(&requests[i]))
		if atomic.LoadInt32(&r.Done) != 0 {
			done++
		}
	}
	return done
}

// progress moves what can be moved. The caller holds mu, also of all methods below.
func (o *office) progress() {
	if o.mustLook() {
		for r := range o.size {
			o.collect(r)
		}
	}
	o.pull()
	for r := range o.size {
		o.deliver(r)
	}
	if moving := len(o.filling) > 0 || len(o.pulls) > 0 || o.streaming > 0; moving != o.moving.Load() {
		o.moving.Store(moving)
	}
	for i := 0; i < len(o.rounds); {
		if o.rounds[i].step() {
			o.rounds = append(o.rounds[:i], o.rounds[i+1:]...)
		} else {
			i++
		}
	}
}

// deliver writes what goes to a rank, as far as there is room.
func (o *office) deliver(to int) {
	out := &o.out[to]
	if len(out.queue) == 0 || out.broken != 0 {
		return
	}
	wrote := false
	for len(out.queue) > 0 {
		room, sound := out.room()
		if !sound {
			o.breakOff(to, codeDamaged)
			return
		}
		one := out.queue[0]
		if one.head.kind == data {
			one.head.bytes = int64(min(len(one.from), piece))
		}
		n := one.head.payload()
		if packetBytes+aligned(n) > room {
			break
		}
		var head [packetBytes]byte
		one.head.put(&head)
		out.put(head[:])
		out.put(one.from[:n])
		out.mine += uint64(aligned(n) - n)
		wrote = true
		out.queue = out.queue[1:]
		if one.from = one.from[n:]; len(one.from) > 0 {
			out.queue = append(out.queue, one) // others have their turn between two pieces
			continue
		}
		o.gone(one, 0)
	}
	if wrote {
		out.show()
		if o.bells != nil {
			o.bells[to].count.Add(1)
		}
	}
}

// mustLook tells whether something may have come. The bell is read before what it rings for.
func (o *office) mustLook() bool {
	if o.bells == nil {
		return true
	}
	count := o.bells[o.rank].count.Load()
	look := count != o.rung || o.stalled
	o.rung, o.stalled = count, false
	return look
}

// gone ends what had to be written.
func (o *office) gone(one *outgoing, code int32) {
	if one.of != nil {
		o.end(one.of.r, code)
	}
	if one.head.kind == data {
		o.streaming--
	}
}

// collect reads what has come from a rank.
func (o *office) collect(from int) {
	in := &o.in[from]
	if in.broken != 0 {
		return
	}
	read := false
	for {
		if o.kept >= mostKept {
			o.stalled = true
			break
		}
		there, sound := in.come()
		if sound && there == 0 {
			break
		}
		var head [packetBytes]byte
		var p packet
		if sound = sound && there >= packetBytes; sound {
			in.take(head[:], packetBytes)
			sound = p.read(&head) && packetBytes+aligned(p.payload()) <= there
		}
		if !sound || !o.handle(from, &p) {
			o.breakOff(from, codeDamaged)
			return
		}
		read = true
	}
	if read {
		in.free()
	}
}

// handle takes a packet in, whose payload is next in the ring. It returns false if it cannot be.
func (o *office) handle(from int, p *packet) bool {
	in := &o.in[from]
	skip := func(n int) { in.take(nil, n) }
	switch p.kind {
	case whole, ask:
		c := o.contexts[p.context]
		if c == nil { // this rank has not made the Comm yet, or has freed it
			c = o.context(p.context)
		}
		m := &message{Status: transport.Status{Tag: p.tag, Bytes: p.bytes}, peer: from, number: p.number, at: p.answer}
		if r := c.match(m); r != nil {
			o.receive(r, m, func(b []byte) { in.take(b, len(b)); skip(p.payload() - len(b)) })
		} else {
			if p.kind == whole {
				room, err := mem.Alloc(max(1, p.bytes))
				if err != nil {
					return false
				}
				in.take(unsafe.Slice((*byte)(room), p.bytes), int(p.bytes))
				m.short = room
				o.kept += p.bytes
			}
			c.came = append(c.came, m)
		}
	case goOn:
		s := o.asked[p.number]
		if s == nil || s.to != from {
			return false
		}
		delete(o.asked, p.number)
		o.streaming++
		o.out[from].queue = append(o.out[from].queue, &outgoing{head: packet{kind: data, number: p.answer}, from: s.data, of: s})
	case took:
		s := o.asked[p.number]
		if s == nil || s.to != from {
			return false
		}
		delete(o.asked, p.number)
		o.end(s.r, 0)
	case data:
		r := o.filling[p.number]
		if r == nil || r.peer != from || r.got+p.bytes > r.bytes {
			return false
		}
		n := max(0, min(int64(len(r.data))-r.got, p.bytes))
		if n > 0 {
			in.take(r.data[r.got:r.got+n], int(n))
		}
		skip(int(p.bytes - n))
		if r.got += p.bytes; r.got == r.bytes {
			delete(o.filling, p.number)
			o.received(r)
		}
	}
	skip(aligned(p.payload()) - p.payload())
	return true
}

// receive gives a message to a receive. take copies so many of its bytes, if it is a short one.
func (o *office) receive(r *receiving, m *message, take func(b []byte)) {
	r.peer, r.bytes = m.peer, m.Bytes
	r.r.Source, r.r.Tag, r.r.Bytes = m.Source, m.Tag, m.Bytes
	switch {
	case m.local != nil:
		copy(r.data, m.local.data)
		o.end(m.local.r, 0)
		o.received(r)
	case m.Bytes > short && o.mayRead(m.peer):
		r.number, r.at = m.number, m.at
		o.pulls = append(o.pulls, r)
	case m.Bytes > short:
		o.numbers++
		o.filling[o.numbers] = r
		o.out[m.peer].queue = append(o.out[m.peer].queue, &outgoing{head: packet{kind: goOn, number: m.number, answer: o.numbers}})
	default:
		take(r.data[:min(int64(len(r.data)), m.Bytes)])
		o.received(r)
	}
}

// received ends a receive whose message is there.
func (o *office) received(r *receiving) {
	code := int32(0)
	if r.bytes > int64(len(r.data)) {
		code = codeTruncated
	}
	o.end(r.r, code)
}

// taken gives a message that has come to a receive.
func (o *office) taken(r *receiving, m *message) {
	o.receive(r, m, func(b []byte) { copy(b, unsafe.Slice((*byte)(m.short), m.Bytes)) })
	o.drop(m)
}

// drop frees the memory of a message.
func (o *office) drop(m *message) {
	if m.short != nil {
		mem.Free(m.short)
		m.short = nil
		o.kept -= m.Bytes
	}
}

// end makes a request done.
func (o *office) end(r *transport.Request, code int32) {
	r.Code = code
	atomic.StoreInt32(&r.Done, 1)
}

// breakOff ends the requests with a rank, which is damaged or has died.
func (o *office) breakOff(peer int, code int32) {
	if o.in[peer].broken != 0 {
		return
	}
	o.in[peer].broken, o.out[peer].broken = code, code
	for _, one := range o.out[peer].queue {
		o.gone(one, code)
	}
	o.out[peer].queue = nil
	for number, s := range o.asked {
		if s.to == peer {
			delete(o.asked, number)
			o.end(s.r, code)
		}
	}
	for number, r := range o.filling {
		if r.peer == peer {
			delete(o.filling, number)
			o.end(r.r, code)
		}
	}
	o.pulls = slices.DeleteFunc(o.pulls, func(r *receiving) bool {
		if r.peer != peer {
			return false
		}
		o.end(r.r, code)
		return true
	})
	for _, c := range o.contexts {
		kept := c.waiting[:0]
		for _, r := range c.waiting {
			if r.from >= 0 && int(r.from) < len(c.members) && c.members[r.from] == peer {
				o.end(r.r, code)
			} else {
				kept = append(kept, r)
			}
		}
		c.waiting = kept
	}
}

// context returns that of a number, which it makes if there is none.
func (o *office) context(number uint64) *context {
	c := o.contexts[number]
	if c == nil {
		c = &context{}
		o.contexts[number] = c
	}
	return c
}

// match removes the receive that takes a message, and tells the message its source; nil: none does.
func (c *context) match(m *message) *receiving {
	if c.places != nil {
		m.Source = c.places[m.peer]
	}
	for i, r := range c.waiting {
		if (r.from == transport.AnySource || r.from == m.Source) && (r.tag == transport.AnyTag || r.tag == m.Tag) {
			c.waiting = append(c.waiting[:i], c.waiting[i+1:]...)
			return r
		}
	}
	return nil
}

// find returns the place of the first message that has come from a rank with a tag; -1: there is none.
func (c *context) find(from, tag int32) int {
	for i, m := range c.came {
		if (from == transport.AnySource || from == m.Source) && (tag == transport.AnyTag || tag == m.Tag) {
			return i
		}
	}
	return -1
}

// errorOf returns the error of a request that is done.
func errorOf(r *transport.Request) error {
	switch r.Code {
	case 0:
		return nil
	case codeTruncated:
		return status.New(status.Truncate, "a message of %d bytes from rank %d with tag %d is longer than the room for it", r.Bytes, r.Source, r.Tag)
	}
	if r.Code == codeDied {
		return status.New(status.ProcFailed, "the other process has died")
	}
	return status.New(status.GroupBroken, "the memory that this process shares with another one is damaged: what lies there no process of a job writes")
}

package link

import (
	"runtime"
	"slices"
	"sync"
	"time"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/transport"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// post receives the requests that come to a server by MPI, and sends the answers. One thread looks
// for messages; answers begin on the thread of Reply.
type post struct {
	l    *Links
	from map[int]*sender // by the trainer's rank

	// The thread alone uses these.
	strays []*arrival // messages of ranks that are no senders, or none any more
	slots  []uintptr
	gave   bool // a request went to its handler

	mu      sync.Mutex
	ended   bool       // no answer is sent any more
	clean   bool       // and MPI has nothing under way
	sending []*sending // messages that MPI may still read
}

// sender is a trainer that uses MPI.
type sender struct {
	inlet    *inlet
	next     uint64     // the number of its next request
	arrivals []*arrival // requests in the order of their heads
	lost     bool       // its messages are thrown away
	gone     bool       // its last message has come

	busy [Credits]bool // the post's mu guards it
}

// arrival is a request, or what may become one.
type arrival struct {
	from   *sender // nil: nobody
	h      head
	block  unsafe.Pointer
	length int64
	first  transfers // the message
	body   transfers // what comes after it
	read   bool      // the head was
	large  [regions]unsafe.Pointer
	ready  bool // all is there
}

// sending is a message that is under way.
type sending struct {
	transfers
	blocks []unsafe.Pointer
}

func newPost(l *Links) *post {
	return &post{l: l, from: map[int]*sender{}}
}

// run is the thread.
func (p *post) run() {
	done := p.l.g.Use()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	work.ExactSleeps()
	b := work.Backoff{Crowded: p.l.g.Crowded()}
	looked := time.Now()
	for i := 1; !p.l.closed.Load(); i++ {
		moved, moving, err := p.step()
		if err != nil {
			for _, s := range p.from {
				s.inlet.end(err)
			}
			break
		}
		if moved {
			b.Reset()
		}
		if i&255 == 0 || b.Slept() {
			if now := time.Now(); now.Sub(looked) >= lookEvery {
				looked = now
				if p.l.g.Trouble("requests to this server", p.l.me) != nil {
					break
				}
				p.look()
			}
		}
		if p.gave {
			p.gave = false
			runtime.Gosched() // calls of C keep a P: the handler would wait for the monitor to take it
		}
		if b.Pace = work.Seldom; moving {
			b.Pace = work.Always
		}
		b.Pause()
	}
	p.end()
	if p.settled() {
		done() // else MPI must not be finalized
	}
}

// look lets go of the trainers that have died or left.
func (p *post) look() {
	for t, s := range p.from {
		if s.lost {
			continue
		}
		if err := p.l.g.Trouble(s.inlet.what, t); err != nil { // nobody would read a message
			s.lost = true
			s.inlet.end(err)
			p.drop(s)
		}
	}
}

// step takes everything one step further.
func (p *post) step() (moved, moving bool, err error) {
	for range Credits {
		m, found, err := p.l.comm.Match(transport.AnySource, tagHead)
		if err != nil {
			return false, false, err
		}
		if !found {
			break
		}
		moved = true
		if err := p.take(m); err != nil {
			return false, false, err
		}
	}
	p.slots = p.slots[:0]
	for _, s := range p.from {
		for _, a := range s.arrivals {
			p.slots = a.body.pending(a.first.pending(p.slots))
			moving = moving || a.read && !a.ready
		}
	}
	for _, a := range p.strays {
		p.slots = a.body.pending(a.first.pending(p.slots))
	}
	p.mu.Lock()
	for _, out := range p.sending {
		p.slots = out.pending(p.slots)
		moving = moving || len(out.list) > 1
	}
	if len(p.slots) > 0 && p.l.comm.Poller().Poll(p.slots) > 0 {
		moved = true
		p.freeSent()
	}
	p.mu.Unlock()
	if moved {
		for _, s := range p.from {
			p.advance(s)
		}
		p.strays = slices.DeleteFunc(p.strays, func(a *arrival) bool { return a.freed() })
	}
	return moved, moving, nil
}

// freeSent frees the messages that were sent. The caller holds mu.
func (p *post) freeSent() {
	p.sending = slices.DeleteFunc(p.sending, func(out *sending) bool {
		if !out.over() {
			return false
		}
		out.free()
		for _, b := range out.blocks {
			mem.Free(b)
		}
		return true
	})
}

// take begins to receive a message.
func (p *post) take(m transport.Message) error {
	a := &arrival{from: p.from[int(m.Source)], length: min(max(m.Bytes, 0), mostMessage)}
	a.first.comm, a.body.comm = p.l.comm, p.l.comm
	var err error
	if a.block, err = mem.Alloc(a.length); err != nil {
		return err
	}
	r, err := p.l.comm.Take(m, a.block, a.length)
	if a.first.add(r, false, err) != nil {
		mem.Free(a.block)
		return err
	}
	if a.from == nil || a.from.lost {
		p.strays = append(p.strays, a)
		return nil
	}
	a.from.arrivals = append(a.from.arrivals, a)
	return nil
}

// freed frees an arrival that is thrown away, if MPI has ended it.
func (a *arrival) freed() bool {
	if !a.first.over() || !a.body.over() {
		return false
	}
	a.first.free()
	a.body.free()
	mem.Free(a.block)
	for _, b := range a.large {
		mem.Free(b)
	}
	a.block, a.large = nil, [regions]unsafe.Pointer{}
	return true
}

// advance takes the requests of a trainer further, and hands those to the handler that are there.
func (p *post) advance(s *sender) {
	for _, a := range s.arrivals {
		var err error
		switch {
		case !a.read && a.first.over():
			err = p.open(a)
		case a.read && !a.ready && a.body.over():
			if err = a.complete(); err == nil {
				a.ready = true
			}
		}
		if err != nil {
			p.lose(s, err)
			return
		}
		if !a.read {
			break // the next ones come after it
		}
	}
	for len(s.arrivals) > 0 && s.arrivals[0].ready {
		a := s.arrivals[0]
		s.arrivals = s.arrivals[1:]
		if a.h.kind == kindGone {
			s.lost, s.gone = true, true
			s.inlet.queue <- nil // after the requests before it
			a.freed()
			p.drop(s)
			if !p.ended { // else it was told
				p.tell(s, p.closed())
			}
			return
		}
		if p.ended { // nobody answers it
			a.freed()
			continue
		}
		s.inlet.queue <- a.incoming() // there is room for all credits
		p.gave = true
	}
}

// open reads the head of a request, and posts the receives of what is not in the message.
func (p *post) open(a *arrival) error {
	s := a.from
	if err := a.first.err(); err != nil {
		return s.inlet.damaged(err)
	}
	h, err := readHead(bytesOf(a.block, min(a.first.list[0].Bytes, a.length)))
	switch {
	case err != nil:
		return s.inlet.damaged(err)
	case h.kind != kindRequest && h.kind != kindGone:
		return s.inlet.damaged(rubbish("a message of kind %#x", uint32(h.kind)))
	case h.seq != s.next:
		return s.inlet.damaged(rubbish("request number %d while %d is next", h.seq, s.next))
	}
	s.next++
	a.h, a.read = h, true
	if h.kind == kindGone {
		a.ready = true
		return nil
	}
	p.mu.Lock()
	busy := s.busy[h.credit]
	s.busy[h.credit] = true
	p.mu.Unlock()
	if busy {
		return s.inlet.damaged(rubbish("request %d with credit %d, which is in use", h.seq, h.credit))
	}
	tags := [regions]int{tagIDs, tagValues, 0}
	for i, n := range h.sizes {
		if n == 0 || i != regionAnswer && h.inline() == h.payload() {
			continue
		}
		if a.large[i], err = mem.Alloc(n); err != nil {
			return err
		}
		if i == regionAnswer {
			continue
		}
		if err := a.body.receive(s.inlet.member, tags[i]+int(h.credit), a.large[i], n); err != nil {
			return err
		}
	}
	a.ready = len(a.body.list) == 0
	return nil
}

// complete checks what was received.
func (a *arrival) complete() error {
	if err := a.body.err(); err != nil {
		return a.from.inlet.damaged(err)
	}
	i := 0
	for _, n := range a.h.sizes[:regionAnswer] {
		if n == 0 {
			continue
		}
		if got := a.body.list[i].Bytes; got != n {
			return a.from.inlet.damaged(rubbish("%d bytes where %d were told", got, n))
		}
		i++
	}
	return nil
}

// incoming makes the request of an arrival that is ready.
func (a *arrival) incoming() *Incoming {
	in := &Incoming{From: a.from.inlet.member, inlet: a.from.inlet, credit: int(a.h.credit), seq: a.h.seq, message: a}
	b := bytesOf(a.block, a.length)
	ids, values := a.large[regionIDs], a.large[regionValues]
	if a.h.inline() > 0 {
		ids, values = unsafe.Add(a.block, headBytes), unsafe.Add(a.block, headBytes+a.h.sizes[regionIDs])
	}
	in.Header = slices.Clone(b[headBytes+a.h.inline():])
	in.IDs = idsOf(ids, a.h.sizes[regionIDs])
	in.Values = bytesOf(values, a.h.sizes[regionValues])
	in.Answer = bytesOf(a.large[regionAnswer], a.h.sizes[regionAnswer])
	a.first.free()
	a.body.free()
	return in
}

// lose ends a pair because of err, and tells the trainer, who lives.
func (p *post) lose(s *sender, err error) {
	s.lost = true
	s.inlet.end(err)
	p.drop(s)
	p.tell(s, err)
}

// drop throws away what has come of a trainer.
func (p *post) drop(s *sender) {
	for _, a := range s.arrivals {
		a.body.cancel()
		if !a.freed() {
			p.strays = append(p.strays, a)
		}
	}
	s.arrivals = nil
}

// tell tells a trainer that no more requests are taken from it, because of err.
func (p *post) tell(s *sender, err error) {
	e := status.Plain(err)
	e.Msg, e.Ranks = e.Msg[:min(len(e.Msg), mostBye/2)], e.Ranks[:min(len(e.Ranks), 16)]
	b := status.Pack(e)
	p.mu.Lock()
	defer p.mu.Unlock()
	h := head{kind: kindBye, header: int64(len(b))}
	_ = p.send(s, h, nil, b, tagBye) // a trainer that does not hear it finds out when this rank ends
}

// send sends a message: a head, a small answer and a header. The caller holds mu.
func (p *post) send(s *sender, h head, answer, header []byte, tag int) error {
	out := &sending{transfers: transfers{comm: p.l.comm}}
	n := headBytes + int64(len(answer)) + int64(len(header))
	block, err := mem.Alloc(n)
	if err != nil {
		return err
	}
	b := bytesOf(block, n)
	h.put(b)
	copy(b[headBytes:], answer)
	copy(b[headBytes+len(answer):], header)
	if err := out.send(s.inlet.member, tag, block, n); err != nil {
		mem.Free(block)
		return err
	}
	out.blocks = append(out.blocks, block)
	p.sending = append(p.sending, out)
	return nil
}

// reply implements replier.
func (p *post) reply(in *Incoming, header []byte, err error) {
	a := in.message
	s := a.from
	mem.Free(a.block)
	mem.Free(a.large[regionIDs])
	mem.Free(a.large[regionValues])
	b, failed := packed(header, err)
	p.mu.Lock()
	defer p.mu.Unlock()
	s.busy[in.credit] = false
	if p.ended {
		mem.Free(a.large[regionAnswer])
		return
	}
	h := head{kind: kindAnswer, credit: uint32(in.credit), seq: in.seq, header: int64(len(b))}
	h.sizes[regionAnswer] = a.h.sizes[regionAnswer]
	small, large := in.Answer, []byte(nil)
	if h.payload() > mostInline {
		small, large = nil, in.Answer
	}
	if failed {
		h.kind, h.sizes, small = kindFailed, [regions]int64{}, nil
	}
	if err := p.send(s, h, small, b, tagAnswer+in.credit); err != nil {
		s.inlet.end(err)
	} else if a.h.sizes[regionAnswer] > mostInline {
		n := int64(len(large))
		if failed {
			n = 0
		}
		out := &sending{transfers: transfers{comm: p.l.comm}}
		if err := out.send(s.inlet.member, tagPayload+in.credit, a.large[regionAnswer], n); err != nil {
			s.inlet.end(err)
		} else {
			out.blocks = append(out.blocks, a.large[regionAnswer])
			p.sending = append(p.sending, out)
			return
		}
	}
	mem.Free(a.large[regionAnswer])
}

func (p *post) wake() {}

// closed is the error that no more requests are taken.
func (p *post) closed() error {
	me := p.l.g.WorldRank(p.l.me)
	return status.New(status.PeerLeft, "rank %d has closed its links", me).WithRanks(me)
}

// end sends no more answers, tells the trainers, and gives what is under way a while to end. Their
// last messages are under way, too: a later communicator may get the number of this one, and would
// get them.
func (p *post) end() {
	p.mu.Lock()
	p.ended = true
	p.mu.Unlock()
	if p.l.comm.Gone() {
		return // MPI has gone without asking: nothing may be called any more
	}
	for _, s := range p.from {
		if !s.lost {
			p.tell(s, p.closed())
		}
	}
	until := time.Now().Add(closeLimit / 2)
	for p.anyStays() && time.Now().Before(until) {
		if _, _, err := p.step(); err != nil {
			break
		}
		p.look()
		time.Sleep(time.Millisecond)
	}
	for _, s := range p.from {
		s.lost = true
		p.drop(s)
	}
	for until = until.Add(closeLimit / 4); ; time.Sleep(time.Millisecond) {
		p.slots = p.slots[:0]
		for _, a := range p.strays {
			p.slots = a.body.pending(a.first.pending(p.slots))
		}
		p.mu.Lock()
		for _, out := range p.sending {
			p.slots = out.pending(p.slots)
		}
		p.l.comm.Poller().Poll(p.slots)
		p.freeSent()
		p.strays = slices.DeleteFunc(p.strays, func(a *arrival) bool { return a.freed() })
		p.clean = len(p.sending)+len(p.strays) == 0
		over := p.clean
		p.mu.Unlock()
		if over || time.Now().After(until) {
			return
		}
	}
}

// anyStays tells whether a trainer lives that may send more.
func (p *post) anyStays() bool {
	for _, s := range p.from {
		if !s.lost {
			return true
		}
	}
	return false
}

// quiet tells whether no trainer sends anything any more. The thread has ended.
func (p *post) quiet() bool {
	for _, s := range p.from {
		if !s.gone {
			return false
		}
	}
	return true
}

// settled tells whether MPI has nothing under way any more.
func (p *post) settled() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.clean
}

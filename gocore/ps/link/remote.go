package link

import (
	"slices"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/transport"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// Tags of messages. The last four have the credit added to them.
const (
	tagHead    = 1 // requests, and that a trainer is gone: one tag, so they come in order
	tagBye     = 2
	tagIDs     = 16
	tagValues  = tagIDs + Credits
	tagAnswer  = tagValues + Credits // head, header, and a small answer
	tagPayload = tagAnswer + Credits // a large answer; empty if the server has replied with an error
)

// byeEvery is the time between two looks for the end of a server.
const byeEvery = 50 * time.Millisecond

// mostBye is the longest message that says why a server takes no more: every MPI sends it at once.
const mostBye = 1 << 10

// remoteOutlet is the trainer's side of a pair that uses MPI.
type remoteOutlet struct {
	o      *outlet
	rooms  [Credits]unsafe.Pointer // for the heads of answers; nil before their first use
	under  atomic.Int32            // requests that MPI has not ended
	why    atomic.Pointer[status.Error]
	looked time.Time      // for the end of the server; the outlet's mu guards it
	heard  atomic.Bool    // the server's last message has come
	last   transfers      // the message that this trainer is gone
	block  unsafe.Pointer // of last
}

// transfers are requests of MPI that belong together.
type transfers struct {
	comm transport.Endpoint
	list []transfer
}

type transfer struct {
	*transport.Request
	receives bool
}

// send starts a send of n bytes.
func (t *transfers) send(peer, tag int, data unsafe.Pointer, n int64) error {
	r, err := t.comm.Send(data, n, int32(peer), int32(tag))
	return t.add(r, false, err)
}

// receive starts a receive of at most n bytes.
func (t *transfers) receive(peer, tag int, data unsafe.Pointer, n int64) error {
	r, err := t.comm.Receive(data, n, int32(peer), int32(tag))
	return t.add(r, true, err)
}

func (t *transfers) add(r *transport.Request, receives bool, err error) error {
	if err == nil {
		t.list = append(t.list, transfer{r, receives})
	}
	return err
}

// pending appends the addresses of those that are not done.
func (t *transfers) pending(slots []uintptr) []uintptr {
	for _, x := range t.list {
		if !x.Done() {
			slots = append(slots, x.Address())
		}
	}
	return slots
}

// over tells whether all have ended, as far as somebody has polled them.
func (t *transfers) over() bool {
	return !slices.ContainsFunc(t.list, func(x transfer) bool { return !x.Done() })
}

// poll polls them, and tells whether all have ended.
func (t *transfers) poll() bool {
	t.comm.Poller().Poll(t.pending(nil))
	return t.over()
}

// cancel gives up the receives that match no message yet.
func (t *transfers) cancel() {
	for _, x := range t.list {
		if x.receives && !x.Done() {
			_ = t.comm.Cancel(x.Request) // then it ends by itself, or never
		}
	}
}

// err returns the first error of one that was not cancelled. All have ended.
func (t *transfers) err() error {
	for _, x := range t.list {
		if err := t.comm.Err(x.Request); err != nil && x.Cancelled == 0 {
			return err
		}
	}
	return nil
}

// free frees the requests. All have ended.
func (t *transfers) free() {
	for _, x := range t.list {
		t.comm.Release(x.Request)
	}
	t.list = nil
}

// remoteRequest is one request by MPI, and a task of the engine.
type remoteRequest struct {
	by        *remoteOutlet
	p         *Pending
	all       transfers // the first one receives the head of the answer, the next one a large answer
	message   unsafe.Pointer
	room      unsafe.Pointer
	bulk      int   // the transfers from this one on send ids and values by themselves
	fail      error // why not all of it was started
	cancelled bool
	looked    time.Time // at the server's life: nobody may wait
	done      func()
}

func (s *remoteOutlet) post(p *Pending, r *Request) error {
	l := s.o.l
	if why := s.why.Load(); why != nil {
		return why
	}
	h := head{kind: kindRequest, credit: uint32(p.credit), seq: p.seq, header: int64(len(r.Header)),
		sizes: [regions]int64{r.IDs.Bytes, r.Values.Bytes, r.Answer.Bytes}}
	if s.rooms[p.credit] == nil {
		room, err := mem.Alloc(mostMessage)
		if err != nil {
			return err
		}
		s.rooms[p.credit] = room
	}
	n := headBytes + h.inline() + h.header
	message, err := mem.Alloc(n)
	if err != nil {
		return err
	}
	b := bytesOf(message, n)
	h.put(b)
	if h.inline() > 0 {
		copy(b[headBytes:], bytesOf(r.IDs.data(), r.IDs.Bytes))
		copy(b[headBytes+r.IDs.Bytes:], bytesOf(r.Values.data(), r.Values.Bytes))
	}
	copy(b[headBytes+h.inline():], r.Header)

	x := &remoteRequest{by: s, p: p, all: transfers{comm: l.comm}, message: message, room: s.rooms[p.credit], done: l.g.Use()}
	if err := x.start(&h, n); err != nil && len(x.all.list) == 0 {
		mem.Free(message)
		x.done()
		return err
	} else if err != nil {
		x.fail = err
		s.why.CompareAndSwap(nil, status.Plain(err)) // the server may have a part of the request
	}
	s.under.Add(1)
	l.g.Engine().AddPatient(x)
	l.g.Engine().StartProgress()
	return nil
}

// start starts all transfers: the receives first, so that the answer finds them.
func (x *remoteRequest) start(h *head, n int64) error {
	o, p := x.by.o, x.p
	type one struct {
		start func(peer, tag int, data unsafe.Pointer, n int64) error
		tag   int
		data  unsafe.Pointer
		bytes int64
	}
	ids, values, answer := p.regions[regionIDs], p.regions[regionValues], p.regions[regionAnswer]
	list := []one{{x.all.receive, tagAnswer + p.credit, x.room, mostMessage}}
	if answer.Bytes > mostInline {
		list = append(list, one{x.all.receive, tagPayload + p.credit, answer.data(), answer.Bytes})
	}
	list = append(list, one{x.all.send, tagHead, x.message, n})
	x.bulk = len(list)
	if h.payload() > h.inline() {
		for _, s := range []one{{x.all.send, tagIDs + p.credit, ids.data(), ids.Bytes}, {x.all.send, tagValues + p.credit, values.data(), values.Bytes}} {
			if s.bytes > 0 {
				list = append(list, s)
			}
		}
	}
	for _, t := range list {
		if err := t.start(o.member, t.tag, t.data, t.bytes); err != nil {
			return err
		}
	}
	return nil
}

// Requests implements work.Task.
func (x *remoteRequest) Requests(b *work.Batch) work.Pace {
	moving := false
	for i, t := range x.all.list {
		if !t.Done() {
			b.Add(x.all.comm.Poller(), t.Address())
			moving = moving || i >= x.bulk || i == 1 && x.all.list[0].Done()
		}
	}
	if moving {
		return work.Always
	}
	return work.Seldom
}

// Poll implements work.Task.
func (x *remoteRequest) Poll() bool {
	if now := time.Now(); now.Sub(x.looked) >= byeEvery {
		x.looked = now
		if err := x.by.o.l.g.Trouble(x.by.o.what, x.by.o.member); err != nil {
			x.by.died(err)
		}
	}
	if !x.cancelled && (x.fail != nil || x.by.why.Load() != nil) {
		x.cancelled = true
		x.all.cancel()
	}
	if !x.all.over() {
		return false
	}
	s, o := x.by, x.by.o
	header, failed, err := x.read()
	o.mu.Lock()
	if err == nil {
		x.p.answer(header, failed)
	} else {
		x.p.settle(nil, err)
	}
	o.mu.Unlock()
	x.all.free()
	mem.Free(x.message)
	s.under.Add(-1)
	x.done()
	return true
}

// read returns what the server has answered: a header or an error, failed. err says that it has
// not.
func (x *remoteRequest) read() (header []byte, failed, err error) {
	o, p := x.by.o, x.p
	rot := func(err error) error {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.damaged(err)
		return o.broken
	}
	if x.fail != nil {
		return nil, nil, x.fail
	}
	switch err := x.all.err(); {
	case status.CodeOf(err) == status.Truncate:
		return nil, nil, rot(err)
	case status.CodeOf(err) == status.ProcFailed: // the group may not know of the death yet
		rank := o.l.g.WorldRank(o.member)
		return nil, nil, status.New(status.PeerDied, "%s: rank %d died: %v", o.what, rank, err).WithRanks(rank)
	case err != nil:
		return nil, nil, err
	}
	first := x.all.list[0]
	want := p.regions[regionAnswer].Bytes
	large := want > mostInline
	if first.Cancelled != 0 || large && x.all.list[1].Cancelled != 0 {
		return nil, nil, x.by.why.Load()
	}
	b := bytesOf(x.room, min(first.Bytes, mostMessage))
	h, err := readHead(b)
	switch {
	case err != nil:
		return nil, nil, rot(err)
	case h.kind != kindAnswer && h.kind != kindFailed || int(h.credit) != p.credit || h.seq != p.seq:
		return nil, nil, rot(rubbish("a message of kind %#x for request %d with credit %d; that was %d with %d", uint32(h.kind), h.seq, h.credit, p.seq, p.credit))
	case h.kind == kindAnswer && h.sizes[regionAnswer] != want:
		return nil, nil, rot(rubbish("an answer of %d bytes where %d were asked for", h.sizes[regionAnswer], want))
	case large && x.all.list[1].Bytes != h.payload():
		return nil, nil, rot(rubbish("%d bytes of an answer of %d", x.all.list[1].Bytes, h.payload()))
	}
	header = slices.Clone(b[headBytes+h.inline():])
	if h.kind == kindAnswer {
		copy(bytesOf(p.regions[regionAnswer].data(), h.inline()), b[headBytes:])
		return header, nil, nil
	}
	e, ok := status.Unpack(header)
	if !ok {
		return nil, nil, rot(rubbish("%d bytes that are no error", len(header)))
	}
	return nil, e, nil
}

func (s *remoteOutlet) harvest() {}

// verdict looks for the message that the server takes no more.
func (s *remoteOutlet) verdict() *status.Error {
	if why := s.why.Load(); why != nil {
		return why
	}
	if now := time.Now(); now.Sub(s.looked) >= byeEvery {
		s.looked = now
		if e := s.bye(); e != nil {
			s.heard.Store(true)
			s.why.CompareAndSwap(nil, e)
			return e
		}
	}
	return nil
}

func (s *remoteOutlet) bye() *status.Error {
	comm := s.o.l.comm
	m, found, err := comm.Match(int32(s.o.member), tagBye)
	if err != nil || !found {
		return nil // an error of the transport is told where data moves
	}
	if m.Bytes > mostBye {
		s.o.damaged(rubbish("a message of %d bytes as its last one", m.Bytes))
		return s.o.broken
	}
	room, err := mem.Alloc(mostBye)
	if err != nil {
		return status.Plain(err)
	}
	defer mem.Free(room)
	if err := transport.TakeNow(comm, m, room, m.Bytes); err != nil {
		return status.Plain(err)
	}
	h, err := readHead(bytesOf(room, m.Bytes))
	if err == nil && h.kind == kindBye {
		if e, ok := status.Unpack(bytesOf(room, m.Bytes)[headBytes:]); ok {
			e.Msg = s.o.what + ": it takes no more: " + e.Msg
			return e
		}
	}
	s.o.damaged(rubbish("a last message that is none: %v", err))
	return s.o.broken
}

// died makes the requests give their receives up. MPI may keep the sends for ever, and then their
// memory stays.
func (s *remoteOutlet) died(err error) { s.why.CompareAndSwap(nil, status.Plain(err)) }

func (s *remoteOutlet) await(done func() bool, deadline time.Time, interrupt work.Interrupt) error {
	var why error
	l := s.o.l
	looked := time.Now()
	err := l.g.Engine().Wait(func() bool {
		if done() {
			return true
		}
		if now := time.Now(); l.closed.Load() || now.Sub(looked) >= byeEvery {
			looked = now
			why = s.o.trouble()
		}
		return why != nil
	}, deadline, interrupt)
	if err == nil {
		err = why
	}
	return err
}

// hears tells whether the server's last message has come, or none will.
func (s *remoteOutlet) hears() bool {
	s.o.mu.Lock()
	defer s.o.mu.Unlock()
	if !s.heard.Load() && (s.bye() != nil || s.o.l.g.Trouble(s.o.what, s.o.member) != nil) {
		s.heard.Store(true)
	}
	return s.heard.Load()
}

func (s *remoteOutlet) quiet() bool { return s.heard.Load() }

func (s *remoteOutlet) wake() {}

func (s *remoteOutlet) close() {
	l := s.o.l
	s.o.posting.Lock()
	defer s.o.posting.Unlock()
	if l.g.Trouble(s.o.what, s.o.member) != nil || s.why.Load() != nil && !s.heard.Load() {
		return // nobody reads it
	}
	block, err := mem.Alloc(headBytes)
	if err != nil {
		return // the server finds out when this rank ends
	}
	h := head{kind: kindGone, seq: s.o.seq + 1}
	h.put(bytesOf(block, headBytes))
	s.last.comm, s.block = l.comm, block
	if err := s.last.send(s.o.member, tagHead, block, headBytes); err != nil {
		mem.Free(block)
	}
	s.why.CompareAndSwap(nil, l.closedError(s.o.what))
}

func (s *remoteOutlet) reclaim(deadline time.Time) bool {
	s.o.posting.Lock()
	defer s.o.posting.Unlock()
	idle := func() bool { return s.under.Load() == 0 && (len(s.last.list) == 0 || s.last.poll()) }
	// The server answers the last message with its own. A later communicator may get the number of
	// this one, and would get it.
	if err := s.o.l.g.Engine().Wait(func() bool { return idle() && (len(s.last.list) == 0 || s.hears()) }, deadline, nil); err != nil && !idle() {
		return false
	}
	if len(s.last.list) > 0 {
		s.last.free()
		mem.Free(s.block)
	}
	for i, room := range s.rooms {
		mem.Free(room)
		s.rooms[i] = nil
	}
	return true
}

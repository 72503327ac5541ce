package window

import (
	"slices"
	"time"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/transport"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// post is this member's side of the messages of a group's windows. It is a task of the engine as long as there is a window
// that needs messages, so the progress thread carries calls of other members out while this process computes.
//
// The calls of a member are carried out in their order, which is that of its messages. Only a lock that
// others hold is answered later. Windows.mu guards all fields.
type post struct {
	ws      *Windows
	on      transport.Endpoint
	tag     int32
	peers   []peer
	sending []outgoing
	coming  int64 // bytes of the messages in the queues
	locks   []waiting
	running bool // it is a task
	stays   bool // it goes on without windows, because some member may not know that one has ended
	leaving bool // the process only wants to end: MPI may have no receive that ends with the next message
	closed  bool // it takes no more messages: the communicator may be freed
	posting bool // receives are posted for all members; else messages are matched. It does not change

	heard  time.Time // when the last message came, or the last call was sent
	lively bool      // that was a moment ago
	using  func()    // ends the use of the group; nil while MPI has nothing under way
	looked time.Time // for members that have died
}

// peer is what is under way with one member.
type peer struct {
	sent    uint64 // the last call to it
	acked   uint64 // it has carried out those up to this one
	pending map[uint64]*pending
	bytes   int64 // of the elements of these

	queue []*arrival // its messages, in their order; behind them receives that are posted
	done  uint64     // its calls up to this one were carried out, or wait for a lock
	told  uint64     // what it was told of that
	more  bool       // more calls follow at once: it need not be told yet
	lost  error      // it has sent what cannot be: it is not listened to
}

// outgoing is a message that MPI may still read.
type outgoing struct {
	*transport.Request
	block unsafe.Pointer
}

// waiting is a member of another node that waits for a lock here.
type waiting struct {
	from   int
	seq    uint64
	w      *Window
	shared bool
}

const (
	// lively is how long after a message the next one is expected, and after a call its answer: a thread that waits does
	// not sleep so long.
	lively = 500 * time.Microsecond
	// mostUntold is how many calls a member carries out before it says so, if more follow at once.
	mostUntold = mostCalls / 2
)

// serve sees to it that calls of other members are carried out.
func (ws *Windows) serve() {
	on, tag := ws.g.Carrier()
	ws.mu.Lock()
	if ws.post == nil {
		ws.post = &post{ws: ws, on: on, tag: tag, peers: make([]peer, ws.size), posting: ws.size-1 <= mostPosted}
		for r := range ws.post.peers {
			ws.post.peers[r].pending = map[uint64]*pending{}
		}
	}
	p := ws.post
	begin := !p.running
	p.running = true
	ws.mu.Unlock()
	if begin {
		ws.g.Engine().AddStanding(p)
		ws.g.Engine().StartProgress()
	}
}

// remove takes a window off the list: calls to it fail from now on.
func (ws *Windows) remove(w *Window) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if ws.open[w.number] != w {
		return
	}
	delete(ws.open, w.number)
	if ws.post != nil {
		ws.post.locks = slices.DeleteFunc(ws.post.locks, func(l waiting) bool {
			if l.w == w {
				ws.post.fail(l.from, l.seq, ws.freedThere(Lock.String(), ws.me))
			}
			return l.w == w
		})
	}
}

// Close closes all windows on this member. leaving says that the process goes on with the transport, only to end: then
// messages of other members are still answered.
func (ws *Windows) Close(leaving bool) {
	ws.eachOpen((*Window).Close)
	ws.mu.Lock()
	p := ws.post
	if p != nil {
		p.leaving, p.closed = true, !leaving
	}
	ws.mu.Unlock()
	if p != nil {
		_ = ws.g.Engine().Wait(func() bool { return p.isOver(leaving) }, time.Now().Add(endLimit), nil)
	}
}

// isOver tells whether it is no task any more, or, if it may be one, has no receive that is posted.
func (p *post) isOver(mayRun bool) bool {
	p.ws.mu.Lock()
	defer p.ws.mu.Unlock()
	return !p.running || mayRun && !p.anyPosted()
}

// call sends a call to a member. The block is the post's.
func (p *post) call(r int, c *call, q *pending, block unsafe.Pointer, b []byte) error {
	to := &p.peers[r]
	if to.lost != nil {
		mem.Free(block)
		return to.lost
	}
	c.seq, c.done = to.sent+1, to.done
	c.put(b, &c.at)
	if err := p.send(r, block, int64(len(b))); err != nil {
		return err
	}
	to.sent++
	to.told = c.done
	to.pending[c.seq] = q
	p.heard = time.Now()
	to.bytes += q.given + q.taken
	return nil
}

// send sends a block, and frees it when MPI is done with it.
func (p *post) send(r int, block unsafe.Pointer, n int64) error {
	request, err := p.on.Send(block, n, int32(r), p.tag)
	if err != nil {
		mem.Free(block)
		return err
	}
	if transport.Over(p.on, request) { // mostly: then the next message is written to memory that is in the cache
		p.on.Release(request)
		mem.Free(block)
		return nil
	}
	p.use()
	p.sending = append(p.sending, outgoing{request, block})
	return nil
}

// use says that MPI has a request of the post.
func (p *post) use() {
	if p.using == nil {
		p.using = p.ws.g.Use()
	}
}

// idle takes that back when it has none any more, and tells whether it has none.
func (p *post) idle() bool {
	if len(p.sending) > 0 || p.coming > 0 || p.anyPosted() {
		return false
	}
	if p.using != nil {
		p.using()
		p.using = nil
	}
	return true
}

// Requests implements work.Task.
func (p *post) Requests(b *work.Batch) work.Pace {
	p.ws.mu.Lock()
	defer p.ws.mu.Unlock()
	moving := false
	for _, out := range p.sending {
		if !out.Done() {
			b.Add(p.on.Poller(), out.Address())
			moving = true
		}
	}
	for r := range p.peers {
		moving = moving || len(p.peers[r].pending) > 0
		posted := 0
		for _, a := range p.peers[r].queue {
			if a.Request == nil || a.Done() {
				continue
			}
			b.Add(p.on.Poller(), a.Address())
			if !a.posted || a.givenUp {
				moving = true
			} else if posted++; posted == testedAtOnce {
				break // the next ones end after these
			}
		}
	}
	p.lively = time.Since(p.heard) < lively
	if moving || p.lively {
		return work.Often
	}
	return p.on.Pace()
}

// Lively implements work.Standing.
func (p *post) Lively() bool {
	p.ws.mu.Lock()
	defer p.ws.mu.Unlock()
	return p.lively
}

// Poll implements work.Task.
func (p *post) Poll() bool {
	p.ws.mu.Lock()
	defer p.ws.mu.Unlock()
	p.freeSent()
	p.receive()
	for r := range p.peers {
		p.advance(r)
	}
	p.grantLocks()
	for r := range p.peers {
		p.tell(r)
	}
	if p.idle() && !p.wanted() {
		p.running = false
		return true
	}
	return false
}

// wanted tells whether messages may come.
func (p *post) wanted() bool {
	return !p.closed && (p.stays || len(p.ws.open) > 0 || p.ws.soon > 0)
}

func (p *post) freeSent() {
	p.sending = slices.DeleteFunc(p.sending, func(out outgoing) bool {
		if !out.Done() {
			return false
		}
		p.on.Release(out.Request)
		mem.Free(out.block)
		return true
	})
}

// lose ends what is under way with a member that has sent what cannot be.
func (p *post) lose(from int, why error) {
	q := &p.peers[from]
	rank := p.ws.g.WorldRank(from)
	q.lost = status.New(status.GroupBroken, "rank %d: %v", rank, why).WithRanks(rank)
	if status.CodeOf(why) == status.ProcFailed {
		q.lost = status.New(status.PeerDied, "rank %d died: %v", rank, why).WithRanks(rank)
	}
	for _, one := range q.pending {
		one.err = q.lost
		one.over.Store(true)
	}
	clear(q.pending)
	q.bytes = 0
}

// take takes in a message. It returns false if it has to be called again.
func (p *post) take(from int, a *arrival) bool {
	q := &p.peers[from]
	if a.h.kind == kindCall {
		return p.carryOut(from, a)
	}
	switch one := q.pending[a.h.seq]; {
	case a.h.kind == kindDone:
	case one == nil:
		p.lose(from, rubbish("an answer to call %d, which there is not", a.h.seq))
	case a.h.kind == kindFailed:
		err, ok := status.Unpack(a.rest)
		if !ok {
			p.lose(from, rubbish("%d bytes that are no error", len(a.rest)))
			break
		}
		p.settle(from, a.h.seq, nil, err)
	case int64(len(a.rest)) != one.taken:
		p.lose(from, rubbish("%d bytes of elements where %d were asked for", len(a.rest), one.taken))
	default:
		p.settle(from, a.h.seq, a, nil)
	}
	if q.lost == nil {
		p.acknowledge(from, a.h.done)
	}
	return true
}

// settle ends a call with its answer.
func (p *post) settle(from int, seq uint64, back *arrival, err error) {
	q := &p.peers[from]
	one := q.pending[seq]
	delete(q.pending, seq)
	q.bytes -= one.given + one.taken
	if !one.wants {
		if err != nil {
			one.w.lose(from, err)
		}
		return
	}
	if one.dropped {
		return
	}
	one.err = err
	if back != nil {
		one.data = back.rest
		one.back = &arrival{block: back.block}
		back.block = nil // it is the caller's
	}
	one.over.Store(true)
}

// lose notes that a put or an accumulate to a member has failed. The next flush tells of it.
func (w *Window) lose(r int, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.lost[r] == nil {
		w.lost[r] = err
	}
}

// acknowledge takes in that a member has carried out the calls up to one.
func (p *post) acknowledge(from int, done uint64) {
	q := &p.peers[from]
	if done > q.sent {
		p.lose(from, rubbish("call %d was carried out, and the last one is %d", done, q.sent))
		return
	}
	for ; q.acked < done; q.acked++ {
		if one := q.pending[q.acked+1]; one != nil && !one.wants {
			delete(q.pending, q.acked+1)
			q.bytes -= one.given + one.taken
		}
	}
}

// tell tells a member how far its calls have come, if it does not know.
func (p *post) tell(r int) {
	q := &p.peers[r]
	if q.done == q.told || q.lost != nil || q.more && p.lively && q.done-q.told < mostUntold {
		return
	}
	p.answer(r, head{kind: kindDone}, nil)
}

// answer sends a head, and bytes that follow it. A member that does not get it finds out by its deadline.
func (p *post) answer(r int, h head, rest []byte) {
	n := int64(headBytes + len(rest))
	block, err := mem.Alloc(n)
	if err != nil {
		return
	}
	b := unsafe.Slice((*byte)(block), n)
	copy(b[headBytes:], rest)
	p.sendAnswer(r, h, block, n)
}

// sendAnswer writes a head to a block, and sends it. The block is the post's.
func (p *post) sendAnswer(r int, h head, block unsafe.Pointer, n int64) {
	q := &p.peers[r]
	h.done = q.done
	h.put(unsafe.Slice((*byte)(block), n), &box{})
	if p.send(r, block, n) == nil {
		q.told = q.done
	}
}

// fail tells a member that its call has failed.
func (p *post) fail(r int, seq uint64, err error) {
	p.answer(r, head{kind: kindFailed, seq: seq}, status.Pack(err))
}

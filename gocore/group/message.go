package group

import (
	"errors"
	"fmt"
	"sync"
	"time"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/cuda"
	"github.com/paddlempi/paddlempi/gocore/mpi"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// messageSpin is how often a synchronous message tests its request before it
// becomes a task of the engine.
const messageSpin = 300

// message carries out send, recv, sendrecv and probe. They bypass the order of the
// collectives. Like Submit it returns a handle with an error after which MPI may use the
// memory longer.
func (g *Group) message(d *op.Desc) (*work.Handle, work.Result, error) {
	if d.Code == op.Panic {
		panic("paddlempi: the panic operation was called, which exists to test this")
	}
	if err := g.enter(d.Code); err != nil {
		return nil, work.Result{}, err
	}
	timeout := d.Timeout(g.Timeout(), work.Longest)
	m := messages.Get().(*message)
	m.g, m.code, m.timeout, m.stream = g, d.Code, timeout, cuda.Stream(d.Stream)
	if d.Code == op.Probe {
		m.deadline = time.Now().Add(timeout)
		r, err := g.probe(d, m)
		m.recycle()
		return nil, r, err
	}
	if err := m.prepare(d); err != nil {
		m.free()
		m.recycle()
		return nil, work.Result{}, err
	}
	if err := m.start(); err != nil {
		return m.linger(err), work.Result{}, err
	}
	if d.Flags&op.FlagAsync != 0 {
		h := m.become()
		h.Watch(d.Cookie, d.State)
		m.async = true
		g.async.Add(1)
		if d.Flags&op.FlagNotify != 0 {
			h.Notify()
		}
		if !m.Poll() {
			g.env.Engine.Add(m)
			g.env.Engine.StartProgress()
		}
		return h, work.Result{}, nil
	}
	if m.spin() {
		r, err := m.result, m.left.follow(m.stream, m.err)
		m.recycle()
		return nil, r, err
	}
	h := m.become()
	stream := m.stream
	g.env.Engine.Add(m)
	r, err := h.Wait(-1, g.env.Interrupt)
	if !h.Done() {
		if h.GiveUp(err) {
			// Interrupted. The next tick, on whichever thread, takes the message back.
			g.env.Engine.StartProgress()
		} else {
			r, err = h.Result()
		}
	}
	if err = h.Follow(uint64(stream), err); err == nil || h.Settled() {
		return nil, r, err
	}
	return h, r, err
}

// enter counts a message as under way, if the group takes any.
func (g *Group) enter(code op.Code) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	err := g.usableLocked(code)
	if err == nil {
		g.messages.Add(1)
	}
	return err
}

// spin drives the message for a moment on the caller's thread and tells whether it is over.
func (m *message) spin() bool {
	var slots [2]uintptr
	for i := 0; i < messageSpin; i++ {
		if m.Poll() {
			return true
		}
		m.g.env.Lib.Poll(m.pending(slots[:0]))
		if i&15 == 15 {
			m.g.env.Engine.Tick()
			if m.g.env.crowded {
				break
			}
		}
	}
	return m.Poll()
}

// messages are reused as long as they end within the call: the usual send or receive
// allocates nothing.
var messages = sync.Pool{New: func() any { return new(message) }}

// recycle gives back a message that ended within its call.
func (m *message) recycle() {
	m.g.messages.Add(-1)
	*m = message{}
	messages.Put(m)
}

// become makes a task of the message, with a handle and a deadline.
func (m *message) become() *work.Handle {
	m.handle = m.g.env.Engine.NewHandle()
	m.deadline = time.Now().Add(m.timeout)
	return m.handle
}

// linger lets a message that failed at its start end by itself: a half may be under way. Then
// it returns the handle.
func (m *message) linger(err error) *work.Handle {
	h := m.become()
	h.GiveUp(err)
	m.giveUp(err)
	if m.Poll() {
		return nil
	}
	m.g.env.Engine.Add(m)
	m.g.env.Engine.StartProgress()
	return h
}

// finish tells the caller how the message, which is over, ended; left is what it left queued
// on a device, or nil.
func (m *message) finish(left *tail, r work.Result, err error) {
	if m.handle == nil {
		m.left, m.result, m.err = left, r, err
		return
	}
	m.told(left.finish(m.handle, r, err))
	m.g.messages.Add(-1)
}

// told counts an asynchronous message off when its caller is told of its end.
func (m *message) told(first bool) {
	if first && m.async {
		m.g.async.Add(-1)
	}
}

// message is the task of a message, or of the two of a sendrecv.
type message struct {
	g        *Group
	code     op.Code
	handle   *work.Handle // nil while the message may end within the call
	result   work.Result  // valid then, once it is over
	err      error
	deadline time.Time
	timeout  time.Duration
	stream   cuda.Stream // that tensors in device memory are ordered with
	halves   [2]half     // a send, a receive, or one of each
	n        int
	polls    int
	since    time.Time // when it was first looked whether the peer has left
	leftAt   time.Time // when it was seen to have
	left     *tail     // what a message that ended within the call left queued on a device
	gaveUp   error     // why the caller was told before MPI was done
	async    bool      // its caller did not wait
}

type half struct {
	call  mpi.Call
	slot  *mpi.Slot // nil before MPI has been called for it
	bytes int64     // of a receive's buffer
	peer  int32     // group rank, -1 any
	chip  *onChip   // its tensor is in device memory
	// dropped says that it was given up before MPI was called for it.
	dropped bool
	queued  bool // it is in Group.waiting
	stage   *staging
	free    func()
}

// prepare checks the arguments and describes the calls.
func (m *message) prepare(d *op.Desc) error {
	t := d.Code.Trait()
	send, recv := t.Send != op.None, t.Recv != op.None
	sends, recvs := d.Sends(), d.Recvs()
	if send && len(sends) != 1 || recv && len(recvs) != 1 {
		return status.New(status.Argument, "%s: got %d send and %d recv tensors; it takes one of each side it uses", d.Code, len(sends), len(recvs))
	}
	if send {
		// MPI does not fill what it sends: where the two share memory, a copy is sent.
		apart := recv && overlap(&sends[0], &recvs[0])
		if err := m.half(d.Code, mpi.FnSend, "send", &sends[0], d.Peer, d.Tag, apart); err != nil {
			return err
		}
	}
	if recv {
		peer, tag := d.Peer, d.Tag
		if send {
			peer, tag = d.Peer2, d.Tag2
		}
		return m.half(d.Code, mpi.FnRecv, "recv", &recvs[0], peer, tag, false)
	}
	return nil
}

// checkAddress checks peer and tag.
func (g *Group) checkAddress(code op.Code, peer, tag int32, wild bool) error {
	if peer >= int32(g.Size) || peer < 0 && !(wild && peer == mpi.AnySource) {
		return status.New(status.Argument, "%s: peer is rank %d of the group, which has ranks 0 to %d", code, peer, g.Size-1)
	}
	if ub := g.env.Lib.TagUB(); tag > ub || tag < 0 && !(wild && tag == mpi.AnyTag) {
		return status.New(status.Argument, "%s: tag is %d; this MPI takes 0 to %d", code, tag, ub)
	}
	return nil
}

// overlap tells whether two contiguous buffers share memory; others are staged anyway.
func overlap(x, y *op.Buf) bool {
	from, to := uintptr(x.Data), uintptr(y.Data)
	return x.Count > 0 && y.Count > 0 && from < to+uintptr(y.Bytes()) && to < from+uintptr(x.Bytes())
}

// half describes one of the calls; with apart through memory of its own.
func (m *message) half(code op.Code, fn mpi.Fn, side string, b *op.Buf, peer, tag int32, apart bool) error {
	if err := m.g.checkAddress(code, peer, tag, fn == mpi.FnRecv); err != nil {
		return err
	}
	if err := checkBuf(code, side, 0, b); err != nil {
		return err
	}
	comm, err := m.g.messageComm()
	if err != nil {
		return err
	}
	h := &m.halves[m.n]
	m.n++
	h.peer, h.bytes = peer, b.Bytes()
	data := b.Data
	if !b.OnHost() && b.Count > 0 {
		if h.chip, err = m.g.onChip(code, side, b, apart, m.stream); err != nil {
			return err
		}
		data = h.chip.data()
		b = &op.Buf{Data: data, Count: b.Count, DType: b.DType}
		apart = false
	}
	if apart && b.Contiguous() {
		b = &op.Buf{Data: b.Data, Count: b.Count, DType: b.DType} // flat: nothing of the caller's to keep
	}
	if (apart || !b.Contiguous()) && b.Count > 0 {
		s, err := stageBuf(b, fn == mpi.FnSend, fn == mpi.FnRecv)
		if err != nil {
			return err
		}
		h.stage, data = &s, s.block
		s.own()
		if err := s.pack(); err != nil {
			return err
		}
	}
	count, typ := h.bytes, m.g.env.Lib.Byte()
	if count > mpi.MaxCount {
		t, free, err := m.g.env.Lib.Bytes(count)
		if err != nil {
			return err
		}
		count, typ, h.free = 1, t, free
	}
	h.call = mpi.Call{Fn: fn, Peer: peer, Tag: tag, Comm: comm}
	if fn == mpi.FnSend {
		h.call.SendBuf, h.call.SendCount, h.call.SendType = data, count, typ
	} else {
		h.call.RecvBuf, h.call.RecvCount, h.call.RecvType = data, count, typ
	}
	return nil
}

// start posts the receive before the send, each as soon as its tensor is ready.
func (m *message) start() error {
	for i := m.n - 1; i >= 0; i-- {
		if err := m.tryStart(&m.halves[i]); err != nil {
			return err
		}
	}
	return nil
}

// tryStart calls MPI for a half unless its turn has not come: the device has to be done
// with the tensor, and messages with one rank keep their order.
func (m *message) tryStart(h *half) error {
	if h.slot != nil || h.dropped {
		return nil
	}
	ready, err := h.chip.ready()
	if err != nil {
		m.g.unqueue(h)
		return err
	}
	if !m.g.mayStart(h, ready) {
		return nil
	}
	h.slot = m.g.env.Lib.NewSlot()
	err = m.g.env.Lib.Start(&h.call, h.slot)
	m.g.unqueue(h)
	if err != nil {
		m.g.env.Lib.FreeSlot(h.slot)
		h.slot = nil
		m.g.fail(err)
	}
	return err
}

// over tells whether nothing of a half is to come any more.
func (h *half) over() bool { return h.dropped || h.slot != nil && h.slot.Done != 0 }

func (m *message) pending(list []uintptr) []uintptr {
	for i := 0; i < m.n; i++ {
		if s := m.halves[i].slot; s != nil && s.Done == 0 {
			list = append(list, uintptr(unsafe.Pointer(s)))
		}
	}
	return list
}

// Requests adds what is under way. The other side may come late: nothing is known to move.
func (m *message) Requests(b *work.Batch) (moving bool) {
	var room [2]uintptr
	for _, s := range m.pending(room[:0]) {
		b.Add(m.g.env.Lib, s)
	}
	return false
}

// Poll ends the message when its requests have.
func (m *message) Poll() bool {
	for i := m.n - 1; i >= 0; i-- { // all of them: a send may wait for the other side's receive
		h := &m.halves[i]
		if h.slot == nil && !h.dropped {
			if err := m.tryStart(h); err != nil {
				m.giveUp(err)
			}
		}
	}
	for i := 0; i < m.n; i++ {
		if !m.halves[i].over() {
			m.overdue()
			return false
		}
	}
	r, err := m.outcome()
	left := m.leaveDevice(err)
	m.free()
	m.finish(left, r, err)
	return true
}

// outcome looks at the requests, which are done.
func (m *message) outcome() (r work.Result, err error) {
	for i := 0; i < m.n; i++ {
		h := &m.halves[i]
		if h.dropped {
			return r, m.gaveUp
		}
		if e := m.g.env.Lib.SlotError(h.call.Fn, h.slot); e != nil && err == nil {
			err = m.named(h, e)
		}
		if h.call.Fn != mpi.FnRecv {
			continue
		}
		if h.slot.Cancelled != 0 {
			return r, m.gaveUp
		}
		r = work.Result{Source: h.slot.Source, Tag: h.slot.Tag, Bytes: h.slot.Bytes}
		if err == nil && r.Bytes != h.bytes {
			err = status.New(status.Truncate, "%s: the message from rank %d of the group with tag %d has %d bytes, the buffer %d; they must be equal (probe tells the length before)",
				m.code, r.Source, r.Tag, r.Bytes, h.bytes).WithRanks(m.g.Ranks[r.Source])
		}
		if err == nil && h.stage != nil {
			c := call{request: request{staged: []staging{*h.stage}}}
			err = c.unstage(nil)
			h.stage = nil
		}
		if err == nil && h.chip != nil {
			err = h.chip.arrived()
		}
	}
	return r, err
}

// named says of which message MPI's error is.
func (m *message) named(h *half, err error) error {
	e := &status.Error{Code: status.CodeOf(err)}
	errors.As(err, &e)
	what := m.describe()
	if e.Code == status.Truncate && h.call.Fn == mpi.FnRecv {
		what += ": the message is longer than that (probe tells the length before)"
	}
	named := status.New(e.Code, "%s: %v", what, err)
	named.MPIClass, named.Ranks = e.MPIClass, e.Ranks
	if h.peer >= 0 {
		named.Ranks = []int{m.g.Ranks[h.peer]}
	}
	return named
}

func (m *message) free() {
	for i := 0; i < m.n; i++ {
		h := &m.halves[i]
		if h.slot != nil {
			m.g.env.Lib.FreeSlot(h.slot)
			h.slot = nil
		}
		if h.stage != nil {
			h.stage.free()
			h.stage = nil
		}
		if h.chip != nil {
			h.chip.free()
			h.chip = nil
		}
		if h.free != nil {
			h.free()
			h.free = nil
		}
	}
}

// leftGrace is how long a message from a rank that has left may still be on its way.
const leftGrace = 500 * time.Millisecond

// overdue gives the message up when its caller was interrupted, its deadline has passed
// or its peer has left.
func (m *message) overdue() {
	if m.handle == nil || m.gaveUp != nil {
		return
	}
	if m.handle.Done() {
		_, err := m.handle.Result()
		m.giveUp(err)
		return
	}
	if m.polls++; m.polls&31 != 0 {
		return
	}
	now := time.Now()
	if m.g.ending() != nil {
		m.giveUp(m.g.endingError(m.describe()))
		return
	}
	if now.After(m.deadline) {
		m.giveUp(status.New(status.Timeout, "%s on the group of ranks %s timed out after %v", m.describe(), brief(m.g.Ranks), m.timeout).WithRanks(m.peers()...))
		return
	}
	for i := 0; i < m.n; i++ {
		h := &m.halves[i]
		if !h.over() && m.peerLeft(h.peer, now) {
			m.giveUp(m.g.endedError(m.describe(), h.peer))
			return
		}
	}
}

// peerLeft tells whether the peer, any of whom is all others, has ended for so long that no
// message of its can be on its way. A message to oneself waits for no one else.
func (m *message) peerLeft(peer int32, now time.Time) bool {
	if int(peer) == m.g.Rank || m.g.Size == 1 {
		return false
	}
	if m.since.IsZero() {
		m.since = now
	}
	for i, r := range m.g.Ranks {
		if (int(peer) == i || peer < 0 && i != m.g.Rank) && !m.g.env.left(r, now.Sub(m.since)) {
			return false
		}
	}
	if m.leftAt.IsZero() {
		m.leftAt = now
	}
	return now.Sub(m.leftAt) > leftGrace
}

// endedError names the peer that has ended, all others for a message from anybody.
func (g *Group) endedError(what string, peer int32) error {
	var ended []int
	for i, r := range g.Ranks {
		if int(peer) == i || peer < 0 && i != g.Rank {
			ended = append(ended, r)
		}
	}
	return status.New(status.PeerLeft, "%s on the group of ranks %s: rank(s) %s have ended", what, brief(g.Ranks), brief(ended)).WithRanks(ended...)
}

// giveUp tells the caller. A receive is cancelled and harms nothing; a send cannot
// be, so its group is broken and the task lingers until MPI is done with the buffer.
func (m *message) giveUp(err error) {
	m.gaveUp = err
	sending := false
	for i := 0; i < m.n; i++ {
		h := &m.halves[i]
		if h.over() {
			continue
		}
		if h.slot == nil {
			h.dropped = true // MPI knows nothing of it
			m.g.unqueue(h)
			continue
		}
		if h.call.Fn == mpi.FnRecv {
			if m.g.env.Lib.Cancel(h.slot) == nil {
				continue
			}
		}
		sending = true
	}
	if sending {
		m.told(m.handle.GiveUp(err))
		m.g.fail(err)
	}
}

// describe names the message: operation, peers, tags, lengths.
func (m *message) describe() string {
	text := m.code.String()
	for i := 0; i < m.n; i++ {
		h := &m.halves[i]
		way, peer := "to", fmt.Sprintf("rank %d", h.peer)
		if h.call.Fn == mpi.FnRecv {
			way = "from"
		}
		if h.peer < 0 {
			peer = "any rank"
		}
		text += fmt.Sprintf(" of %d bytes %s %s of the group (tag %d)", h.bytes, way, peer, h.call.Tag)
	}
	return text
}

func (m *message) peers() (ranks []int) {
	for i := 0; i < m.n; i++ {
		if h := &m.halves[i]; h.peer >= 0 && !h.over() {
			ranks = append(ranks, m.g.Ranks[h.peer])
		}
	}
	return ranks
}

// probe waits for a message and leaves it where it is.
func (g *Group) probe(d *op.Desc, m *message) (r work.Result, err error) {
	if err := g.checkAddress(d.Code, d.Peer, d.Tag, true); err != nil {
		return r, err
	}
	if d.Flags&op.FlagAsync != 0 {
		return r, status.New(status.Argument, "probe: it waits inside the call; there is no asynchronous form")
	}
	comm, err := g.messageComm()
	if err != nil {
		return r, err
	}
	looks := 0
	waitErr := g.wait(func() bool {
		st, found, e := g.env.Lib.Iprobe(comm, d.Peer, d.Tag)
		if found {
			r = work.Result{Source: st.Source, Tag: st.Tag, Bytes: st.Bytes}
		}
		if err = e; err == nil && !found {
			if looks++; looks&31 == 0 && m.peerLeft(d.Peer, time.Now()) {
				err = g.endedError(describeProbe(d), d.Peer)
			}
		}
		return found || err != nil
	}, m.deadline)
	if err == nil && g.ending() != nil && waitErr != nil {
		return r, g.endingError(describeProbe(d))
	}
	if waitErr == work.ErrDeadline {
		late := status.New(status.Timeout, "%s on the group of ranks %s timed out after %v", describeProbe(d), brief(g.Ranks), m.timeout)
		if d.Peer >= 0 {
			late.Ranks = []int{g.Ranks[d.Peer]}
		}
		return r, late
	}
	if waitErr != nil {
		return r, waitErr
	}
	return r, err
}

func describeProbe(d *op.Desc) string {
	from, tag := "any rank", "any tag"
	if d.Peer >= 0 {
		from = fmt.Sprintf("rank %d", d.Peer)
	}
	if d.Tag >= 0 {
		tag = fmt.Sprintf("tag %d", d.Tag)
	}
	return fmt.Sprintf("probe of %s of the group (%s)", from, tag)
}

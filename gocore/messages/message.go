package messages

import (
	"fmt"
	"sync"
	"time"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/buffer"
	"github.com/paddlempi/paddlempi/gocore/cuda"
	"github.com/paddlempi/paddlempi/gocore/health"
	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/trace"
	"github.com/paddlempi/paddlempi/gocore/transport"
	"github.com/paddlempi/paddlempi/gocore/work"
	"github.com/paddlempi/paddlempi/gocore/world"
)

// A synchronous message tests its requests messageSpin times, which takes some 40 us, before it becomes a task of the engine,
// and once more for each KiB, up to mostSpin times.
const (
	messageSpin = 1500
	mostSpin    = 8192
	shortBytes  = 4 << 10 // which every MPI sends without asking the receiver
	yieldEvery  = 256     // some 10 us: the rank that it waits for may be on the same core
)

// spin drives the message for a moment on the caller's thread, and tells whether the message is
// over.
func (m *message) spin() bool {
	if m.Poll() {
		return true
	}
	var slots [2]uintptr
	poller, pending := m.comm.Poller(), m.pending(slots[:0])
	most := min(mostSpin, messageSpin+max(m.transfers[0].bytes, m.transfers[1].bytes)>>10)
	for i := int64(1); i <= most; i++ {
		// Only the end of a request changes something here, and now and then what Poll looks at besides.
		every16 := i%16 == 0
		if poller.Poll(pending) == 0 && !every16 {
			continue
		}
		if m.Poll() {
			return true
		}
		pending = m.pending(slots[:0])
		if every16 {
			m.g.Env.Engine.Tick()
			if m.g.Env.Node.Crowded() {
				break
			}
			work.SpinYield(i, yieldEvery)
		}
	}
	return m.Poll()
}

// isPatient tells whether nobody but its caller waits for the message: it is received, and its sender needs no answer. A send that
// is not over may be waited for: its tensor or the memory for it was not ready.
func (m *message) isPatient() bool {
	return m.n == 1 && m.transfers[0].receives && m.transfers[0].bytes <= shortBytes
}

// Messages are reused if they end within the call, so that the usual send or receive allocates
// nothing.
var pool = sync.Pool{New: func() any { return new(message) }}

// recycle gives back a message that ended within its call.
func (m *message) recycle() {
	m.g.underWay.Add(-1)
	*m = message{}
	pool.Put(m)
}

// makeTask gives the message a handle and a deadline, as a task needs them.
func (m *message) makeTask() *work.Handle {
	m.handle = m.g.Env.Engine.NewHandle()
	m.deadline = time.Now().Add(m.timeout)
	return m.handle
}

// linger ends a message that failed when it started. If one of its transfers is under way, the
// message becomes a task, and linger returns its handle.
func (m *message) linger(err error) *work.Handle {
	h := m.makeTask()
	h.GiveUp(err)
	m.giveUp(err)
	if m.Poll() {
		return nil
	}
	m.g.Env.Engine.Add(m)
	m.g.Env.Engine.StartProgress()
	return h
}

// finish tells the caller how the message ended. end follows what the message left queued on a
// device; it may be nil.
func (m *message) finish(end *buffer.Tail, r work.Result, err error) {
	m.g.Env.Recorder.End(m.trace, err)
	if m.handle == nil {
		m.end, m.result, m.err = end, r, err
		return
	}
	m.countOff(end.Finish(m.handle, r, err))
	if m.gaveUp != nil {
		m.g.Env.Departure.ArrivedAfterAll(m)
	}
	m.g.underWay.Add(-1)
}

// countOff takes the message out of Messages.async, when its caller is told of its end for the first
// time.
func (m *message) countOff(first bool) {
	if first && m.async {
		m.g.async.Add(-1)
	}
}

// message is a send, a receive, or the two of a sendrecv. It is a task once it has a handle.
type message struct {
	g         *Messages
	comm      transport.Comm
	code      op.Code
	handle    *work.Handle // nil while the message may end within the call
	result    work.Result  // how the message ended, if it has no handle
	err       error
	deadline  time.Time
	timeout   time.Duration
	stream    cuda.Stream // the stream on which tensors in device memory are produced and used
	transfers [2]transfer // a send, a receive, or both
	n         int         // number of transfers
	looks     work.Looks
	slow      health.Slowness
	news      world.News   // MPI has told of a death in this message
	since     time.Time    // when this rank first looked whether the peer has left
	leftAt    time.Time    // when this rank saw that the peer had left
	end       *buffer.Tail // what a message without a handle left queued on a device; nil if nothing
	gaveUp    error        // the error that the caller was told while MPI still had a request
	async     bool         // its caller does not wait
	trace     trace.Mark
}

// transfer is one MPI call of a message: a send or a receive.
type transfer struct {
	receives bool
	request  *transport.Request // nil until MPI was called for it
	data     unsafe.Pointer     // where the whole message is; nil if it goes in fragments
	spill    unsafe.Pointer     // of a receive: where a message goes that is longer than its tensors
	bytes    int64              // length of the message, or of the tensors that receive it
	peer     int32              // group rank, -1 for any
	tag      int32
	// dropped says that the transfer was given up before MPI was called for it.
	dropped   bool
	queued    bool       // it is in Messages.waiting
	ready     bool       // it is there although its tensor is ready; guarded by waiting.mu
	buried    bool       // its peer has died, and its requests were ended
	packed    *packed    // nil if the message is one contiguous tensor in host memory
	fragments *fragments // nil if the message goes as a whole
}

// prepare checks the arguments and prepares the transfers.
func (m *message) prepare(d *op.Desc) error {
	t := d.Code.Trait()
	send, recv := t.Send != op.None, t.Recv != op.None
	sends, recvs := d.Sends(), d.Recvs()
	if send && len(sends) == 0 || recv && len(recvs) == 0 {
		return status.New(status.Argument, "%s: got %d send and %d recv tensors; it takes one tensor, or a list, on each side that it uses", d.Code, len(sends), len(recvs))
	}
	if send {
		// If send and receive buffer overlap, a copy is sent, because MPI forbids the overlap.
		viaCopy := recv && overlap(sends, recvs)
		if err := m.addTransfer(d.Code, false, "send", sends, d.Peer, d.Tag, viaCopy); err != nil {
			return err
		}
	}
	if recv {
		peer, tag := d.Peer, d.Tag
		if send {
			peer, tag = d.Peer2, d.Tag2
		}
		return m.addTransfer(d.Code, true, "recv", recvs, peer, tag, false)
	}
	return nil
}

// addTransfer checks the tensors of one side and prepares its transfer. If viaCopy is set, a copy of them
// is sent.
func (m *message) addTransfer(code op.Code, receives bool, side string, bufs []op.Buf, peer, tag int32, viaCopy bool) error {
	if err := m.g.checkAddress(code, peer, tag, receives); err != nil {
		return err
	}
	dev, err := locate(code, side, bufs)
	if err != nil {
		return err
	}
	if m.comm, err = m.g.endpoint(); err != nil {
		return err
	}
	tr := &m.transfers[m.n]
	m.n++
	tr.receives, tr.peer, tr.tag, tr.data = receives, peer, tag, bufs[0].Data
	for i := range bufs {
		tr.bytes += bufs[i].Bytes()
	}
	if tr.bytes > 0 && (dev != nil || len(bufs) > 1 || viaCopy || !bufs[0].Contiguous()) {
		return m.pack(tr, side, bufs, dev, viaCopy)
	}
	return nil
}

// start posts the receive before the send, each only if its tensor is ready.
func (m *message) start() error {
	for i := m.n - 1; i >= 0; i-- {
		if err := m.tryStart(&m.transfers[i]); err != nil {
			return err
		}
	}
	return nil
}

// tryStart calls MPI for a transfer. It does nothing if the device still works on the tensor, or if
// an earlier transfer with the same rank has to be first.
func (m *message) tryStart(tr *transfer) error {
	if tr.request != nil || tr.dropped {
		return nil
	}
	ready, err := tr.packed.ready()
	if err != nil {
		m.g.waiting.unqueue(tr)
		return err
	}
	if tr.receives && tr.fragments != nil && m.copiesSend() {
		ready = false // a fragment may be unpacked over what the device still copies
	}
	if !m.g.waiting.mayStart(tr, ready) {
		return nil
	}
	switch {
	case tr.receives:
		tr.request, err = m.receive(tr)
	case tr.fragments != nil:
		tr.request, err = fragmenter(m.comm, tr.bytes).SendFragments(tr.fragments, tr.bytes, tr.peer, tr.tag)
	default:
		tr.request, err = m.comm.Send(tr.data, tr.bytes, tr.peer, tr.tag)
	}
	m.g.Env.Engine.CalledMPI()
	m.trace.Begun(0)
	if tr.request == nil && err == nil {
		m.g.waiting.await(tr)
		return nil
	}
	m.g.waiting.unqueue(tr)
	if err != nil {
		m.g.group.Fail(err)
	}
	return err
}

// copiesSend tells whether a device still copies what a sendrecv sends.
func (m *message) copiesSend() bool {
	send := &m.transfers[0]
	return m.n == 2 && send.packed != nil && send.packed.gate != 0 && !send.dropped
}

// receive begins to receive a message. It returns nil if it looks for one, and none has come.
func (m *message) receive(tr *transfer) (*transport.Request, error) {
	if tr.fragments != nil {
		return fragmenter(m.comm, tr.bytes).ReceiveFragments(tr.fragments, tr.bytes, tr.peer, tr.tag)
	}
	if !m.comm.MatchesFirst(tr.peer) {
		return m.comm.Receive(tr.data, tr.bytes, tr.peer, tr.tag)
	}
	found, ok, err := m.comm.Match(tr.peer, tr.tag)
	if err != nil || !ok {
		return nil, err
	}
	if found.Bytes <= tr.bytes {
		return m.comm.Take(found, tr.data, tr.bytes)
	}
	if tr.spill, err = mem.Alloc(found.Bytes); err != nil { // outcome says that it is too long
		return nil, err
	}
	return m.comm.Take(found, tr.spill, found.Bytes)
}

// over tells whether the transfer was dropped, or its request has ended.
func (tr *transfer) over() bool { return tr.dropped || tr.request != nil && tr.request.Done() }

func (m *message) pending(list []uintptr) []uintptr {
	for i := 0; i < m.n; i++ {
		if r := m.transfers[i].request; r != nil && !r.Done() {
			list = append(list, r.Address())
		}
	}
	return list
}

// Requests adds the requests under way. The peer may come late, so only the transport knows whether data is moving.
func (m *message) Requests(b *work.Batch) work.Pace {
	var room [2]uintptr
	for _, s := range m.pending(room[:0]) {
		b.Add(m.comm.Poller(), s)
	}
	return m.comm.Pace()
}

// Poll starts transfers that can start now. It ends the message when all its requests have ended.
func (m *message) Poll() bool {
	for i := m.n - 1; i >= 0; i-- { // try both: the send may end only after the receive was posted
		tr := &m.transfers[i]
		if tr.request == nil && !tr.dropped {
			if err := m.tryStart(tr); err != nil {
				m.giveUp(err)
			}
		}
		if tr.fragments != nil && tr.fragments.work() {
			m.comm.Poller().Poll(nil) // the transport has waited for it
		}
	}
	for i := 0; i < m.n; i++ {
		if !m.transfers[i].over() {
			m.overdue()
			return false
		}
	}
	if m.awaitsName() {
		return false
	}
	r, err := m.outcome()
	end := m.releaseDevice(err)
	m.free()
	m.finish(end, r, err)
	return true
}

// outcome returns how the message ended. All its requests are over.
func (m *message) outcome() (r work.Result, err error) {
	for i := 0; i < m.n; i++ {
		tr := &m.transfers[i]
		if tr.dropped {
			return r, m.gaveUp
		}
		e := m.comm.Err(tr.request)
		if f := tr.fragments; f != nil {
			if f.work(); f.err != nil {
				e = f.err
			}
		}
		if e != nil && err == nil {
			err = m.named(tr, e)
		}
		if !tr.receives {
			continue
		}
		if tr.request.Cancelled != 0 {
			return r, m.gaveUp
		}
		r = work.Result{Source: tr.request.Source, Tag: tr.request.Tag, Bytes: tr.request.Bytes}
		if err == nil && r.Bytes != tr.bytes {
			err = status.New(status.Truncate, "%s: the message from rank %d of the group with tag %d has %d bytes, the buffer %d; they must be equal (probe tells the length before)",
				m.code, r.Source, r.Tag, r.Bytes, tr.bytes).WithRanks(m.g.Ranks[r.Source])
		}
		if err == nil && tr.packed != nil {
			if err = tr.packed.arrived(); tr.fragments != nil {
				tr.packed.copied = tr.fragments.last()
			}
		}
	}
	return r, err
}

func (m *message) free() {
	for i := 0; i < m.n; i++ {
		tr := &m.transfers[i]
		if tr.request != nil {
			m.comm.Release(tr.request)
			tr.request = nil
		}
		if tr.fragments != nil {
			tr.fragments.free()
			tr.fragments = nil
		}
		mem.Free(tr.spill)
		tr.spill = nil
		if tr.packed != nil {
			tr.packed.free()
			tr.packed = nil
		}
	}
}

// describe names the operation, and the peer, tag and length of every transfer.
func (m *message) describe() string {
	text := m.code.String()
	for i := 0; i < m.n; i++ {
		tr := &m.transfers[i]
		way, peer := "to", fmt.Sprintf("rank %d", tr.peer)
		if tr.receives {
			way = "from"
		}
		if tr.peer < 0 {
			peer = "any rank"
		}
		text += fmt.Sprintf(" of %d bytes %s %s of the group (tag %d)", tr.bytes, way, peer, tr.tag)
	}
	return text
}

func (m *message) peers() (ranks []int) {
	for i := 0; i < m.n; i++ {
		if tr := &m.transfers[i]; tr.peer >= 0 && !tr.over() {
			ranks = append(ranks, m.g.Ranks[tr.peer])
		}
	}
	return ranks
}

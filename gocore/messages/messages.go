// Package messages carries out send, recv, sendrecv and probe between the members of a group. They are outside the order
// of the group's collectives, and have a communicator of their own. A message that does not end within its call becomes a
// task of the engine.
package messages

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/paddlempi/paddlempi/gocore/cuda"
	"github.com/paddlempi/paddlempi/gocore/health"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/trace"
	"github.com/paddlempi/paddlempi/gocore/transport"
	"github.com/paddlempi/paddlempi/gocore/work"
	"github.com/paddlempi/paddlempi/gocore/world"
)

// Group is what messages need of their group.
type Group interface {
	// Usable returns why the group cannot run an operation, nil if it can.
	Usable(code op.Code) error
	// Fail breaks the group because of err.
	Fail(err error)
	// Timeout returns the timeout of operations that have none of their own.
	Timeout() time.Duration
}

// Messages are the messages of a group. All methods are safe for concurrent use.
type Messages struct {
	*world.Members
	id    int64  // of the group, in this process
	key   uint64 // of the group, on all members
	group Group

	mu      sync.Mutex
	comm    transport.Comm // nil in a group of one until its first message
	dropped *dropped       // the message that is being dropped; nil if there is none

	waiting   waiting
	underWay  atomic.Int32 // messages and probes under way, also those that were given up
	async     atomic.Int32 // asynchronous ones whose end was not reported yet
	toldOfAny atomic.Bool  // a wait for a message of any member was reported
}

// New returns the messages of a group. They go over comm, which may be nil in a group of one.
func New(members *world.Members, id int64, key uint64, comm transport.Comm, group Group) *Messages {
	g := &Messages{Members: members, id: id, key: key, comm: comm, group: group}
	if b, ok := comm.(transport.Bounder); ok {
		b.Bound()
	}
	g.waiting.quick = g.openQuick()
	return g
}

// UnderWay tells whether there is a message that is not over, also one that was given up while MPI still has a request
// of it.
func (g *Messages) UnderWay() bool { return g.underWay.Load() > 0 }

// Async tells whether there is an asynchronous message whose caller was not told of its end.
func (g *Messages) Async() bool { return g.async.Load() > 0 }

// StartsNothing tells whether no message waits until its tensor is ready.
func (g *Messages) StartsNothing() bool { return g.waiting.ready() }

// Comm returns what carries the messages; nil in a group of one that has sent none.
func (g *Messages) Comm() transport.Comm {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.comm
}

// endpoint returns what carries the messages. A group of one gets it at its first message, because few programs send
// messages to themselves.
func (g *Messages) endpoint() (transport.Comm, error) {
	if g.Size > 1 {
		return g.comm, nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	var err error
	if g.comm == nil {
		g.comm, err = g.Env.Base.Create(g.Ranks, 0)
	}
	return g.comm, err
}

// Carry carries out send, recv, sendrecv and probe. It may return a handle with an error, after which MPI may use the
// memory longer.
func (g *Messages) Carry(d *op.Desc) (*work.Handle, work.Result, error) {
	g.underWay.Add(1) // before the look at the group, so that the end of the group does not miss it
	if err := g.group.Usable(d.Code); err != nil {
		g.underWay.Add(-1)
		return nil, work.Result{}, err
	}
	timeout := d.Timeout(g.group.Timeout(), work.Longest)
	m := pool.Get().(*message)
	m.g, m.code, m.timeout, m.stream = g, d.Code, timeout, cuda.Stream(d.Stream)
	if d.Code == op.Probe {
		m.deadline, m.trace = time.Now().Add(timeout), g.Env.Recorder.BeginMessage(g.id, d)
		r, err := g.probe(d, m)
		g.Env.Recorder.End(m.trace, err)
		m.recycle()
		return nil, r, err
	}
	if err := m.prepare(d); err != nil {
		m.free()
		m.recycle()
		return nil, work.Result{}, err
	}
	m.trace = g.Env.Recorder.BeginMessage(g.id, d)
	if err := m.start(); err != nil {
		if status.CodeOf(err) == status.ProcFailed {
			g.AwaitName(err)
			err = m.deathError(err)
		}
		return m.linger(err), work.Result{}, err
	}
	if d.Flags&op.FlagAsync != 0 {
		h := m.makeTask()
		h.Watch(d.Cookie, d.State)
		h.Mark(m.trace)
		m.async = true
		g.async.Add(1)
		if d.Flags&op.FlagNotify != 0 {
			h.Notify()
		}
		if !m.Poll() {
			if m.isPatient() {
				g.Env.Engine.AddPatient(m)
			} else {
				g.Env.Engine.Add(m)
			}
			g.Env.Engine.StartProgress()
		}
		return h, work.Result{}, nil
	}
	if m.spin() {
		r, err := m.result, m.end.Follow(m.stream, m.err)
		m.recycle()
		return nil, r, err
	}
	h := m.makeTask()
	stream := m.stream
	g.Env.Engine.AddPatient(m) // this thread drives it
	r, err := h.Wait(-1, g.Env.Interrupt)
	if !h.Done() {
		if h.GiveUp(err) {
			// The caller was interrupted. The next Tick, on any thread, gives the message up.
			g.Env.Engine.StartProgress()
		} else {
			r, err = h.Result()
		}
	}
	if err = h.Follow(uint64(stream), err); err == nil || h.Settled() {
		return nil, r, err
	}
	return h, r, err
}

// Check checks the arguments of a message that will be submitted again and again.
func (g *Messages) Check(d *op.Desc) error {
	m := message{g: g, code: d.Code, stream: cuda.Stream(d.Stream)}
	defer m.free()
	return m.prepare(d)
}

// checkAddress checks peer and tag. wild allows MPI's wildcards for both.
func (g *Messages) checkAddress(code op.Code, peer, tag int32, wild bool) error {
	if peer >= int32(g.Size) || peer < 0 && !(wild && peer == transport.AnySource) {
		return status.New(status.Argument, "%s: peer is rank %d of the group, which has ranks 0 to %d", code, peer, g.Size-1)
	}
	if ub := g.Env.Base.MaxTag(); tag > ub || tag < 0 && !(wild && tag == transport.AnyTag) {
		return status.New(status.Argument, "%s: tag is %d; it must be from 0 to %d, the greatest that this transport takes", code, tag, ub)
	}
	return nil
}

// report reports a wait for a message, or until one is received. peers are the world ranks that
// could end it. If any rank may send, only the first such wait of a group is reported: a thread that
// serves requests waits for the next one, and that is no fault of anybody.
func (g *Messages) report(s *health.Slowness, what string, peers []int, mark trace.Mark) {
	if len(peers) == 0 {
		if g.toldOfAny.Swap(true) {
			return
		}
		peers = slices.Clone(g.Ranks)
	}
	e := g.Env
	peers = slices.DeleteFunc(peers, func(r int) bool { return r == e.Topo.Rank })
	words := []uint64{g.key}
	for _, r := range peers {
		words = append(words, uint64(r))
	}
	e.Reports.Report(&health.Wait{What: g.Of(what), How: "is awaited", Nobody: "there is no other member", Since: s.Since,
		ID: health.WaitID("message", words...), Key: g.key, Ranks: peers, Still: func() bool { return e.Recorder.UnderWay(mark) }})
}

package group

import (
	"slices"
	"time"

	"github.com/paddlempi/paddlempi/gocore/coll"
	"github.com/paddlempi/paddlempi/gocore/coll/shm"
	"github.com/paddlempi/paddlempi/gocore/work"
	"github.com/paddlempi/paddlempi/gocore/world"
)

type stage int32

const (
	queued stage = iota
	arriving
	running
	lingering // failed for its caller, but MPI still has requests of it
)

// task is a collective that does not run inline.
type task struct {
	g          *Group
	collective collective
	handle     *work.Handle
	stage      stage
	refused    bool    // t only takes part in the arrival
	copied     bool    // some tensor is copied to contiguous memory, and results from there
	ahead      bool    // t was announced ahead of its turn
	gone       bool    // t was withdrawn: its turn does not come
	shared     *shm.Op // the work of t, if its tensors are in mapped memory
	counted    bool    // t is counted in Group.async until its caller is told of its end
	polls      int
	slow       world.Slowness
	news       world.News // MPI has told of a death in this collective
	world.Mourning
}

// newTask makes a task that takes over everything that c holds. It copies what points into c,
// and what the caller keeps only during the call.
func (c *collective) newTask() *task {
	g := c.g
	t := &task{g: g, collective: *c, handle: g.Env.Engine.NewHandle()}
	t.copied = len(c.staged) > 0 || c.inPieces
	t.collective.one = [2]coll.Part{}
	t.collective.args.Send = append([]coll.Part(nil), c.args.Send...)
	t.collective.args.Recv = append([]coll.Part(nil), c.args.Recv...)
	if t.collective.deadline.IsZero() {
		t.collective.deadline = time.Now().Add(c.timeout)
	}
	for i := range t.collective.staged {
		t.collective.staged[i].CopyLayout()
	}
	c.staged, c.shadow, c.args.DeviceArgs, c.prog, c.offer = nil, nil, nil, coll.Program{}, coll.Offer{}
	return t
}

// begin announces t, unless t was announced ahead. It is the turn of t.
func (t *task) begin() {
	if t.ahead {
		t.g.node.Slots.Turn(t.g.turn)
	}
	t.awaitOthers(t.announce())
}

// awaitOthers makes the engine wait for the other members. t was announced, or err is why it was not.
func (t *task) awaitOthers(err error) {
	g := t.g
	t.stage = arriving
	if err != nil && !t.news.Waits(&g.Members, err) {
		err = g.Named(t.collective.numbered(), t.collective.readable(err))
		g.resign(g.turn, err)
		g.Fail(err)
		t.over(err)
		return
	}
	if t.collective.flags&coll.Device != 0 || g.wire != nil {
		g.Env.Engine.Add(t) // the device or the wire works while the host polls
	} else {
		g.Env.Engine.AddPatient(t)
	}
}

// Requests adds the MPI requests of t. Once all members have arrived, polling moves the data.
func (t *task) Requests(b *work.Batch) work.Pace {
	if t.stage < running {
		return work.Seldom
	}
	t.collective.prog.Requests(b)
	switch {
	case t.stage != running:
		return work.Seldom
	case t.g.wire != nil, t.g.silent:
		return work.Often
	}
	return work.Always
}

// Poll takes t further, without waiting.
func (t *task) Poll() bool {
	switch t.stage {
	case arriving:
		return t.pollArrival()
	default:
		return t.pollProgram()
	}
}

// overdue returns an error if the deadline has passed, or if a member will never come. It looks at
// the clock at every 32nd call.
func (t *task) overdue() error {
	if t.polls++; t.polls&31 != 0 {
		return nil
	}
	now := time.Now()
	if now.After(t.collective.deadline) {
		if t.shared != nil && t.stage == running {
			return t.collective.chunksTimeout(t.shared)
		}
		if t.collective.waitsForReaders() && t.stage == running {
			return t.collective.unreadError()
		}
		if t.collective.form == coll.InRounds && t.stage == running {
			return t.collective.roundsTimeout()
		}
		return t.collective.timeoutError()
	}
	t.g.inquiry.look(now)
	t.reportIfSlow(now)
	if t.shared == nil && (t.stage != arriving || t.g.wire != nil) { // a wire is an operation of MPI
		if dead := t.Over(&t.g.Members, now); dead != nil {
			return t.collective.lost(dead)
		}
	}
	if t.stage == arriving {
		return t.collective.absentError()
	}
	if !t.collective.prog.Settles() && len(t.g.arrival.Closers(t.collective.args.Seq)) > 0 {
		return t.collective.closedError()
	}
	return nil
}

// refuse turns t into a task that only takes part in the arrival. t has not begun, and the caller
// holds Group.mu.
func (t *task) refuse() {
	t.refused = true
	t.discard()
	t.g.Env.Engine.StartProgress()
}

// await waits for a synchronous operation that runs as a task. An interrupt makes the caller give
// up; the deadline is watched by the task itself. If the collective is still in the queue, it stays
// there as a refusal, because the other members expect an announcement. If MPI may use the memory
// after an error, await returns the handle.
func (t *task) await() (lingering *work.Handle, r work.Result, err error) {
	stream := uint64(t.collective.stream)
	r, err = t.handle.Wait(-1, t.g.Env.Interrupt)
	if !t.handle.Done() {
		if t.refuseQueued() {
			t.end(err)
		} else if t.handle.GiveUp(err) {
			t.g.Fail(err)
			t.g.Env.Engine.StartProgress() // t fails in the arrival, or lingers until MPI is done with its memory
		} else {
			r, err = t.handle.Result() // t ended at the same moment
		}
	}
	if err = t.handle.Follow(stream, err); err != nil && !t.handle.Settled() {
		lingering = t.handle
	}
	return lingering, r, err
}

// refuseQueued turns t into a refusal if it is still in the queue and was not announced. t is not
// removed, because the other members announce a collective in its place.
func (t *task) refuseQueued() bool {
	g := t.g
	g.mu.Lock()
	defer g.mu.Unlock()
	if !slices.Contains(g.queue, t) || t.refused || t.ahead {
		return false
	}
	t.refuse()
	return true
}

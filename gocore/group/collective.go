package group

import (
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/paddlempi/paddlempi/gocore/arrive"
	"github.com/paddlempi/paddlempi/gocore/coll"
	"github.com/paddlempi/paddlempi/gocore/cuda"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// call is a collective that was found in order.
type call struct {
	request
	prog coll.Program
}

// request is what a call is about.
type request struct {
	args     coll.Args
	sig      arrive.Signature
	flags    arrive.Flags
	deadline time.Time
	timeout  time.Duration
	async    bool // its caller does not wait
	nested   bool // it comes from a handler that interrupted a wait of its own thread
	// interrupted is what the caller is told in the end: its interrupt came in the
	// moment in which the last member did, when the collective could no more be given up.
	interrupted error
	staged      []staging   // host tensors that are not contiguous
	stream      cuda.Stream // that tensors in device memory are ordered with
	mappable    bool        // other processes can map all of those
	// Room for the usual one buffer a side, so that no slice is allocated.
	one [2]coll.Part
}

// calls are reused: the synchronous path allocates nothing.
var calls = sync.Pool{New: func() any { return new(call) }}

func (c *call) recycle() {
	c.request = request{}
	c.prog.Reset(nil) // which keeps the memory of its steps
	calls.Put(c)
}

// reserve takes the scratch memory that the collective may want, before it is announced: the others
// would wait in MPI for a rank that finds out later that it has none.
func (c *call) reserve() error {
	return c.prog.Reserve(coll.Scratch(&c.args, c.flags))
}

// inlineSpin is how many pauses an inline arrival spins for before it waits in
// the adaptive way: some 20 us.
const inlineSpin = 2000

// runInline carries out a synchronous collective on this thread, which is possible
// when the group is idle and its members share a node. done is false where it is
// not: nothing has happened then. lingering is a handle, with an error, where MPI may use the
// memory longer.
func (g *Group) runInline(c *call) (done bool, lingering *work.Handle, err error) {
	if !g.local {
		return false, nil, nil
	}
	g.mu.Lock()
	if g.busy {
		g.mu.Unlock()
		return false, nil, nil
	}
	if err := g.usableLocked(c.args.Code); err != nil {
		g.mu.Unlock()
		return true, nil, err
	}
	g.busy = true
	g.mu.Unlock()

	state, res, err := g.arriveInline(c)
	if err == nil {
		g.met = g.seq
	}
	switch {
	case err != nil:
		g.fail(err)
	case !g.agreed(c, state, res):
		err = g.verdict(c, state, res)
	default:
		return g.carryOut(c, res)
	}
	g.release()
	return true, nil, err
}

// carryOut runs c, at which everyone has arrived, on this thread: with blocking MPI calls where all
// members wait inside their calls and no step polls, else as a task that it waits for.
func (g *Group) carryOut(c *call, agreed arrive.Result) (done bool, lingering *work.Handle, err error) {
	alg, err := c.choose(g, agreed)
	switch {
	case err != nil:
	case alg.Polled(&c.args.Sig) || agreed.All&arrive.Sync == 0:
		t := g.newCollective(c)
		if err = t.call.build(alg); err != nil {
			t.discard()
			break
		}
		t.run()
		g.env.Engine.Add(t)
		interrupted := c.interrupted
		lingering, _, err = g.await(t)
		if err == nil {
			err = interrupted
		}
		return true, lingering, err
	default:
		if err = c.build(alg); err == nil {
			err = c.prog.Run()
		}
	}
	err = g.after(err)
	if c.staged != nil {
		err = c.unstage(err)
	}
	g.release()
	if err == nil {
		err = c.interrupted
	}
	return true, nil, err
}

// arriveInline announces c and waits for the others. The only failures are the
// deadline, an interrupt and a member that has left; each breaks the group for all
// its members. Where all have come in the same moment the collective runs all the same.
func (g *Group) arriveInline(c *call) (arrive.State, arrive.Result, error) {
	g.seq++
	spin := inlineSpin
	if g.env.crowded {
		spin = 64
	}
	state, res, err := g.arrival.Announce(g.seq, &c.sig, c.flags|arrive.Sync, spin)
	if state == arrive.Closed {
		return state, res, g.closedError(c)
	}
	if state != arrive.Pending || err != nil {
		return state, res, err
	}
	if c.deadline.IsZero() {
		c.deadline = time.Now().Add(c.timeout)
	}
	var left error
	looks := 0
	waitErr := g.wait(func() bool {
		state, res, err = g.arrival.Poll(20)
		if state != arrive.Pending || err != nil {
			return true
		}
		if looks++; looks&63 == 0 {
			left = g.leftError(c)
		}
		return left != nil
	}, c.deadline)
	switch {
	case state == arrive.Closed:
		return state, res, g.closedError(c)
	case state != arrive.Pending || err != nil:
		return state, res, err
	case left != nil:
		err = left
	case waitErr == work.ErrDeadline:
		err = g.timeoutError(c)
	case g.ending() != nil:
		err = g.endingError(describe(c.sig))
	default:
		err = waitErr
	}
	if g.arrival.GiveUp(g.seq, status.CodeOf(err)) {
		return state, res, err
	}
	if status.CodeOf(err) == status.Interrupted {
		c.interrupted = err
	}
	return g.arrival.Poll(0)
}

// build packs what is staged and makes the steps of c. The others have arrived and run
// theirs, so an error here breaks the group.
func (c *call) build(alg *coll.Algorithm) error {
	c.prog.Reset(c.args.Lib)
	for i := range c.staged {
		if err := c.staged[i].pack(); err != nil {
			return err
		}
	}
	return alg.Build(&c.args, &c.prog)
}

// unserved is an error of the choice of an algorithm. All members find the same, for they
// choose by what they agree on, and nothing was sent.
type unserved struct{ error }

// after breaks the group when a collective failed half way. A mismatch that the
// operation found itself, before it moved anything, is not such a failure.
// It names ranks of the group, for an algorithm knows no others.
func (g *Group) after(err error) error {
	if err == nil { // before what errors.As makes escape to the heap
		return nil
	}
	var e *status.Error
	var none unserved
	switch {
	case errors.As(err, &none):
		return none.error
	case errors.As(err, &e) && e.Code == status.Mismatch:
		return status.New(e.Code, "%s and the group is usable", e.Msg).WithRanks(g.world(e.Ranks)...)
	default:
		if errors.As(err, &e) && e.Code == status.Cuda {
			e.Ranks = g.world(e.Ranks)
		}
		g.fail(err)
	}
	return err
}

// choose returns the algorithm that serves what all members have agreed on.
func (c *call) choose(g *Group, agreed arrive.Result) (*coll.Algorithm, error) {
	c.args.Agreed, c.args.Any = agreed.All, agreed.Any
	if c.args.Any&coll.Device != 0 {
		c.agreeOnDevice(g)
	}
	alg, err := coll.Choose(&c.args.Sig)
	if err != nil {
		return nil, unserved{err}
	}
	return alg, nil
}

// release ends a collective and starts the one that is queued behind it, if the group goes on.
func (g *Group) release() {
	g.mu.Lock()
	if len(g.queue) > 0 && g.ending() == nil {
		next := g.queue[0]
		g.queue = g.queue[1:]
		g.mu.Unlock()
		g.env.unhold()
		next.begin()
		return
	}
	left := g.queue
	g.queue = nil
	if g.broken != nil {
		g.closeNext(status.CodeOf(g.broken))
	}
	g.busy = false
	g.mu.Unlock()
	g.drop(left, g.ending())
}

// drop ends collectives that were queued and will not begin, because of err.
func (g *Group) drop(queue []*collective, err error) {
	for _, t := range queue {
		g.env.unhold()
		t.end(status.New(status.CodeOf(err), "%s on the group of ranks %s: given up before its turn came: %v", describe(t.call.sig), brief(g.Ranks), err))
		t.discard()
	}
}

// enqueue starts t, or lets it wait for its turn.
func (g *Group) enqueue(t *collective) error {
	g.mu.Lock()
	if err := g.usableLocked(t.call.args.Code); err != nil {
		g.mu.Unlock()
		return err
	}
	if g.busy && t.call.nested {
		g.mu.Unlock()
		return status.New(status.Reentrant, "%s on the group of ranks %s: called by a signal handler that interrupted a collective of the same group, which cannot end before the handler does. "+
			"Let the handler set a flag, and all_reduce the flag at each step: signals land at different places on each rank", t.call.args.Code, brief(g.Ranks))
	}
	if t.call.async && !t.refused {
		t.counted = true
		g.async.Add(1)
	}
	if g.busy {
		g.queue = append(g.queue, t)
		g.env.hold()
		g.mu.Unlock()
		return nil
	}
	g.busy = true
	g.mu.Unlock()
	t.begin()
	return nil
}

// makeRefusal turns t into a refusal if it has not begun: the others count on its place.
func (g *Group) makeRefusal(t *collective) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !slices.Contains(g.queue, t) || t.refused {
		return false
	}
	t.refuse()
	return true
}

// expireGrace lets the collective before end first, whose deadline may be the same: that one
// knows who never came.
const expireGrace = 200 * time.Millisecond

// expire gives up those collectives whose turn has not come when their deadline passes. Nobody
// polls them: Env.chores calls this now and then.
func (g *Group) expire(now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, t := range g.queue {
		if !t.refused && now.After(t.call.deadline.Add(expireGrace)) {
			t.refuse()
			t.end(status.New(status.Timeout, "%s on the group of ranks %s timed out after %v: its turn did not come, for an operation before it is still under way; this rank refuses its part, and the group stays usable",
				describe(t.call.sig), brief(g.Ranks), t.call.timeout))
		}
	}
}

// await waits for a synchronous operation that runs as a task. Its caller gives up
// at an interrupt; the deadline is the task's own. A collective whose turn has not
// come keeps its place, for the others count on it: this rank refuses its part. The handle
// is returned where MPI may use the memory longer.
func (g *Group) await(t *collective) (lingering *work.Handle, r work.Result, err error) {
	stream := uint64(t.call.stream)
	r, err = t.handle.Wait(-1, g.env.Interrupt)
	if !t.handle.Done() {
		if g.makeRefusal(t) {
			t.end(err)
		} else if t.handle.GiveUp(err) {
			g.fail(err)
			g.env.Engine.StartProgress() // t gives itself up, or lingers until MPI is done with it
		} else {
			r, err = t.handle.Result() // it ended in the same moment
		}
	}
	if err = t.handle.Follow(stream, err); err != nil && !t.handle.Settled() {
		lingering = t.handle
	}
	return lingering, r, err
}

type stage int32

const (
	queued stage = iota
	arriving
	running
	lingering // failed for its caller, its requests are still under way
)

// collective is the task of a collective that does not run inline.
type collective struct {
	g       *Group
	call    call
	handle  *work.Handle
	stage   stage
	refused bool // it only takes part in the arrival
	counted bool // in Group.async, until its caller is told
	polls   int
}

// newCollective makes a task of c, which it takes everything from: with its own copies of what points
// into c, and of what the caller keeps during the call only.
func (g *Group) newCollective(c *call) *collective {
	t := &collective{g: g, call: *c, handle: g.env.Engine.NewHandle()}
	t.call.one = [2]coll.Part{}
	t.call.args.Send = append([]coll.Part(nil), c.args.Send...)
	t.call.args.Recv = append([]coll.Part(nil), c.args.Recv...)
	if t.call.deadline.IsZero() {
		t.call.deadline = time.Now().Add(c.timeout)
	}
	for i := range t.call.staged {
		t.call.staged[i].own()
	}
	c.staged, c.args.Place, c.prog = nil, nil, coll.Program{}
	return t
}

// refuse makes t one that only takes part in the arrival. Nothing of it is under way, and
// Group.mu is held.
func (t *collective) refuse() {
	t.refused = true
	t.discard()
	t.g.env.Engine.StartProgress()
}

// begin announces t, whose turn it is.
func (t *collective) begin() {
	g := t.g
	g.seq++
	t.stage = arriving
	flags := t.call.flags
	if t.refused {
		flags |= arrive.Refused
		t.call.deadline = time.Now().Add(g.Timeout()) // it may have waited long for its turn
	}
	if _, _, err := g.arrival.Announce(g.seq, &t.call.sig, flags, 0); err != nil {
		g.fail(err)
		t.over(err)
		return
	}
	g.env.Engine.Add(t)
}

// Requests adds what MPI still has to do for t. Once all have arrived it is polls that
// move the data.
func (t *collective) Requests(b *work.Batch) (moving bool) {
	if t.stage < running {
		return false
	}
	t.call.prog.Requests(b)
	return t.stage == running
}

// Poll takes t a step further.
func (t *collective) Poll() bool {
	switch t.stage {
	case arriving:
		return t.pollArrival()
	default:
		return t.pollProgram()
	}
}

func (t *collective) pollArrival() bool {
	g := t.g
	state, res, err := g.arrival.Poll(1)
	if err == nil && state == arrive.Pending {
		if err = t.whyGiveUp(); err == nil {
			return false
		}
		if t.refused && g.local && g.ending() != nil {
			t.over(nil) // who comes later sees the refusal all the same
			return true
		}
		if !g.arrival.GiveUp(g.seq, status.CodeOf(err)) {
			state, res, err = g.arrival.Poll(0)
		}
	}
	if state == arrive.Closed {
		err = g.closedError(&t.call)
	}
	if err == nil {
		g.met = g.seq
	}
	switch {
	case err != nil:
		g.fail(err)
		t.over(err)
		return true
	case t.refused:
		t.over(nil)
		return true
	}
	err = g.verdict(&t.call, state, res)
	if err == nil {
		if err = t.start(res); err != nil {
			err = g.after(err)
		}
	}
	if err != nil {
		t.over(err)
		return true
	}
	return t.pollProgram()
}

// whyGiveUp returns an error when t, which waits for others, waits no longer.
func (t *collective) whyGiveUp() error {
	if !t.refused && t.handle.Done() {
		_, err := t.handle.Result() // its caller was interrupted
		return err
	}
	if err := t.g.endingError(describe(t.call.sig)); err != nil {
		return err
	}
	return t.overdue()
}

// start makes the steps of t. It is called once all have arrived.
func (t *collective) start(agreed arrive.Result) error {
	alg, err := t.call.choose(t.g, agreed)
	if err != nil {
		return err
	}
	if err = t.call.build(alg); err == nil {
		t.run()
	}
	return err
}

// run begins the program, which has as long as the arrival had.
func (t *collective) run() {
	t.stage = running
	t.call.deadline = time.Now().Add(t.call.timeout)
}

func (t *collective) pollProgram() bool {
	done, err := t.call.prog.Poll()
	if done {
		t.endOnDevice(t.call.unstage(t.g.after(err)))
		t.discard()
		t.g.release()
		return true
	}
	if t.stage != running {
		return false
	}
	if err = t.overdue(); err == nil {
		err = t.g.endingError(describe(t.call.sig))
	}
	if err == nil && t.handle.Done() {
		_, err = t.handle.Result()
	}
	if err != nil {
		t.stage = lingering
		t.giveUp(err)
		t.g.fail(err)
	}
	return false
}

// overdue returns an error when the deadline has passed or a member will not come to what t
// waits for. It looks at the clock at every 32nd call.
func (t *collective) overdue() error {
	if t.polls++; t.polls&31 != 0 {
		return nil
	}
	now := time.Now()
	if now.After(t.call.deadline) {
		return t.g.timeoutError(&t.call)
	}
	t.g.inquire(now)
	switch {
	case t.stage == arriving:
		return t.g.leftError(&t.call)
	case len(t.g.arrival.Closers(t.g.seq)) > 0:
		return t.g.closedError(&t.call)
	}
	return nil
}

// end tells the caller, who may have been told before, that MPI is done with the memory and
// how the operation ended.
func (t *collective) end(err error) { t.told(t.handle.Finish(work.Result{}, err)) }

// giveUp tells the caller that t failed while MPI may still use the memory.
func (t *collective) giveUp(err error) { t.told(t.handle.GiveUp(err)) }

// endOnDevice is end for a program that ran, of which something may still be queued on a device.
func (t *collective) endOnDevice(err error) {
	left := t.call.leaveDevice()
	if err != nil && left != nil {
		left.Release()
		left = nil
	}
	t.told(left.finish(t.handle, work.Result{}, err))
}

// told counts an asynchronous operation off when its caller is told of its end.
func (t *collective) told(first bool) {
	if first && t.counted {
		t.g.async.Add(-1)
	}
}

// over ends t and gives the group to the next collective.
func (t *collective) over(err error) {
	t.end(err)
	t.discard()
	t.g.release()
}

// discard frees what t holds; nothing of it is under way.
func (t *collective) discard() { t.call.drop() }

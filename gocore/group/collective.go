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
	args     coll.Args
	sig      arrive.Signature
	chosen   coll.Sig
	flags    arrive.Flags
	deadline time.Time
	timeout  time.Duration
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
	*c = call{}
	calls.Put(c)
}

// inlineSpin is how many pauses an inline arrival spins for before it waits in
// the adaptive way: some 20 us.
const inlineSpin = 2000

// runInline carries out a synchronous collective on this thread, which is possible
// when the group is idle and its members share a node. done is false where it is
// not: nothing has happened then.
func (g *Group) runInline(c *call) (done bool, err error) {
	if !g.local {
		return false, nil
	}
	g.mu.Lock()
	if g.busy {
		g.mu.Unlock()
		return false, nil
	}
	if err := g.usableLocked(c.args.Code); err != nil {
		g.mu.Unlock()
		return true, err
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
	case res.All&arrive.Sync == 0:
		return true, g.goNonblocking(c, res)
	default:
		err = g.runBlocking(c, res)
	}
	g.release()
	if err == nil {
		err = c.interrupted
	}
	return true, err
}

// goNonblocking makes a task of a collective whose members have arrived, not all of
// which wait inside the call, and waits for it.
func (g *Group) goNonblocking(c *call, agreed arrive.Result) error {
	c.deadline = time.Time{} // the transfer has as long as the arrival
	t, err := g.newCollective(c)
	if err == nil {
		c.args.Place, c.staged = nil, nil // the task's from here on
		err = t.build(agreed)
	}
	if err != nil {
		err = g.after(err)
		g.release()
		return err
	}
	t.stage = running
	g.env.Engine.Add(t)
	_, err = g.await(t)
	if err = t.handle.Follow(uint64(c.stream), err); err == nil {
		err = c.interrupted
	}
	return err
}

// arriveInline announces c and waits for the others. The only failures are the
// deadline, an interrupt and a member that has left; each breaks the group for all
// its members. Where all have come in the same moment the collective runs all the same.
func (g *Group) arriveInline(c *call) (arrive.State, arrive.Result, error) {
	g.seq++
	g.announced.Store(g.seq)
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
	waitErr := g.env.Engine.Wait(func() bool {
		state, res, err = g.arrival.Poll(20)
		if state != arrive.Pending || err != nil {
			return true
		}
		if looks++; looks&63 == 0 {
			left = g.leftError(c)
		}
		return left != nil
	}, c.deadline, g.env.Interrupt)
	switch {
	case state == arrive.Closed:
		return state, res, g.closedError(c)
	case state != arrive.Pending || err != nil:
		return state, res, err
	case left != nil:
		err = left
	case waitErr == work.ErrDeadline:
		err = g.timeoutError(c)
	default:
		err = waitErr
	}
	if g.arrival.GiveUp(g.seq, status.CodeOf(err)) {
		return state, res, err
	}
	if waitErr != work.ErrDeadline {
		c.interrupted = waitErr
	}
	return g.arrival.Poll(0)
}

// runBlocking carries out c with blocking MPI calls. Everyone has arrived.
func (g *Group) runBlocking(c *call, agreed arrive.Result) error {
	err := c.build(&g.inline, c.agree(g, agreed))
	if err == nil {
		err = g.inline.Run()
	} else {
		g.inline.Close()
	}
	err = g.after(err)
	if c.staged != nil {
		err = c.unstage(err)
	}
	if c.args.Place != nil {
		err = c.leaveDevice().follow(c.stream, err)
	}
	return err
}

// build packs what is staged and makes the steps of c. The others have arrived and run
// theirs, so an error here breaks the group.
func (c *call) build(p *coll.Program, s *coll.Sig) error {
	alg, err := coll.Choose(s)
	if err != nil {
		return unserved{err}
	}
	p.Reset(c.args.Lib)
	for i := range c.staged {
		if err := c.staged[i].pack(); err != nil {
			return err
		}
	}
	return alg.Build(&c.args, p)
}

// unserved is an error of the choice of an algorithm. All members find the same, for they
// choose by what they agree on, and nothing was sent.
type unserved struct{ error }

// after breaks the group when a collective failed half way. A mismatch that the
// operation found itself, before it moved anything, is not such a failure.
// It names ranks of the group, for an algorithm knows no others.
func (g *Group) after(err error) error {
	var e *status.Error
	var none unserved
	switch {
	case err == nil:
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

// agree returns the signature that the registry chooses by.
func (c *call) agree(g *Group, agreed arrive.Result) *coll.Sig {
	if agreed.Any&arrive.Device != 0 {
		c.agreeOnDevice(g, agreed)
	}
	c.chosen = coll.Sig{Code: c.args.Code, DType: c.args.DType, Reduce: c.args.Reduce, Root: c.args.Root,
		Count: c.args.Count, Size: g.Size, Agreed: agreed.All, Any: agreed.Any}
	return &c.chosen
}

// release ends an inline collective and starts what was queued meanwhile.
func (g *Group) release() {
	g.mu.Lock()
	if len(g.queue) == 0 {
		if g.broken != nil {
			g.closeNext(g.broken)
		}
		g.busy = false
		g.mu.Unlock()
		return
	}
	next := g.queue[0]
	g.queue = g.queue[1:]
	g.mu.Unlock()
	next.begin()
}

// enqueue starts t, or lets it wait for its turn.
func (g *Group) enqueue(t *collective) error {
	g.mu.Lock()
	if err := g.usableLocked(t.call.args.Code); err != nil {
		g.mu.Unlock()
		return err
	}
	if g.busy {
		g.queue = append(g.queue, t)
		g.mu.Unlock()
		return nil
	}
	g.busy = true
	g.mu.Unlock()
	t.begin()
	return nil
}

// makeRefusal turns t into a refusal if it has not begun.
func (g *Group) makeRefusal(t *collective) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !slices.Contains(g.queue, t) {
		return false
	}
	t.refused = true
	t.discard()
	g.env.Engine.StartProgress()
	return true
}

// await waits for a synchronous operation that runs as a task. Its caller gives up
// at an interrupt; the deadline is the task's own. A collective whose turn has not
// come keeps its place, for the others count on it: this rank refuses its part.
func (g *Group) await(t *collective) (work.Result, error) {
	r, err := t.handle.Wait(-1, g.env.Interrupt)
	if t.handle.Done() {
		return r, err
	}
	if g.makeRefusal(t) {
		t.end(err)
		return r, err
	}
	t.end(err)
	g.fail(err)
	g.env.Engine.StartProgress() // t gives itself up, or lingers until MPI is done with it
	return r, err
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
	prog    coll.Program
	stage   stage
	refused bool // it only takes part in the arrival
	polls   int
}

// newCollective makes a task of c, with its own copies of what points into c.
func (g *Group) newCollective(c *call) (*collective, error) {
	t := &collective{g: g, call: *c, handle: g.env.Engine.NewHandle()}
	t.call.one = [2]coll.Part{}
	t.call.args.Send = append([]coll.Part(nil), c.args.Send...)
	t.call.args.Recv = append([]coll.Part(nil), c.args.Recv...)
	if t.call.deadline.IsZero() {
		t.call.deadline = time.Now().Add(c.timeout)
	}
	for i := range t.call.staged {
		if err := t.call.staged[i].own(); err != nil {
			return nil, err
		}
	}
	return t, nil
}

// begin announces t, whose turn it is.
func (t *collective) begin() {
	g := t.g
	g.seq++
	g.announced.Store(g.seq)
	t.stage = arriving
	flags := t.call.flags
	if t.refused {
		flags |= arrive.Refused
	}
	if _, _, err := g.arrival.Announce(g.seq, &t.call.sig, flags, 0); err != nil {
		t.end(err)
		g.fail(err)
		t.discard()
		g.release()
		return
	}
	g.env.Engine.Add(t)
}

// Requests adds what MPI still has to do for t.
func (t *collective) Requests(b *work.Batch) {
	if t.stage >= running {
		t.prog.Requests(b)
	}
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
		if g.env.leaving.Load() && t.refused && g.local {
			t.over() // who comes later sees the refusal all the same
			return true
		}
		if err = t.overdue(); err == nil && !t.refused && t.handle.Done() {
			_, err = t.handle.Result() // its caller was interrupted
		}
		if err == nil && g.env.leaving.Load() {
			err = status.New(status.PeerLeft, "%s: given up because this rank ends", describe(t.call.sig))
		}
		if err == nil {
			return false
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
	if err != nil {
		t.end(err)
		g.fail(err)
		t.over()
		return true
	}
	if t.refused {
		t.end(nil)
		t.over()
		return true
	}
	if err := g.verdict(&t.call, state, res); err != nil {
		t.end(err)
		t.over()
		return true
	}
	if err := t.build(res); err != nil {
		t.end(g.after(err))
		t.over()
		return true
	}
	t.stage = running
	t.call.deadline = time.Now().Add(t.call.timeout) // the transfer has as long as the arrival
	return t.pollProgram()
}

// build makes the steps of t. It is called once all have arrived.
func (t *collective) build(agreed arrive.Result) error {
	return t.call.build(&t.prog, t.call.agree(t.g, agreed))
}

func (t *collective) pollProgram() bool {
	done, err := t.prog.Poll()
	if done {
		err = t.call.unstage(t.g.after(err))
		t.endOnDevice(err)
		t.over()
		return true
	}
	if t.stage == running && !t.handle.Done() {
		if err := t.overdue(); err != nil {
			t.stage = lingering
			t.end(err)
			t.g.fail(err)
		}
	}
	return false
}

// overdue returns an error when the deadline has passed or a member has left whom t
// waits for. It looks at the clock at every 32nd call.
func (t *collective) overdue() error {
	if t.polls++; t.polls&31 != 0 {
		return nil
	}
	if time.Now().After(t.call.deadline) {
		return t.g.timeoutError(&t.call)
	}
	if t.stage == arriving {
		return t.g.leftError(&t.call)
	}
	return nil
}

// Abandoned tells whether nobody waits for t any more.
func (t *collective) Abandoned() bool { return t.refused || t.handle.Done() }

// end tells the caller.
func (t *collective) end(err error) { t.handle.Finish(work.Result{}, err) }

// endOnDevice tells the caller how the program ended and what of it is still queued.
func (t *collective) endOnDevice(err error) {
	var r work.Result
	left := t.call.leaveDevice()
	if err != nil && left != nil {
		left.Release()
		left = nil
	}
	left.mark(t.handle, &r)
	t.handle.Finish(r, err)
}

// over gives the group to the next collective.
func (t *collective) over() {
	t.discard()
	t.g.release()
}

// discard frees what t holds; nothing of it is under way.
func (t *collective) discard() {
	t.prog.Close()
	t.call.drop()
}

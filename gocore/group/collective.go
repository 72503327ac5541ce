package group

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/paddlempi/paddlempi/gocore/arrive"
	"github.com/paddlempi/paddlempi/gocore/buffer"
	"github.com/paddlempi/paddlempi/gocore/coll"
	"github.com/paddlempi/paddlempi/gocore/coll/shm"
	"github.com/paddlempi/paddlempi/gocore/cuda"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/trace"
	"github.com/paddlempi/paddlempi/gocore/work"
	"github.com/paddlempi/paddlempi/gocore/world"
)

// call is a collective whose arguments were checked.
type call struct {
	request
	prog coll.Program
}

// request is what the caller asked for, and what check found out about it.
type request struct {
	g        *Group
	args     coll.Args
	sig      arrive.Signature
	flags    arrive.Flags
	deadline time.Time
	timeout  time.Duration
	async    bool // the caller does not wait
	nested   bool // the call comes from a handler that interrupted a wait of its own thread
	// interrupted is an interrupt that came when all members had arrived, too late to give the
	// collective up. The caller gets it as an error once the collective is over.
	interrupted error
	staged      []buffer.Staging // contiguous copies of host tensors that are not
	stream      cuda.Stream      // the stream on which tensors in device memory are produced and used
	mappable    bool             // other processes can map all tensors in device memory
	slot        slot             // what the call tells in its arrival slot
	chunked     bool             // the members do it in mapped memory: its chunks say who gives it up
	trace       trace.Mark       // its entry in the flight recorder
	// Room for one buffer on each side, the usual number, so that no slice is allocated.
	one [2]coll.Part
}

// calls are reused, so that the synchronous path allocates nothing.
var calls = sync.Pool{New: func() any { return new(call) }}

func (c *call) recycle() {
	c.request = request{}
	c.prog.Reset(nil) // keeps the memory of its steps
	calls.Put(c)
}

// reserve allocates the scratch memory that the collective may need, before it is announced. If
// memory ran out after the announcement, the other members would wait in MPI for this rank.
func (c *call) reserve() error {
	return c.prog.Reserve(coll.Scratch(&c.args, c.flags))
}

// build packs staged tensors and makes the steps of c. The other members have arrived and run their
// steps, so an error here breaks the group.
func (c *call) build(alg *coll.Algorithm) error {
	c.prog.Reset(c.args.Lib)
	if alg.AtOnce != nil {
		c.prog.Do(func() error { return alg.AtOnce(&c.args) })
		return nil
	}
	for i := range c.staged {
		if err := c.staged[i].Pack(); err != nil {
			return err
		}
	}
	return alg.Build(&c.args, &c.prog)
}

// noAlgorithm is the error that no algorithm serves a call. All members get it alike, because they
// choose by what they have agreed on, and nothing was sent.
type noAlgorithm struct{ error }

// breakIfFailed breaks the group if collective c failed half way with err, and returns the error for the
// caller. Two errors do not break it, because no data was moved: noAlgorithm, and a mismatch that
// the algorithm found. Algorithms name ranks of the group; the returned error names world ranks.
func (c *call) breakIfFailed(err error) error {
	g := c.g
	if err == nil { // return before e and none, whose addresses errors.As takes, are allocated
		return nil
	}
	var e *status.Error
	var none noAlgorithm
	switch {
	case errors.As(err, &none):
		return none.error
	case errors.As(err, &e) && e.Code == status.Mismatch:
		return status.New(e.Code, "%s and the group is usable", e.Msg).WithRanks(g.World(e.Ranks)...)
	default:
		if errors.As(err, &e) && e.Code == status.Cuda {
			e.Ranks = g.World(e.Ranks)
		}
		err = g.Named(c.numbered(), err)
		if !c.chunked {
			g.resign(c.args.Seq, err)
		}
		g.Fail(err)
	}
	return err
}

// choose returns the algorithm that serves what all members have agreed on.
func (c *call) choose(agreed arrive.Result) (*coll.Algorithm, error) {
	g := c.g
	// What this member has not announced cannot be agreed on, whatever its slot says now.
	c.args.Agreed, c.args.Any = agreed.All&(c.flags|(arrive.Others-1)), agreed.Any|c.flags
	if (c.args.Agreed^c.flags)&coll.Even != 0 && c.args.Trait().Shares != op.Pairwise {
		return nil, c.unlikely()
	}
	if c.args.Any&coll.Device != 0 {
		c.agreeOnDevice()
	}
	alg, err := coll.Choose(&c.args.Sig)
	if err != nil {
		return nil, noAlgorithm{err}
	}
	c.chunked = alg.Shared != nil
	c.trace.Algorithm(alg.Name)
	if g.algorithm.Load() != alg { // a load costs nothing, a store some 5 ns
		g.algorithm.Store(alg)
	}
	return alg, nil
}

// release ends a collective. It starts the next one of the queue, unless the group is ending.
func (g *Group) release() {
	g.mu.Lock()
	if len(g.queue) > 0 && g.Ending() == nil {
		next := g.queue[0]
		g.queue = g.queue[1:]
		g.takeTurn(next)
		g.announceAhead()
		g.mu.Unlock()
		g.Env.Unhold()
		next.begin()
		return
	}
	left := g.queue
	g.queue, g.current = nil, nil
	if g.broken != nil {
		g.closeNext(status.CodeOf(g.broken))
	}
	g.busy = false
	broken := g.broken
	g.mu.Unlock()
	if broken != nil {
		g.tellOthers()
	}
	g.drop(left, g.Ending())
}

// drop ends queued collectives that will not begin because of err.
func (g *Group) drop(queue []*collective, err error) {
	for _, t := range queue {
		g.Env.Unhold()
		t.withdraw(status.New(status.CodeOf(err), "%s: given up before its turn came: %v", t.call.of(), err))
	}
}

// enqueue starts t if the group is idle, else appends it to the queue.
func (g *Group) enqueue(t *collective) error {
	g.mu.Lock()
	if err := g.usableLocked(t.call.args.Code); err != nil {
		g.mu.Unlock()
		return err
	}
	if g.busy && t.call.nested {
		g.mu.Unlock()
		return status.New(status.Reentrant, "%s: called by a signal handler that interrupted a collective of the same group, which cannot end before the handler does. "+
			"Let the handler set a flag, and all_reduce the flag at each step: signals land at different places on each rank", g.Of(t.call.args.Code.String()))
	}
	if t.call.async && !t.refused {
		t.counted = true
		g.async.Add(1)
	}
	if g.busy {
		g.queue = append(g.queue, t)
		g.Env.Hold()
		g.announceAhead()
		g.mu.Unlock()
		return nil
	}
	g.busy = true
	g.takeTurn(t)
	g.mu.Unlock()
	t.begin()
	return nil
}

// makeRefusal turns t into a refusal if it is still in the queue and was not announced. t is not
// removed, because the other members announce a collective in its place.
func (g *Group) makeRefusal(t *collective) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !slices.Contains(g.queue, t) || t.refused || t.ahead {
		return false
	}
	t.refuse()
	return true
}

// expireGrace is added to the deadline of a queued collective. The collective before it may have
// the same deadline and should fail first, because its error names the ranks that never came.
const expireGrace = 200 * time.Millisecond

// Expire gives up the queued collectives whose deadline has passed. The engine does not poll them,
// so Env.chores calls expire now and then. A collective that all members have announced ahead cannot
// be refused any more, so it breaks the group.
func (g *Group) Expire(now time.Time) {
	g.mu.Lock()
	var late []*collective // one that was announced ahead, and those behind it
	var why error
	for i, t := range g.queue {
		if t.refused || !now.After(t.call.deadline.Add(expireGrace)) {
			continue
		}
		what := fmt.Sprintf("%s timed out after %v: its turn did not come, because an operation before it is still under way",
			t.call.of(), t.call.timeout)
		if t.ahead && !g.node.Lines.Refuse(t.call.args.Seq) {
			why = status.New(status.Timeout, "%s; all other members have come to it, so the group is broken", what)
			late = slices.Clone(g.queue[i:])
			g.queue = g.queue[:i]
			if g.broken == nil {
				g.broken = why
			}
			break
		}
		t.refuse()
		t.end(status.New(status.Timeout, "%s; this rank refuses its part, and the group stays usable", what))
	}
	g.mu.Unlock()
	if why == nil {
		return
	}
	g.Env.BrokeAfter(g.Timeout())
	g.Env.Unhold()
	late[0].withdraw(why)
	g.drop(late[1:], status.New(status.GroupBroken, "an operation before it failed: %v", why))
}

// await waits for a synchronous operation that runs as a task. An interrupt makes the caller give
// up; the deadline is watched by the task itself. If the collective is still in the queue, it stays
// there as a refusal, because the other members expect an announcement. If MPI may use the memory
// after an error, await returns the handle.
func (g *Group) await(t *collective) (lingering *work.Handle, r work.Result, err error) {
	stream := uint64(t.call.stream)
	r, err = t.handle.Wait(-1, g.Env.Interrupt)
	if !t.handle.Done() {
		if g.makeRefusal(t) {
			t.end(err)
		} else if t.handle.GiveUp(err) {
			g.Fail(err)
			g.Env.Engine.StartProgress() // t fails in the arrival, or lingers until MPI is done with its memory
		} else {
			r, err = t.handle.Result() // t ended at the same moment
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
	lingering // failed for its caller, but MPI still has requests of it
)

// collective is the task of a collective that does not run inline.
type collective struct {
	g       *Group
	call    call
	handle  *work.Handle
	stage   stage
	refused bool    // t only takes part in the arrival
	copied  bool    // some tensor is copied to contiguous memory, and results from there
	ahead   bool    // t was announced ahead of its turn
	gone    bool    // t was withdrawn: its turn does not come
	shared  *shm.Op // the work of t, if its tensors are in mapped memory
	counted bool    // t is counted in Group.async until its caller is told of its end
	polls   int
	slow    world.Slowness
	news    world.News // MPI has told of a death in this collective
	world.Mourning
}

// newCollective makes a task that takes over everything that c holds. It copies what points into c,
// and what the caller keeps only during the call.
func (c *call) newCollective() *collective {
	g := c.g
	t := &collective{g: g, call: *c, handle: g.Env.Engine.NewHandle()}
	t.copied = len(c.staged) > 0
	t.call.one = [2]coll.Part{}
	t.call.args.Send = append([]coll.Part(nil), c.args.Send...)
	t.call.args.Recv = append([]coll.Part(nil), c.args.Recv...)
	if t.call.deadline.IsZero() {
		t.call.deadline = time.Now().Add(c.timeout)
	}
	for i := range t.call.staged {
		t.call.staged[i].CopyLayout()
	}
	c.staged, c.args.DeviceCall, c.prog, c.slot = nil, nil, coll.Program{}, slot{}
	return t
}

// refuse turns t into a task that only takes part in the arrival. t has not begun, and the caller
// holds Group.mu.
func (t *collective) refuse() {
	t.refused = true
	t.discard()
	t.g.Env.Engine.StartProgress()
}

// begin announces t, unless t was announced ahead. It is the turn of t.
func (t *collective) begin() {
	g := t.g
	t.stage = arriving
	if t.ahead {
		g.node.Lines.Turn(g.turn)
	}
	if err := t.announce(); err != nil && !t.news.Waits(&g.Members, err) {
		err = g.Named(t.call.numbered(), err)
		g.resign(g.turn, err)
		g.Fail(err)
		t.over(err)
		return
	}
	if t.call.flags&coll.Device != 0 {
		g.Env.Engine.Add(t) // the device works while the host polls, and takes no core
	} else {
		g.Env.Engine.AddPatient(t)
	}
}

// announce announces t, unless t was announced ahead. If t cannot say what belongs to its announcement, it is
// refused.
func (t *collective) announce() error {
	var note arrive.Note
	if !t.ahead && !t.refused { // the caller of a refusal was told, and may have freed its tensors
		var err error
		if note, err = t.call.note(); err != nil {
			t.refuseInstead(err)
		}
	}
	if t.refused {
		t.call.deadline = time.Now().Add(t.g.Timeout()) // its first deadline may have passed
	}
	if t.ahead {
		return nil
	}
	_, _, err := t.g.arrival.Announce(t.g.turn, &t.call.sig, t.flags(), note, 0)
	return err
}

// flags returns the flags of the announcement.
func (t *collective) flags() arrive.Flags {
	if t.refused {
		return t.call.flags | arrive.Refused
	}
	return t.call.flags
}

// Requests adds the MPI requests of t. Once all members have arrived, polling moves the data.
func (t *collective) Requests(b *work.Batch) (moving bool) {
	if t.stage < running {
		return false
	}
	t.call.prog.Requests(b)
	return t.stage == running
}

// Poll takes t further, without waiting.
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
	state, res, err := arrive.Pending, arrive.Result{}, t.news.Err
	if err == nil {
		state, res, err = g.arrival.Poll(1)
	}
	if t.news.Waits(&g.Members, err) {
		return false
	}
	if err == nil && (state == arrive.Pending || state == arrive.Rubbish) {
		if state == arrive.Rubbish {
			err = t.call.rubbishError()
		} else if err = t.whyGiveUp(); err == nil {
			return false
		}
		if t.refused && g.local && g.Ending() != nil {
			t.over(nil) // the announcement stays in the lines: a member that comes later sees the refusal
			return true
		}
		if !g.arrival.GiveUp(g.turn, status.CodeOf(err)) {
			state, res, err = t.call.cameAfterAll()
		}
	}
	if state == arrive.Closed && err == nil {
		err = t.call.closedError()
	}
	if err == nil {
		g.arrived = g.turn
		t.call.trace.Arrived()
	}
	switch {
	case err != nil:
		err = g.Named(t.call.numbered(), err)
		g.resign(g.turn, err)
		g.Fail(err)
		t.over(err)
		return true
	case t.refused:
		t.over(nil)
		return true
	}
	err = t.call.agreementError(state, res)
	if err == nil {
		if err = t.start(res); t.news.Waits(&g.Members, err) {
			t.stage = running // pollProgram goes on
			return false
		}
		if err != nil {
			err = t.call.breakIfFailed(err)
		}
	}
	if err != nil {
		t.over(err)
		return true
	}
	return t.pollProgram()
}

// whyGiveUp returns an error if t, which waits for other members, must stop waiting.
func (t *collective) whyGiveUp() error {
	if !t.refused && t.handle.Done() {
		_, err := t.handle.Result() // the caller was interrupted
		return err
	}
	if err := t.g.EndingError(world.Describe(t.call.sig)); err != nil {
		return err
	}
	return t.overdue()
}

// start chooses the algorithm and makes the steps of t, once all members have arrived.
func (t *collective) start(agreed arrive.Result) error {
	alg, err := t.call.choose(agreed)
	if err != nil {
		return err
	}
	if alg.Shared != nil {
		if err = t.share(alg); t.stage == lingering {
			return nil
		}
	} else if err = t.call.build(alg); err == nil {
		t.g.Env.Engine.CalledMPI()
	}
	if err == nil {
		t.run()
	}
	return err
}

// run begins the program. It may take the whole timeout, whatever the arrival took.
func (t *collective) run() {
	t.stage = running
	t.call.deadline = time.Now().Add(t.call.timeout)
}

func (t *collective) pollProgram() bool {
	done, err := t.news.Err != nil, t.news.Err
	if !done {
		done, err = t.call.prog.Poll()
	}
	if t.news.Waits(&t.g.Members, err) {
		return false
	}
	if done {
		t.endOnDevice(t.call.unstage(t.call.breakIfFailed(t.call.readable(err))))
		t.discard()
		if !t.gone {
			t.g.release()
		}
		return true
	}
	if t.stage != running {
		return false
	}
	if err = t.overdue(); err == nil {
		err = t.g.EndingError(world.Describe(t.call.sig))
	}
	if err == nil && t.handle.Done() {
		_, err = t.handle.Result()
	}
	if err != nil {
		t.abandon(err)
	}
	return false
}

// abandon gives t up although its memory may still be used. t goes on until it is not.
func (t *collective) abandon(err error) {
	t.stage = lingering
	if t.shared != nil {
		t.g.node.Lines.Explain(t.g.cause(err))
		t.shared.Leave()
	} else {
		t.g.resign(t.call.args.Seq, err)
	}
	t.giveUp(err)
	t.g.Fail(err)
}

// overdue returns an error if the deadline has passed, or if a member will never come. It looks at
// the clock at every 32nd call.
func (t *collective) overdue() error {
	if t.polls++; t.polls&31 != 0 {
		return nil
	}
	now := time.Now()
	if now.After(t.call.deadline) {
		if t.shared != nil && t.stage == running {
			return t.call.togetherTimeout(t.shared)
		}
		return t.call.timeoutError()
	}
	t.g.inquire(now)
	t.reportIfSlow(now)
	if t.shared == nil && (t.stage != arriving || t.g.wire != nil) { // a wire is an operation of MPI
		if dead := t.Over(&t.g.Members, now); dead != nil {
			return t.call.lost(dead)
		}
	}
	if t.stage == arriving {
		return t.call.absentError()
	}
	if len(t.g.arrival.Closers(t.call.args.Seq)) > 0 {
		return t.call.closedError()
	}
	return nil
}

// end reports how the operation ended, and that MPI is done with its memory. The caller may have
// been told of a failure before, by giveUp.
func (t *collective) end(err error) {
	t.g.Env.Recorder.End(t.call.trace, err)
	t.countOff(t.handle.Finish(work.Result{}, err))
}

// giveUp tells the caller that t failed while MPI may still use the memory.
func (t *collective) giveUp(err error) {
	t.g.Env.Recorder.End(t.call.trace, err)
	t.countOff(t.handle.GiveUp(err))
}

// endOnDevice ends t after its program. Work of t may still be queued on a device.
func (t *collective) endOnDevice(err error) {
	left := t.call.releaseDevice()
	if err != nil && left != nil {
		left.Release()
		left = nil
	}
	t.g.Env.Recorder.End(t.call.trace, err)
	t.countOff(left.Finish(t.handle, work.Result{}, err))
}

// countOff takes t out of Group.async, when its caller is told of its end for the first time.
func (t *collective) countOff(first bool) {
	if first && t.counted {
		t.g.async.Add(-1)
	}
}

// over ends t and releases the group for the next collective.
func (t *collective) over(err error) {
	t.end(err)
	t.discard()
	t.g.release()
}

// discard frees what t holds. MPI has no request of t.
func (t *collective) discard() { t.call.drop() }

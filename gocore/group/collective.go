package group

import (
	"fmt"
	"sync"
	"time"

	"github.com/paddlempi/paddlempi/gocore/arrive"
	"github.com/paddlempi/paddlempi/gocore/buffer"
	"github.com/paddlempi/paddlempi/gocore/coll"
	"github.com/paddlempi/paddlempi/gocore/cuda"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/trace"
	"github.com/paddlempi/paddlempi/gocore/work"
	"github.com/paddlempi/paddlempi/gocore/world"
)

// collective is one collective of this member, whose arguments were checked.
type collective struct {
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
	shadow      *shadow          // in place of tensors in device memory that are exchanged with neighbours
	inPieces    bool             // host tensors that are not contiguous are copied in pieces instead
	stream      cuda.Stream      // the stream on which tensors in device memory are produced and used
	mappable    bool             // other processes can map all tensors in device memory
	offer       coll.Offer       // what the call tells in its payload
	scratch     int64            // bytes that reserve takes
	atArrival   *coll.AtArrival  // of a prepared call: what is done at once if all have come; or nil
	summed      bool             // that was done: the result is there
	form        coll.Form        // how the algorithm carries it out; InChunks: the chunks say who gives it up
	trace       trace.Mark       // its entry in the flight recorder
	phase       coll.Phase       // in which it is, as was last recorded
	// Room for one buffer on each side, the usual number, so that no slice is allocated.
	one [2]coll.Part
}

// collectives are reused, so that the synchronous path allocates nothing.
var collectives = sync.Pool{New: func() any { return new(collective) }}

func (c *collective) recycle() {
	c.request = request{}
	c.prog.Reset(nil) // keeps the memory of its steps
	collectives.Put(c)
}

// Submit carries out the operation that d describes. A synchronous operation is over when Submit
// returns. For an asynchronous one Submit returns a handle.
//
// What d points to has to stay valid during the call only, but the memory of the tensors until the
// operation is over. After some errors MPI may use that memory longer. Submit then returns a handle
// together with the error; the handle is settled when MPI no longer uses the memory.
//
// nested says that the call comes from a signal handler that interrupted a wait of its own thread.
func (g *Group) Submit(d *op.Desc, nested bool) (*work.Handle, work.Result, error) {
	return g.submit(d, nil, nested)
}

// submit is Submit of an operation that was prepared, unless p is nil.
func (g *Group) submit(d *op.Desc, p *Prepared, nested bool) (*work.Handle, work.Result, error) {
	trait, ok := op.TraitOf(d.Code)
	if !ok {
		return nil, work.Result{}, status.New(status.Argument, "there is no operation %d", d.Code)
	}
	switch {
	case d.Code == op.Panic:
		panic("paddlempi: the panic operation was called, which exists to test this")
	case !trait.Collective:
		return g.messages.Carry(d)
	}
	c, known := p.take(d)
	defer p.giveBack(c, known)
	c.g, c.nested, c.async = g, nested, d.Flags&op.FlagAsync != 0
	if !known {
		if err := c.check(d, &trait); err != nil {
			return nil, work.Result{}, c.decline(err)
		}
		c.scratch = coll.Scratch(&c.args, c.flags)
	}
	if err := c.reserve(); err != nil {
		return nil, work.Result{}, c.decline(err)
	}
	if !c.async {
		if err := c.awaitDevice(); err != nil {
			return nil, work.Result{}, c.decline(err)
		}
		if done, lingering, err := c.carryOut(); done {
			g.Env.Recorder.End(c.trace, err)
			c.drop()
			return lingering, work.Result{}, err
		}
	}
	c.record(0)
	t := c.newTask()
	t.handle.Watch(d.Cookie, d.State)
	if d.Flags&op.FlagNotify != 0 {
		t.handle.Notify()
	}
	if err := g.enqueue(t); err != nil {
		g.Env.Recorder.End(t.collective.trace, err)
		t.discard()
		return nil, work.Result{}, err
	}
	if c.async {
		g.Env.Engine.Look()
		g.Env.Engine.StartProgress()
		return t.handle, work.Result{}, nil
	}
	return t.await()
}

// carryOut carries out a synchronous collective on this thread if the group is idle. Otherwise it does
// nothing and returns done = false. If MPI may use the memory after an error, lingering is the handle
// that comes with the error.
func (c *collective) carryOut() (done bool, lingering *work.Handle, err error) {
	if idle, err := c.g.begin(c.args.Code); !idle {
		return err != nil, nil, err
	}
	payload, err := c.payload()
	if err != nil {
		lingering, err = c.refuseInTurn()
		return true, lingering, err
	}
	if c.g.wire != nil {
		lingering, err = c.carryOutByWire(payload)
		return true, lingering, err
	}
	state, res, err := c.arrive(payload)
	if err != nil {
		return true, nil, c.finish(err)
	}
	c.g.arrived = c.g.turn
	if c.summed {
		c.took(c.atArrival.Inline())
		return true, nil, c.finish(nil)
	}
	alg, err := c.choose(state, res)
	switch {
	case err != nil:
	case c.form == coll.Polled:
		lingering, err = c.runTask(alg)
		return true, lingering, err // the task releases the group
	case c.waitsForReaders():
		var over bool
		if over, lingering, err = c.runLent(alg); over {
			return true, lingering, err
		}
	default:
		if lingering, err = c.run(alg); lingering != nil {
			return true, lingering, err
		}
	}
	return true, nil, c.finish(err)
}

// A synchronous call looks wireLooks times by itself whether all members have come by wire: some 50 us, and once more for
// bytesOfLook bytes that it sends, because a long payload takes its time on the wire. After the first
// wireSpins, which take as long as a message to another node and back, it yields the core between two looks. The rank for
// which it waits may need that core, also where there seems to be a core for each rank: two containers, or a rank and
// the threads of another program.
const (
	wireLooks = 100
	wireSpins = 24

	bytesOfLook = 512
)

// carryOutByWire announces c on this thread, and looks for a moment whether all members have come. A collective whose
// input travels in the announcement is over then. Every other one becomes a task, which can be given up at any time:
// what waits on the wire may wait for long.
func (c *collective) carryOutByWire(payload arrive.Payload) (lingering *work.Handle, err error) {
	g := c.g
	c.beginTurn()
	state, res, err := g.arrival.Announce(g.turn, &c.sig, c.flags, payload, 0)
	g.Env.Engine.CalledMPI()
	if c.flags&coll.Inline != 0 {
		for looks := int64(0); looks < wireLooks+payload.Bytes/bytesOfLook && state == arrive.Pending && err == nil; looks++ {
			if looks >= wireSpins || g.Env.Node.Crowded() {
				work.Yield()
			}
			state, res, err = g.arrival.Poll(0)
		}
	}
	if err == nil && state == arrive.Agreed && res.All&coll.Inline != 0 && c.agreed(state, res) {
		g.arrived = g.turn
		c.trace.Arrived()
		alg, err := c.choose(state, res)
		if err == nil && c.form == coll.AtOnce {
			return nil, c.finish(alg.Compute(&c.args))
		}
	}
	t := c.newTask()
	g.mu.Lock()
	g.current = t
	g.mu.Unlock()
	t.awaitOthers(err)
	lingering, _, err = t.await()
	return lingering, err
}

// refuseInTurn makes c a task, which finds that it has no payload and refuses. The group is busy with c.
func (c *collective) refuseInTurn() (lingering *work.Handle, err error) {
	c.record(0)
	t := c.newTask()
	c.g.mu.Lock()
	c.g.takeTurn(t)
	c.g.mu.Unlock()
	t.begin()
	lingering, _, err = t.await()
	return lingering, err
}

// decline frees a call that was not announced, refuses it towards the other members, and returns
// err.
func (c *collective) decline(err error) error {
	c.drop()
	c.g.refuse(c.args.Code)
	return err
}

// Refuse tells the other members that this rank found its own call of code wrong before it reached
// the core. The call of every other member raises an error that names this rank. The group stays
// usable.
func (g *Group) Refuse(code op.Code) error {
	g.refuse(code)
	return g.Usable(code)
}

func (g *Group) refuse(code op.Code) {
	if trait, ok := op.TraitOf(code); !ok || !trait.Collective || g.Size == 1 {
		return
	}
	t := &task{g: g, handle: g.Env.Engine.NewHandle(), refused: true}
	t.collective.g, t.collective.args.Code, t.collective.async = g, code, true
	t.collective.sig[0] = uint64(code)
	t.collective.record(trace.Refusing)
	t.collective.deadline = time.Now().Add(g.Timeout())
	if err := g.enqueue(t); err != nil {
		g.Env.Recorder.End(t.collective.trace, err)
		return
	}
	g.Env.Engine.Tick()
	g.Env.Engine.StartProgress()
}

// record enters c in the flight recorder. c gets its number later unless it has one.
func (c *collective) record(flags trace.Flags) {
	if c.g.silent {
		return
	}
	if c.async {
		flags |= trace.Async
	}
	c.trace = c.g.Env.Recorder.Begin(c.g.ID, c.args.Seq, (*[3]uint64)(&c.sig), flags)
}

// reserve allocates the scratch memory that the collective may need, before it is announced. If
// memory ran out after the announcement, the other members would wait in MPI for this rank.
func (c *collective) reserve() error { return c.prog.Reserve(c.scratch) }

// of describes the collective and its group.
func (c *collective) of() string { return c.g.Of(world.Describe(c.sig)) }

// numbered describes the collective c of g with its number.
func (c *collective) numbered() string {
	return fmt.Sprintf("%s, number %d", world.Describe(c.sig), c.args.Seq)
}

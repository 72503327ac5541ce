package collective

import (
	"sync"
	"time"

	"github.com/paddlempi/paddlempi/gocore/arrive"
	"github.com/paddlempi/paddlempi/gocore/buffer"
	"github.com/paddlempi/paddlempi/gocore/coll"
	"github.com/paddlempi/paddlempi/gocore/cuda"
	"github.com/paddlempi/paddlempi/gocore/health"
	"github.com/paddlempi/paddlempi/gocore/neighbours"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/trace"
	"github.com/paddlempi/paddlempi/gocore/work"
	"github.com/paddlempi/paddlempi/gocore/world"
)

// collective is one collective of this member, whose arguments were checked. Its stages and step are in step.go.
type collective struct {
	request
	progress
	prog  coll.Program
	sum   coll.AtArrival // room for atArrival
	owner *Prepared      // whose spare it is; nil: one of collectives
}

// request is what the caller asked for, and what check found out about it.
type request struct {
	g         *Group
	args      coll.Args
	sig       arrive.Signature
	flags     arrive.Flags
	timeout   time.Duration
	deadline  time.Time       // of the present stage; zero: it counts from the first look at the clock
	async     bool            // the caller does not wait
	nested    bool            // the call comes from a handler that interrupted a wait of its own thread
	copies    copies          // in place of tensors
	inPieces  bool            // host tensors that are not contiguous are copied in pieces instead
	stream    cuda.Stream     // the stream on which tensors in device memory are produced and used
	mappable  bool            // other processes can map all tensors in device memory
	offer     coll.Offer      // what the call tells in its payload
	scratch   int64           // bytes that reserve takes
	atArrival *coll.AtArrival // of a call that is repeated: what is done at once if all have come; or nil
	// Room for one buffer on each side, the usual number, so that no slice is allocated.
	one [2]coll.Part
}

// progress is how far a collective has come.
type progress struct {
	stage stage
	alg   *coll.Algorithm // once all have agreed
	form  coll.Form       // how the algorithm carries it out
	// handle is set if the engine takes the collective further, or if it is in the queue. The thread of the caller takes
	// another one further, which is reused.
	handle  *work.Handle
	refused bool // it only takes part in the arrival
	ahead   bool // it was announced ahead of its turn
	gone    bool // it was withdrawn: its turn does not come
	counted bool // it is counted in Group.async until its caller is told of its end
	bare    bool // nothing was allocated for it
	copied  bool // some tensor is copied to contiguous memory, and results from there; known once there is a handle

	trial  trial  // of a way over nodes
	chunks chunks // its work, if the members share it out
	// err is what the algorithm has returned, while others read the tensor that this member lends. At the end it is for a caller
	// whose thread has taken the collective there.
	err error

	asked error // why the caller does not want to wait any more
	// interrupted is an interrupt, which the caller gets as an error also if it comes too late to give the collective up: once it
	// is over.
	interrupted error

	trace    trace.Mark // its entry in the flight recorder
	phase    coll.Phase // in which it is, as was last recorded
	looks    work.Looks // of mustStop, and of what lingers
	slow     health.Slowness
	news     world.News // MPI has told of a death in this collective
	mourning world.Mourning
}

// copies stand in place of tensors of a call.
type copies struct {
	staged []buffer.Staging   // contiguous ones of host tensors that are not
	shadow *neighbours.Shadow // of tensors in device memory that are exchanged with neighbours; or nil
}

// pack copies the tensors that are not contiguous to memory that is.
func (k *copies) pack() error {
	for i := range k.staged {
		if err := k.staged[i].Pack(); err != nil {
			return err
		}
	}
	return nil
}

// unpack writes results back, unless the operation failed.
func (k *copies) unpack(err error) error {
	for i := range k.staged {
		if err == nil {
			err = k.staged[i].Unpack()
		}
	}
	if err == nil && k.shadow != nil {
		err = k.shadow.Write()
	}
	return err
}

// free gives them back.
func (k *copies) free() {
	for i := range k.staged {
		k.staged[i].Free()
	}
	if k.shadow != nil {
		k.shadow.Free()
	}
	*k = copies{}
}

// collectives are reused, so that the synchronous path allocates nothing.
var collectives = sync.Pool{New: func() any { return new(collective) }}

// giveBack takes back a collective whose call has returned, unless the engine has had it.
func (c *collective) giveBack() {
	if c.handle != nil {
		return
	}
	if !c.bare {
		c.prog.Reset(nil) // keeps the memory of its steps
	}
	if c.owner != nil {
		c.owner.spare.Store(c)
		return
	}
	c.request, c.progress = request{}, progress{}
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
	var c *collective
	var err error
	if p != nil && p.knows(d) {
		c = p.take(d)
	} else if call, tensor := g.calls.find(d); call != nil {
		c = call.repeat(d, tensor)
	} else {
		trait, ok := op.TraitOf(d.Code)
		switch {
		case !ok:
			return nil, work.Result{}, status.New(status.Argument, "there is no operation %d", d.Code)
		case d.Code == op.Panic:
			panic("paddlempi: the panic operation was called, which exists to test this")
		case !trait.Collective:
			return g.Messages.Carry(d)
		}
		c = collectives.Get().(*collective)
		c.g = g
		if err = (checker{&c.request}).check(d, &trait); err == nil {
			c.scratch = g.choices.Scratch(&c.args, c.flags)
			g.calls.keep(d, c)
		}
	}
	defer c.giveBack()
	c.nested, c.async = nested, d.Flags&op.FlagAsync != 0
	if err == nil && c.scratch > 0 { // later the other members would wait in MPI for this rank
		err = c.prog.Reserve(c.scratch)
	}
	// What the producing stream of a synchronous call had queued before it ends before the call is announced, because the wait can be
	// long, and neither the deadline nor Ctrl-C can end the blocking MPI calls that follow. If the ranks may map each other's memory,
	// the devices wait, not the host.
	if err == nil && !c.async && c.args.DeviceArgs != nil && c.flags&coll.IPC == 0 {
		err = awaitEvent(&c.request, c.args.DeviceArgs.Device, c.args.DeviceArgs.Ready)
	}
	if err != nil {
		c.drop()
		g.refuse(c.args.Code)
		return nil, work.Result{}, err
	}
	if !c.async {
		idle, err := g.turns.begin(d.Code)
		switch {
		case err != nil:
			c.drop()
			return nil, work.Result{}, err
		case idle:
			lingering, err := c.carryOut()
			return lingering, work.Result{}, err
		}
	}
	return c.queue(d)
}

// queue hands c to the engine, behind the collectives before it. It waits for the end of a synchronous one.
func (c *collective) queue(d *op.Desc) (*work.Handle, work.Result, error) {
	c.record(0)
	c.takeHandle()
	c.handle.Watch(d.Cookie, d.State)
	if c.async {
		c.handle.Mark(c.trace)
	}
	if d.Flags&op.FlagNotify != 0 {
		c.handle.Notify()
	}
	e := c.g.Env
	if err := c.g.turns.enqueue(c); err != nil {
		e.Recorder.End(c.trace, err)
		c.discard()
		return nil, work.Result{}, err
	}
	if !c.async {
		return c.await()
	}
	h := c.handle
	if h.Done() { // all others had come before
		return h, work.Result{}, nil
	}
	e.Engine.Look()
	e.Engine.StartProgress()
	return h, work.Result{}, nil
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
	c := &collective{request: request{g: g, async: true, timeout: g.Timeout()}, progress: progress{refused: true}}
	c.args.Code, c.sig[0] = code, uint64(code)
	c.record(trace.Refusing)
	c.takeHandle()
	if err := g.turns.enqueue(c); err != nil {
		g.Env.Recorder.End(c.trace, err)
		return
	}
	g.Env.Engine.Tick()
	g.Env.Engine.StartProgress()
}

// record enters c in the flight recorder. c gets its number later unless it has one.
func (c *collective) record(flags trace.Flags) {
	if c.g.Silent {
		return
	}
	if c.async {
		flags |= trace.Async
	}
	c.trace = c.g.ring.Begin(c.g.ID, c.args.Seq, (*[3]uint64)(&c.sig), flags)
	if c.flags&coll.Even == 0 && flags&trace.Refusing == 0 {
		c.trace.Share(coll.OwnBytes(&c.args))
	}
}

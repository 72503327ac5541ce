package group

import (
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/arrive"
	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/mpi"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/topo"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// Env is what all groups of a process share.
type Env struct {
	Lib    mpi.Library
	Engine *work.Engine
	Topo   *topo.Topology
	// Interrupt is asked by waits on a caller's thread; nil where nobody can interrupt.
	Interrupt work.Interrupt
	// Trial tries whether MPI moves device memory; nil where that cannot be done.
	Trial Trial

	aware    aware
	base     mpi.Comm       // a duplicate of the world that was given: parent of all groups, and of the barrier of those who depart
	control  mpi.Comm       // carries the mailbox
	mail     *mailbox       // small messages between the cores
	presence *arrive.Lines  // who of this node has left; nil if it could not be shared
	peers    []int          // world ranks of presence's members
	way      way            // how they came to share memory
	crowded  bool           // more ranks than cores on this node
	device   deviceSettings // of tensors in device memory
	hellos   atomic.Uint64  // meetings that this rank has come to

	ended         atomic.Pointer[status.Error] // why no wait goes on; nil while they do
	makers        atomic.Int32                 // calls that make a group or meet
	queued        atomic.Int32                 // collectives that wait for their turn
	departed      atomic.Bool                  // this rank comes no more
	departure     *mpi.Slot                    // the barrier of those who depart; nil: none is under way
	peerQuestions questions

	mu    sync.Mutex     // guards the four below
	broke time.Duration  // the longest timeout of the groups that broke; 0: none did
	made  map[string]int // how many groups were made of each list of ranks
	byKey map[uint64]*Group
	live  map[*Group]bool // groups that were made and not freed
}

// NewEnv prepares the groups of a process. It is collective over world, which is
// duplicated and otherwise left alone. A rank that does not come within timeout, or that
// finds that its own settings are wrong, is an error on every rank that came.
func NewEnv(lib mpi.Library, world mpi.Comm, timeout time.Duration, interrupt work.Interrupt) (*Env, error) {
	e := &Env{Lib: lib, Interrupt: interrupt, made: map[string]int{}, byKey: map[uint64]*Group{}, live: map[*Group]bool{},
		Engine: work.NewEngine()}
	e.peerQuestions.asked, e.peerQuestions.left = asked{}, map[int]bool{}
	var settings error
	e.device, settings = readDeviceSettings()
	if err := e.begin(world, settings, timeout); err != nil {
		return nil, err
	}
	var err error
	if e.control, err = lib.Dup(e.base); err != nil {
		return nil, err
	}
	chunk := []int64{e.device.chunk}
	if err = e.reduceAll(e.base, chunk, op.Min); err != nil {
		return nil, err
	}
	e.device.chunk = chunk[0]
	if e.Topo, err = topo.Discover(lib, e.base); err != nil {
		return nil, err
	}
	e.crowded = e.Topo.Crowded()
	e.Engine.SetCrowded(e.crowded)
	e.mail = newMailbox(lib, e.control, e.Topo.Rank)
	e.mail.onAsk, e.mail.onAnswer = e.answer, e.learn
	e.Engine.Background = e.chores
	if err := e.sharePresence(); err != nil {
		return nil, err
	}
	return e, e.connect()
}

// begin duplicates the world and lets the ranks tell each other whose settings are wrong:
// mistake is this rank's, or nil. These are the only waits for ranks that may never come: whoever comes here goes
// through to the end of NewEnv.
func (e *Env) begin(world mpi.Comm, mistake error, timeout time.Duration) error {
	deadline := time.Now().Add(timeout)
	made, err := e.within(&mpi.Call{Fn: mpi.FnDup, Comm: world}, deadline)
	if err != nil {
		return e.nobodyCame(err, timeout)
	}
	e.base = made
	rank, err := e.Lib.Rank(e.base)
	if err != nil {
		return err
	}
	size, err := e.Lib.Size(e.base)
	if err != nil {
		return err
	}
	// Everybody's word: 0, or 1 where something is wrong.
	block, err := mem.Alloc(int64(8 * (size + 1)))
	if err != nil {
		return err
	}
	words := unsafe.Slice((*int64)(block), size+1)
	words[0] = 0
	if mistake != nil {
		words[0] = 1
	}
	t, _ := e.Lib.TypeOf(op.Int64)
	if _, err := e.within(&mpi.Call{Fn: mpi.FnAllgather, Comm: e.base, SendBuf: block, SendCount: 1, SendType: t,
		RecvBuf: unsafe.Pointer(&words[1]), RecvCount: 1, RecvType: t}, deadline); err != nil {
		return e.nobodyCame(err, timeout) // the block stays: MPI may still write to it
	}
	defer mem.Free(block)
	var wrong []int
	for r, word := range words[1:] {
		if word != 0 && r != rank {
			wrong = append(wrong, r)
		}
	}
	if mistake != nil || len(wrong) > 0 {
		_ = e.Lib.Free(e.base)
	}
	switch {
	case mistake != nil:
		return mistake
	case len(wrong) > 0:
		return status.New(status.Refused, "init: rank(s) %s refused: their settings are wrong, and their own error says which", brief(wrong)).WithRanks(wrong...)
	}
	return nil
}

// within makes a nonblocking call and waits for its end, up to the deadline; it returns the
// communicator that it made, if it made one.
func (e *Env) within(c *mpi.Call, deadline time.Time) (mpi.Comm, error) {
	slot := e.Lib.NewSlot()
	if err := e.Lib.Start(c, slot); err != nil {
		e.Lib.FreeSlot(slot)
		return 0, err
	}
	if err := e.Engine.Wait(func() bool { return poll(e.Lib, slot) }, deadline, e.Interrupt); err != nil {
		return 0, err // the slot stays: MPI may still write to it
	}
	defer e.Lib.FreeSlot(slot)
	return slot.Made, e.Lib.SlotError(c.Fn, slot)
}

// poll tests one request.
func poll(lib mpi.Library, s *mpi.Slot) bool {
	if s.Done == 0 {
		lib.Poll([]uintptr{uintptr(unsafe.Pointer(s))})
	}
	return s.Done != 0
}

func (e *Env) nobodyCame(err error, timeout time.Duration) error {
	if err != work.ErrDeadline {
		return err
	}
	return status.New(status.Timeout, "init: after %v not all ranks of the job had called init_process_group; every rank must call it", timeout)
}

// chores is what waiting threads and the progress thread do now and then.
func (e *Env) chores() {
	e.mail.pump()
	if e.queued.Load() == 0 {
		return
	}
	now := time.Now()
	for _, g := range e.all() {
		g.expire(now)
	}
}

// hold counts a collective that waits for its turn; the engine's Background looks after it.
func (e *Env) hold() {
	e.queued.Add(1)
	e.Engine.Hold()
}

func (e *Env) unhold() {
	e.queued.Add(-1)
	e.Engine.Unhold()
}

// all returns the groups that are not freed.
func (e *Env) all() []*Group {
	e.mu.Lock()
	defer e.mu.Unlock()
	list := make([]*Group, 0, len(e.live))
	for g := range e.live {
		list = append(list, g)
	}
	return list
}

// brokeAfter notes that a group broke, which had a timeout.
func (e *Env) brokeAfter(timeout time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.broke = max(e.broke, timeout)
}

// wait is Group.wait for what belongs to no group.
func (e *Env) wait(done func() bool, deadline time.Time) error {
	var ending error
	err := e.Engine.Wait(func() bool {
		if done() {
			return true
		}
		if why := e.ended.Load(); why != nil {
			ending = why
		}
		return ending != nil
	}, deadline, e.Interrupt)
	if err == nil {
		err = ending
	}
	return err
}

// endingError is why new calls are refused, nil while they are not.
func (e *Env) endingError(what string, ranks []int) error {
	why := e.ended.Load()
	if why == nil {
		return nil
	}
	return status.New(why.Code, "%s(ranks=%v): %v", what, brief(ranks), why)
}

// connect makes the connections to the ranks of other nodes, while all ranks are
// here. Intel MPI would make each at the first message, and MPI_Isend does not
// return (measured: for as long as the other rank sleeps outside MPI) until the
// other side has answered: a rank whose deadline ran out would sit in the question
// to the one that never came.
func (e *Env) connect() error {
	if e.Lib.Info().Name != "Intel MPI" {
		return nil
	}
	waiting := map[int]bool{}
	for r, node := range e.Topo.Node {
		if node != e.Topo.Node[e.Topo.Rank] {
			waiting[r] = true
			e.mail.send(r, mailHello, 0, nil)
		}
	}
	return e.Engine.Wait(func() bool {
		e.mail.pump()
		for r := range waiting {
			if _, ok := e.mail.take(mailHello, r, 0); ok {
				delete(waiting, r)
			}
		}
		return len(waiting) == 0 && e.mail.sent()
	}, time.Time{}, e.Interrupt)
}

// sharePresence makes the lines by which the ranks of a node see each other leave.
func (e *Env) sharePresence() error {
	e.peers = e.Topo.Peers()
	var err error
	e.presence, e.way, err = e.makeLines(e.base, e.peers)
	return err
}

// Destroy frees all groups and what the environment made, after what is under way. It returns false where that did not end:
// then MPI still uses some of it, and cannot be finalized. Others may not have departed yet: see Gone and Close.
func (e *Env) Destroy() (settled bool, err error) {
	why := status.New(status.GroupDestroyed, "the process group was destroyed while the operation was under way")
	return e.leave(why, func() {}, e.Interrupt)
}

// Leave is Destroy at the end of the process. Others that wait for this rank are told that it comes no more.
func (e *Env) Leave() (settled bool, err error) {
	return e.leave(status.New(status.PeerLeft, "this rank ends"), func() {
		e.departed.Store(true)
		if e.presence != nil {
			e.presence.Leave()
		}
	}, nil) // the interpreter, which an interrupt would ask, may be gone
}

// leave ends the groups because of why; begun is called once this rank begins nothing more.
func (e *Env) leave(why *status.Error, begun func(), interrupt work.Interrupt) (settled bool, err error) {
	groups := e.all()
	for _, g := range groups {
		g.refuseCalls()
	}
	err = drain(e.Engine, groups, begun, interrupt)
	e.ended.Store(why)
	begun()
	settled = giveUp(e.Engine, func() bool {
		return e.makers.Load() == 0 && every(groups, func(g *Group) bool { return !g.underWay() })
	})
	for _, g := range groups {
		if settled {
			if failure := g.free(why.Code); err == nil {
				err = failure
			}
		} else {
			g.mu.Lock()
			g.closeNext(why.Code)
			g.mu.Unlock()
		}
	}
	// With a group that is broken MPI may hold requests that no operation stands for any more.
	settled = settled && e.settled()
	if settled {
		if failure := e.depart(); err == nil {
			err = failure
		}
	} else {
		e.stayAway()
	}
	return e.Engine.Stop(why, giveUpLimit) && settled, err
}

func (e *Env) settled() bool {
	for _, g := range e.all() {
		if !g.arrival.Settled() {
			return false
		}
	}
	return true
}

// Close frees what the environment made. All groups are freed, and all ranks gone.
func (e *Env) Close() error {
	e.mail.close()
	if e.presence != nil {
		_ = e.presence.Close()
	}
	if err := e.Lib.Free(e.control); err != nil {
		return err
	}
	return e.Lib.Free(e.base)
}

// reduceAll is a blocking MPI_Allreduce of a few words on comm.
func (e *Env) reduceAll(comm mpi.Comm, words []int64, r op.ReduceOp) error {
	return e.onWords(mpi.FnAllreduce, comm, words, len(words), r)
}

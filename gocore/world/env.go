package world

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/paddlempi/paddlempi/gocore/arrive"
	"github.com/paddlempi/paddlempi/gocore/coll"
	"github.com/paddlempi/paddlempi/gocore/liveness"
	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/topo"
	"github.com/paddlempi/paddlempi/gocore/transport"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// Env is what all groups of a world share.
type Env struct {
	Engine *work.Engine
	Topo   *topo.Topology
	// Interrupt is called during waits on a caller's thread; nil if they cannot be interrupted.
	Interrupt work.Interrupt
	// Survives says that no collective of this rank's groups may block in MPI, where the death of a
	// member cannot be told to the caller. It is set before the first collective.
	Survives bool
	// Joined says that this world has two parties (transport.Joiner), which are connected until it ends.
	Joined bool

	Base      transport.Comm // duplicate of the given world: parent of all groups; carries the collectives of departure
	Mail      *Mailbox       // small messages between the cores
	Node      *Node          // what the ranks of this node share
	Roster    *Roster        // who has left, and who has died
	Recorder  Recorder       // the flight recorder
	Reports   Reports        // of waits that last long
	Aware     Aware          // whether MPI takes device memory
	Watcher   Watcher        // ends the process if a member dies while a thread is inside MPI
	Departure Departure      // how far the end of this rank has come
	Device    DeviceSettings // for tensors in device memory
	Forced    coll.Forced    // algorithms that the group of all ranks prefers

	control  transport.Comm               // carries the mailbox
	hellos   atomic.Uint64                // number of meetings to which this rank has come
	ended    atomic.Pointer[status.Error] // why no operation must wait any longer; nil while they may
	makers   atomic.Int32                 // calls under way that belong to no operation of a group: see Use
	queued   atomic.Int32                 // collectives that are in the queue of their group
	departed atomic.Bool                  // this rank has left: it begins nothing more
	closed   bool                         // the groups are freed; Base, Roster and Node are not

	mu    sync.Mutex       // guards broke, made, byKey, freed and live
	broke time.Duration    // the longest timeout of the groups that broke; 0 if none did
	made  map[string]int   // how many groups were made of a list of ranks
	byKey map[uint64]Group // groups that span nodes
	freed freedGroups      // those that were freed
	live  map[Group]about  // groups that were made and not freed
}

// Group is what Env knows of a group of its world.
type Group interface {
	// Member returns the rank of this process in the group.
	Member() int
	// Messages returns what carries the group's messages; nil if there is none.
	Messages() transport.Endpoint
	// Expire gives up the queued collectives whose deadline has passed.
	Expire(now time.Time)
	// Standing tells how far this member has come. Only a group that spans nodes is asked.
	Standing() arrive.Standing
	// Learn takes in the answer of world rank from to the question for its standing.
	Learn(from int, seq uint64, here bool, gaveUp *arrive.Withdrawal)
	// Stuck returns the collective in which a thread is inside MPI and cannot return; nil if there is none.
	Stuck(now time.Time) *Stuck
	// Blocking tells whether a thread is inside a blocking call of MPI.
	Blocking() bool

	// The steps in which a group ends, in their order: see Drain.

	// RefuseCalls makes the group take no more calls. It returns false if it took none before.
	RefuseCalls() bool
	// StartsNothing tells whether every operation of the group has begun.
	StartsNothing() bool
	// UnderWay tells whether the group has an operation that is not over.
	UnderWay() bool
	// Patience is how long the end of the group waits for operations under way.
	Patience() time.Duration
	// Close tells the other members on this node that this one comes to no further collective, because of reason.
	Close(reason status.Code)
	// Farewell is Close for the members of other nodes. No thread is inside a call of the group.
	Farewell(reason status.Code)
	// Settled tells whether no arrival is under way that was given up. It takes it further.
	Settled() bool
	// Free gives back everything that the group is made of.
	Free(reason status.Code) error
}

// NewEnv prepares the groups of a process. It is collective over world, which it duplicates and
// does not use otherwise. If a rank does not come within timeout, or finds that its settings are
// wrong, every rank that came gets an error.
func NewEnv(world transport.Comm, timeout time.Duration, interrupt work.Interrupt) (*Env, error) {
	return newEnv(world, timeout, interrupt, false)
}

// NewJoined is NewEnv for a world of two parties, without a deadline.
func NewJoined(world transport.Comm) (*Env, error) {
	e, err := newEnv(world, work.Longest, nil, true)
	if err != nil {
		return nil, err
	}
	e.Survives = true // a party does not end because the other one does
	e.Recorder.within("joined")
	return e, nil
}

func newEnv(world transport.Comm, timeout time.Duration, interrupt work.Interrupt, joined bool) (*Env, error) {
	e := &Env{Joined: joined, Interrupt: interrupt, Engine: work.NewEngine(), made: map[string]int{}, byKey: map[uint64]Group{}, live: map[Group]about{}}
	e.Watcher = Watcher{e: e, stop: make(chan struct{})}
	e.Departure = Departure{e: e, stranded: map[fmt.Stringer]bool{}}
	e.Roster = &Roster{questions: questions{asked: Asked{}, gone: map[int]bool{}}}
	e.Reports = Reports{Write: writeReport, roster: e.Roster, recorder: &e.Recorder}
	var settings error
	e.Device, settings = readDeviceSettings()
	if _, err := readForced("init"); settings == nil {
		settings = err
	}
	var mistake error
	if e.Roster.deadAfter, mistake = liveness.After(); settings == nil {
		settings = mistake
	}
	if _, err := traceSignal(); settings == nil {
		settings = err
	}
	if e.Reports.After, mistake = reportAfter(); settings == nil {
		settings = mistake
	}
	deadline := time.Now().Add(timeout)
	if err := e.begin(world, settings, timeout, deadline); err != nil {
		return nil, err
	}
	p, limited := e.Base.(transport.Limited)
	if limited {
		p.WaitBy(func(done func() bool) error { return e.Engine.Wait(done, deadline, e.Interrupt) })
		defer p.WaitBy(nil)
	}
	err := e.make()
	if err == nil {
		return e, nil
	}
	if !limited {
		return nil, err
	}
	missing := p.Missing()
	e.unmake()
	if err == work.ErrDeadline {
		err = status.New(status.Timeout, "init: after %v rank(s) %s, which had called init_process_group, had not done their part (are they stopped?)", timeout, status.Brief(missing)).WithRanks(missing...)
	}
	return nil, err
}

// make makes what begin has not. It is collective over Base.
func (e *Env) make() (err error) {
	if e.control, err = e.Base.Dup(nil); err != nil {
		return err
	}
	chunk := []int64{e.Device.Chunk}
	if err = e.Base.Min(chunk); err != nil {
		return err
	}
	e.Device.Chunk = chunk[0]
	if e.Forced, err = AgreeOnForced("init", e.Base); err != nil {
		if _, limited := e.Base.(transport.Limited); !limited {
			_ = e.control.Free()
			_ = e.Base.Free()
		}
		return err
	}
	discover := topo.Discover
	if e.Joined {
		discover = topo.DiscoverJoined
	}
	if e.Topo, err = discover(e.Base); err != nil {
		return err
	}
	e.Engine.SetCrowded(e.Topo.Crowded())
	e.Mail = newMailbox(e.control)
	e.Mail.onAsk, e.Mail.onAnswer = e.onAsk, e.onAnswer
	e.Engine.Background = e.chores
	if e.Topo.CPUs.Spare() {
		e.Engine.Spare = e.Topo.CPUs.Idleness().Idle
	}
	e.Aware.base, e.Aware.staged = e.Base, e.Device.Staged
	e.Reports.topo = e.Topo
	if e.Node, err = newNode(e.Base, e.Topo, e.Device.Direct && e.Aware.claim().Aware); err != nil {
		return err
	}
	e.Roster.topo, e.Roster.node, e.Roster.mail = e.Topo, e.Node, e.Mail
	if err := e.Roster.watch(e.Base, e.Reports.onQuestion); err != nil {
		return err
	}
	e.Mail.dead = e.Roster.isDead
	if err := e.Recorder.start(e.Base, e.Topo, e.Node.others()); err != nil {
		return err
	}
	return e.connect()
}

// unmake gives back what there is of a world without MPI that could not be made.
func (e *Env) unmake() {
	e.Engine.StopProgress()
	e.Recorder.close()
	if e.Node != nil {
		e.Node.closeViews()
		if e.Node.presence != nil {
			_ = e.Node.presence.Close()
		}
	}
	if e.control != nil {
		_ = e.control.Free()
	}
	_ = e.Base.Free()
}

// begin duplicates the world. The ranks then tell each other whether their settings are wrong;
// mistake is this rank's error, or nil. With MPI only begin has a deadline: a rank that has come through
// it mostly comes to every other step of NewEnv.
func (e *Env) begin(world transport.Comm, mistake error, timeout time.Duration, deadline time.Time) error {
	rank := world.Rank()
	within := func(done func() bool) error {
		var slow Slowness
		looks := 0
		return e.Engine.Wait(func() bool {
			if looks++; looks&31 == 0 && slow.Due(&e.Reports, time.Now(), time.Time{}) {
				e.Reports.init(&slow, rank)
			}
			return done()
		}, deadline, e.Interrupt)
	}
	var err error
	if e.Base, err = world.Dup(within); err != nil {
		return e.timedOut(err, timeout)
	}
	mistaken, err := gatherBool(e.Base, mistake != nil, within)
	if err != nil {
		if _, limited := e.Base.(transport.Limited); limited { // else MPI may still use it
			_ = e.Base.Free()
		}
		return e.timedOut(err, timeout)
	}
	var wrong []int
	for r, yes := range mistaken {
		if yes && r != rank {
			wrong = append(wrong, r)
		}
	}
	if mistake != nil || len(wrong) > 0 {
		_ = e.Base.Free()
	}
	switch {
	case mistake != nil:
		return mistake
	case len(wrong) > 0:
		return status.New(status.Refused, "init: rank(s) %s refused: their settings are wrong, and their own error says which", status.Brief(wrong)).WithRanks(wrong...)
	}
	return nil
}

// timedOut returns the error of begin for err. If the deadline has passed, it says that some ranks
// did not call init.
func (e *Env) timedOut(err error, timeout time.Duration) error {
	if err != work.ErrDeadline {
		return err
	}
	return status.New(status.Timeout, "init: after %v not all ranks of the job had called init_process_group; every rank must call it", timeout)
}

// chores runs now and then on waiting threads and on the progress thread.
func (e *Env) chores() {
	e.Mail.Pump()
	if e.queued.Load() == 0 {
		return
	}
	now := time.Now()
	for _, g := range e.liveGroups() {
		g.Expire(now)
	}
}

// Hold counts a collective that was put into a queue, so that the engine calls chores, which may
// expire it.
func (e *Env) Hold() {
	e.queued.Add(1)
	e.Engine.Hold()
}

// Unhold takes a collective out of that number.
func (e *Env) Unhold() {
	e.queued.Add(-1)
	e.Engine.Unhold()
}

// liveGroups returns the groups that are not freed.
func (e *Env) liveGroups() []Group {
	e.mu.Lock()
	defer e.mu.Unlock()
	list := make([]Group, 0, len(e.live))
	for g := range e.live {
		list = append(list, g)
	}
	return list
}

// BrokeAfter notes that a group with this timeout broke.
func (e *Env) BrokeAfter(timeout time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.broke = max(e.broke, timeout)
}

// wait drives the engine until done returns true. It returns an error of Engine.Wait, or what ending returns: why the
// wait has to end, nil while it may go on.
func (e *Env) wait(done func() bool, ending func() error, deadline time.Time) error {
	var why error
	err := e.Engine.Wait(func() bool {
		if done() {
			return true
		}
		why = ending()
		return why != nil
	}, deadline, e.Interrupt)
	if err == nil {
		err = why
	}
	return err
}

// Ending returns why no operation must wait any longer, nil while they may.
func (e *Env) Ending() error {
	if why := e.ended.Load(); why != nil {
		return why
	}
	return nil
}

// EndingError returns why new calls are refused, nil while they are not. what and ranks describe the call.
func (e *Env) EndingError(what string, ranks []int) error {
	why := e.ended.Load()
	if why == nil {
		return nil
	}
	return status.New(why.Code, "%s(ranks=%v): %v", what, status.Brief(ranks), why)
}

// connect makes the connections to the ranks of other nodes, if the first message to a rank waits for that
// rank: now, because all ranks are inside NewEnv. A rank whose deadline ran out would hang when it asks the
// rank that never came.
func (e *Env) connect() error {
	if !e.Base.FirstSendWaits() {
		return nil
	}
	waiting := map[int]bool{}
	for r, node := range e.Topo.Node {
		if node != e.Topo.Node[e.Topo.Rank] {
			waiting[r] = true
			e.Mail.send(r, mailHello, 0, nil)
		}
	}
	return e.Engine.Wait(func() bool {
		e.Mail.Pump()
		for r := range waiting {
			if _, ok := e.Mail.take(mailHello, r, 0); ok {
				delete(waiting, r)
			}
		}
		return len(waiting) == 0 && e.Mail.sent()
	}, time.Time{}, e.Interrupt)
}

// Destroy ends all groups and begins to depart, after it has given operations under way time to end.
// It returns false if some did not end. Other ranks may not have departed yet: call Departure.AllDeparted until
// it returns true, then Close.
func (e *Env) Destroy() (settled bool, err error) {
	why := status.New(status.GroupDestroyed, "the process group was destroyed while the operation was under way")
	return e.leave(why, func() {}, e.Interrupt)
}

// Leave is Destroy at the end of the process. It tells the ranks that wait for this one that it has
// left. Call Departure.AwaitDepartures before the process ends.
func (e *Env) Leave() (settled bool, err error) {
	return e.leave(status.New(status.PeerLeft, "this rank ends"), func() {
		e.departed.Store(true)
		e.showLeft()
	}, nil) // no interrupt: it would call the interpreter, which may be gone
}

// leave ends the groups because of why. It calls begun once this rank begins nothing more.
func (e *Env) leave(why *status.Error, begun func(), interrupt work.Interrupt) (settled bool, err error) {
	groups := e.liveGroups()
	for _, g := range groups {
		g.RefuseCalls()
	}
	err = Drain(e.Engine, groups, begun, interrupt)
	e.ended.Store(why)
	begun()
	settled = GiveUp(e.Engine, func() bool {
		return e.makers.Load() == 0 && all(groups, func(g Group) bool { return !g.UnderWay() })
	})
	for _, g := range groups {
		g.Close(why.Code)
	}
	e.showLeft() // after the groups are closed: their members hear that this rank has destroyed them
	e.Watcher.end()
	stopped := e.Engine.Stop(why, giveUpLimit)
	e.Departure.stuck = !stopped || e.makers.Load() > 0 || !all(groups, func(g Group) bool { return !g.Blocking() })
	if stopped && !(e.Joined && e.Departure.Deserted()) {
		for _, g := range groups {
			g.Farewell(why.Code)
		}
	}
	if failure := e.Departure.begin(); err == nil {
		err = failure
	}
	return stopped && settled, err
}

// showLeft tells the ranks of this node that this one has left. If its process ends, it has not died.
func (e *Env) showLeft() {
	if e.Node.presence != nil {
		e.Node.presence.Leave()
	}
}

// Fail tells the ranks of this node that the process of this one ends with a status, which is not 0, without having left.
func (e *Env) Fail(exit int) {
	if e.Node.presence != nil {
		e.Node.presence.Fail(exit)
	}
}

// Close frees the groups, once all ranks have departed. It keeps what shows whether their processes end, until
// Free or EndTogether. It does nothing if MPI still uses some of it.
func (e *Env) Close() error {
	if e.Departure.stuck || !e.Departure.Settled() {
		return nil
	}
	var err error
	for _, g := range e.liveGroups() {
		if failure := g.Free(status.GroupDestroyed); err == nil {
			err = failure
		}
	}
	e.Mail.close()
	e.Recorder.close()
	if failure := e.control.Free(); err == nil {
		err = failure
	}
	e.closed = true
	return err
}

// Free tells the other ranks that the process of this one may end, and frees what Close has kept. If Close did
// nothing, MPI still uses that, and Free keeps it.
func (e *Env) Free() error {
	e.Departure.End(true)
	if !e.closed {
		return nil
	}
	mem.Free(e.Departure.words)
	e.Node.closeViews()
	if e.Node.local != nil {
		_ = e.Node.local.Free()
	}
	if e.Node.presence != nil {
		_ = e.Node.presence.Close()
	}
	if j, ok := e.Base.(transport.Joiner); ok && e.Joined {
		return j.Disconnect() // it is the last of the communicators
	}
	return e.Base.Free()
}

// Use says that a thread uses the world, or a request of its transport, until done is called. The end of the world
// waits for that a while, and else does not finalize MPI.
func (e *Env) Use() (done func()) {
	e.makers.Add(1)
	return func() { e.makers.Add(-1) }
}

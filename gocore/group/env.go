package group

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/paddlempi/paddlempi/gocore/arrive"
	"github.com/paddlempi/paddlempi/gocore/coll"
	"github.com/paddlempi/paddlempi/gocore/heap"
	"github.com/paddlempi/paddlempi/gocore/liveness"
	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/topo"
	"github.com/paddlempi/paddlempi/gocore/transport"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// Env is what all groups of a process share.
type Env struct {
	Engine *work.Engine
	Topo   *topo.Topology
	// Interrupt is called during waits on a caller's thread; nil if they cannot be interrupted.
	Interrupt work.Interrupt
	// Survives says that no collective of this rank's groups may block in MPI, where the death of a
	// member cannot be told to the caller. It is set before the first collective.
	Survives bool
	// Trial tries whether MPI moves device memory; nil if it cannot be tried.
	Trial Trial

	recorder  recorder // the flight recorder
	reports   reports  // of waits that last long
	aware     aware
	base      transport.Comm     // duplicate of the given world: parent of all groups; carries the collectives of departure
	control   transport.Comm     // carries the mailbox
	watcher   watcher            // ends the process if a member dies while a thread is inside MPI
	mail      *mailbox           // small messages between the cores
	presence  *arrive.Lines      // shows which ranks of this node have left; nil if they cannot share memory
	peers     []int              // world ranks of presence's members
	way       way                // how these came to share memory
	views     map[int]*heap.View // heaps of the other ranks of this node, by world rank; nil if they cannot be shared
	adopts    bool               // the ranks of this node can open each other's files through /proc
	noHeaps   string             // why views is nil; "" if this rank is alone on its node
	alive     *liveness.Liveness // sees deaths on all nodes; nil in a job of one node, and if it is off
	unwatched string             // why alive is nil
	deadAfter time.Duration      // how long a host may be silent; 0: alive is off
	crowded   bool               // this node has more ranks than cores
	device    deviceSettings     // for tensors in device memory
	forced    coll.Forced        // algorithms that the group of all ranks prefers
	hellos    atomic.Uint64      // number of meetings to which this rank has come

	ended         atomic.Pointer[status.Error] // why no operation must wait any longer; nil while they may
	makers        atomic.Int32                 // calls of New and MonitoredBarrier under way
	queued        atomic.Int32                 // collectives that are in the queue of their group
	departed      atomic.Bool                  // this rank has left: it begins nothing more
	departure     departure                    // how far the end of this rank has come
	closed        bool                         // the groups are freed; base, alive, presence and views are not
	peerQuestions questions

	mu       sync.Mutex     // guards broke, made, byKey, live and stranded
	broke    time.Duration  // the longest timeout of the groups that broke; 0 if none did
	made     map[string]int // how many groups were made of a list of ranks
	byKey    map[uint64]*Group
	live     map[*Group]bool   // groups that were made and not freed
	stranded map[*message]bool // messages that were given up while MPI still sends them
}

// NewEnv prepares the groups of a process. It is collective over world, which it duplicates and
// does not use otherwise. If a rank does not come within timeout, or finds that its settings are
// wrong, every rank that came gets an error.
func NewEnv(world transport.Comm, timeout time.Duration, interrupt work.Interrupt) (*Env, error) {
	e := &Env{Interrupt: interrupt, made: map[string]int{}, byKey: map[uint64]*Group{}, live: map[*Group]bool{}, stranded: map[*message]bool{},
		Engine: work.NewEngine(), watcher: watcher{stop: make(chan struct{})}}
	e.peerQuestions.asked, e.peerQuestions.left = asked{}, map[int]bool{}
	var settings error
	e.device, settings = readDeviceSettings()
	if _, err := readForced("init"); settings == nil {
		settings = err
	}
	var mistake error
	if e.deadAfter, mistake = liveness.After(); settings == nil {
		settings = mistake
	}
	if _, err := traceSignal(); settings == nil {
		settings = err
	}
	e.reports.write = writeReport
	if e.reports.after, mistake = reportAfter(); settings == nil {
		settings = mistake
	}
	if err := e.begin(world, settings, timeout); err != nil {
		return nil, err
	}
	var err error
	if e.control, err = e.base.Dup(nil); err != nil {
		return nil, err
	}
	chunk := []int64{e.device.chunk}
	if err = e.base.Min(chunk); err != nil {
		return nil, err
	}
	e.device.chunk = chunk[0]
	if e.forced, err = e.agreeOnForced("init", e.base); err != nil {
		_ = e.control.Free()
		_ = e.base.Free()
		return nil, err
	}
	if e.Topo, err = topo.Discover(e.base); err != nil {
		return nil, err
	}
	e.crowded = e.Topo.Crowded()
	e.Engine.SetCrowded(e.crowded)
	e.mail = newMailbox(e.control)
	e.mail.onAsk, e.mail.onAnswer = e.answer, e.learn
	e.Engine.Background = e.chores
	if e.Topo.CPUs.Spare() {
		e.Engine.Spare = e.Topo.CPUs.Idleness().Idle
	}
	if err := e.sharePresence(); err != nil {
		return nil, err
	}
	if err := e.shareHeaps(); err != nil {
		return nil, err
	}
	if err := e.watchRanks(); err != nil {
		return nil, err
	}
	if err := e.recorder.start(e); err != nil {
		return nil, err
	}
	return e, e.connect()
}

// begin duplicates the world. The ranks then tell each other whether their settings are wrong;
// mistake is this rank's error, or nil. Only begin needs a deadline: a rank that has come through
// it also comes to every other step of NewEnv.
func (e *Env) begin(world transport.Comm, mistake error, timeout time.Duration) error {
	deadline := time.Now().Add(timeout)
	rank := world.Rank()
	within := func(done func() bool) error {
		var slow slowness
		looks := 0
		return e.Engine.Wait(func() bool {
			if looks++; looks&31 == 0 && slow.due(e, time.Now(), time.Time{}) {
				e.reportInit(&slow, rank)
			}
			return done()
		}, deadline, e.Interrupt)
	}
	var err error
	if e.base, err = world.Dup(within); err != nil {
		return e.timedOut(err, timeout)
	}
	// One word of every rank: 0, or 1 if its settings are wrong.
	mine := []int64{0}
	if mistake != nil {
		mine[0] = 1
	}
	all, err := e.base.Gather(mine, within)
	if err != nil {
		return e.timedOut(err, timeout)
	}
	var wrong []int
	for r, word := range all {
		if word[0] != 0 && r != rank {
			wrong = append(wrong, r)
		}
	}
	if mistake != nil || len(wrong) > 0 {
		_ = e.base.Free()
	}
	switch {
	case mistake != nil:
		return mistake
	case len(wrong) > 0:
		return status.New(status.Refused, "init: rank(s) %s refused: their settings are wrong, and their own error says which", brief(wrong)).WithRanks(wrong...)
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
	e.mail.pump()
	if e.queued.Load() == 0 {
		return
	}
	now := time.Now()
	for _, g := range e.liveGroups() {
		g.expire(now)
	}
}

// hold counts a collective that was put into a queue, so that the engine calls chores, which may
// expire it.
func (e *Env) hold() {
	e.queued.Add(1)
	e.Engine.Hold()
}

func (e *Env) unhold() {
	e.queued.Add(-1)
	e.Engine.Unhold()
}

// liveGroups returns the groups that are not freed.
func (e *Env) liveGroups() []*Group {
	e.mu.Lock()
	defer e.mu.Unlock()
	list := make([]*Group, 0, len(e.live))
	for g := range e.live {
		list = append(list, g)
	}
	return list
}

// brokeAfter notes that a group with this timeout broke.
func (e *Env) brokeAfter(timeout time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.broke = max(e.broke, timeout)
}

// wait is Group.wait for an operation that belongs to no group.
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

// endingError returns why new calls are refused, nil while they are not.
func (e *Env) endingError(what string, ranks []int) error {
	why := e.ended.Load()
	if why == nil {
		return nil
	}
	return status.New(why.Code, "%s(ranks=%v): %v", what, brief(ranks), why)
}

// connect makes the connections to the ranks of other nodes, if the first message to a rank waits for that
// rank: now, because all ranks are inside NewEnv. A rank whose deadline ran out would hang when it asks the
// rank that never came.
func (e *Env) connect() error {
	if !e.base.FirstSendWaits() {
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

// sharePresence makes the lines in which the ranks of a node see each other leave.
func (e *Env) sharePresence() error {
	e.peers = e.Topo.Peers()
	var err error
	e.presence, e.way, err = e.makeLines(e.base, e.peers)
	return err
}

// Destroy ends all groups and begins to depart, after it has given operations under way time to end.
// It returns false if some did not end. Other ranks may not have departed yet: call AllDeparted until
// it returns true, then Close.
func (e *Env) Destroy() (settled bool, err error) {
	why := status.New(status.GroupDestroyed, "the process group was destroyed while the operation was under way")
	return e.leave(why, func() {}, e.Interrupt)
}

// Leave is Destroy at the end of the process. It tells the ranks that wait for this one that it has
// left. Call AwaitDepartures before the process ends.
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
		g.refuseCalls()
	}
	err = drain(e.Engine, groups, begun, interrupt)
	e.ended.Store(why)
	begun()
	settled = giveUp(e.Engine, func() bool {
		return e.makers.Load() == 0 && all(groups, func(g *Group) bool { return !g.underWay() })
	})
	for _, g := range groups {
		g.mu.Lock()
		g.closeNext(why.Code)
		if !g.busy && g.broken == nil {
			g.unmapPeers() // the others may free that memory, and Close comes only when all have left
		}
		g.mu.Unlock()
	}
	e.showLeft() // after the groups are closed: their members hear that this rank has destroyed them
	e.watchNoMore()
	stopped := e.Engine.Stop(why, giveUpLimit)
	e.departure.stuck = !stopped || e.makers.Load() > 0 || !all(groups, func(g *Group) bool { return g.blocking.Load() == 0 })
	if stopped {
		for _, g := range groups {
			g.farewell(why.Code)
		}
	}
	if failure := e.depart(); err == nil {
		err = failure
	}
	return stopped && settled, err
}

// showLeft tells the ranks of this node that this one has left. If its process ends, it has not died.
func (e *Env) showLeft() {
	if e.presence != nil {
		e.presence.Leave()
	}
}

// Close frees the groups, once all ranks have departed. It keeps what shows whether their processes end, until
// Free or EndTogether. It does nothing if MPI still uses some of it.
func (e *Env) Close() error {
	if e.departure.stuck || !e.settled() {
		return nil
	}
	var err error
	for _, g := range e.liveGroups() {
		if failure := g.free(status.GroupDestroyed); err == nil {
			err = failure
		}
	}
	e.mail.close()
	e.recorder.close()
	if failure := e.control.Free(); err == nil {
		err = failure
	}
	e.closed = true
	return err
}

// Free tells the other ranks that the process of this one may end, and frees what Close has kept. If Close did
// nothing, MPI still uses that, and Free keeps it.
func (e *Env) Free() error {
	e.End(true)
	if !e.closed {
		return nil
	}
	mem.Free(e.departure.words)
	e.closeViews()
	if e.presence != nil {
		_ = e.presence.Close()
	}
	return e.base.Free()
}

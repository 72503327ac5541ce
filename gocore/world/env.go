package world

import (
	"cmp"
	"slices"
	"time"

	"github.com/paddlempi/paddlempi/gocore/health"
	"github.com/paddlempi/paddlempi/gocore/mailbox"
	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/threads"
	"github.com/paddlempi/paddlempi/gocore/topo"
	"github.com/paddlempi/paddlempi/gocore/transport"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// Env is what all groups of a world share.
type Env struct {
	Engine *work.Engine
	// Interrupt is called during waits on a caller's thread; nil if they cannot be interrupted.
	Interrupt work.Interrupt

	Base transport.Comm   // duplicate of the given world: parent of all groups; carries the collectives of departure
	Mail *mailbox.Mailbox // small messages between the cores
	Topo *topo.Topology   // which ranks share a node
	Node *Node            // what the ranks of this node share

	Roster   *health.Roster  // who has left, and who has died
	Recorder health.Recorder // the flight recorder
	Reports  health.Reports  // of waits that last long

	Generation int // how often the world was reformed before it became this one

	Device    Device    // how tensors in device memory may go
	Groups    Groups    // those that this rank has made
	Departure Departure // how far the end of this rank has come
}

// NewEnv prepares the groups of a process. It is collective over world, which it duplicates and
// does not use otherwise. If a rank does not come within timeout, or finds that its settings are
// wrong, every rank that came gets an error.
func NewEnv(world transport.Comm, timeout time.Duration, interrupt work.Interrupt) (*Env, error) {
	return newEnv(world, timeout, interrupt, topo.Discover)
}

// NewJoined is NewEnv for a world of two parties, without a deadline.
func NewJoined(world transport.Comm) (*Env, error) {
	e, err := newEnv(world, work.Longest, nil, topo.DiscoverJoined)
	if err != nil {
		return nil, err
	}
	e.Groups.Survives = true // a party does not end because the other one does
	e.Recorder.Within("joined")
	return e, nil
}

func newEnv(world transport.Comm, timeout time.Duration, interrupt work.Interrupt, discover discovery) (*Env, error) {
	e := &Env{Interrupt: interrupt, Engine: work.NewEngine(), Groups: Groups{made: map[string]int{}, live: map[Group]made{}}}
	e.Departure = Departure{e: e}
	deadAfter, reportAfter, mistake := health.ReadSettings()
	e.Reports = health.Reports{After: reportAfter, Write: health.WriteLine}
	device := e.Device.read()
	_, forced := readForced("init")
	asked, wrong := threads.Setting()
	deadline := time.Now().Add(timeout)
	err := e.begin(world, cmp.Or(device, forced, mistake, wrong), timeout, deadline)
	p, limited := e.Base.(transport.Limited)
	if err == nil {
		if limited {
			p.WaitBy(func(done func() bool) error { return e.Engine.Wait(done, deadline, e.Interrupt) })
			defer p.WaitBy(nil)
		}
		err = e.make(discover, deadAfter)
	}
	if err == nil {
		e.useThreads(asked)
		return e, nil
	}
	if limited && err == work.ErrDeadline {
		missing := p.Missing()
		err = status.New(status.Timeout, "init: after %v rank(s) %s, which had called init_process_group, had not done their part (are they stopped?)", timeout, status.Brief(missing)).WithRanks(missing...)
	}
	code := status.CodeOf(err)
	if limited || code == status.Argument || code == status.Refused || code == status.Mismatch { // else MPI may still use it
		e.unmake()
	}
	return nil, err
}

// discovery finds out which ranks share a node. It is collective over all.
type discovery func(all transport.Exchange) (*topo.Topology, error)

// make makes what begin has not. It is collective over Base.
func (e *Env) make(discover discovery, deadAfter time.Duration) error {
	control, err := e.Base.Dup(nil)
	if err != nil {
		return err
	}
	e.Mail = mailbox.New(control)
	e.Mail.Handle(mailbox.Revoke, e.hear)
	chunk := []int64{e.Device.Chunk}
	if err = e.Base.Min(chunk); err != nil {
		return err
	}
	e.Device.Chunk = chunk[0]
	if e.Groups.Forced, err = AgreeOnForced("init", e.Base); err != nil {
		return err
	}
	if e.Topo, err = discover(e.Base); err != nil {
		return err
	}
	e.Engine.SetCrowded(e.Topo.Crowded())
	questions := health.NewQuestions(e.Mail)
	e.Engine.Background = e.chores
	if e.Topo.CPUs.Spare() {
		e.Engine.Spare = e.Topo.CPUs.Idleness().Idle
	}
	e.Device.Aware.base, e.Device.Aware.staged = e.Base, e.Device.Staged
	if e.Node, err = newNode(e.Base, e.Topo, e.Device.Direct && e.Device.Aware.claim().Aware); err != nil {
		return err
	}
	if err = e.Recorder.Start(e.Base, e.Topo); err != nil {
		return err
	}
	if e.Roster, err = health.NewRoster(e.Base, e.Topo, &e.Node.NodeView, questions, deadAfter, &e.Recorder); err != nil {
		return err
	}
	e.Reports.Begin(e.Roster)
	e.Groups.Watcher = health.NewWatcher(e.Roster, e.Groups.stuck)
	return e.connect()
}

// useThreads says how many threads of this rank work on a collective: as many as were asked for, or as its CPUs say. The world with the other
// party of a join changes nothing.
func (e *Env) useThreads(asked int) {
	if e.Topo.Joined {
		return
	}
	c := &e.Topo.CPUs
	cpus, ranks := c.Allowed, c.Ranks
	if bound := threads.CPUs(); cpus == 1 && bound > 1 { // threads of OpenMP's are bound, those of each rank to CPUs of their own
		cpus, ranks = bound, 1
	}
	threads.Use(cmp.Or(asked, threads.Usual(cpus, ranks, c.Quota, c.QuotaRanks)), asked > 0)
}

// unmake gives back what there is of a world that could not be made.
func (e *Env) unmake() {
	e.Engine.StopProgress()
	e.Recorder.Close()
	if e.Node != nil {
		e.Node.close()
	}
	if e.Mail != nil {
		_ = e.Mail.Free()
	}
	_ = e.Base.Free()
}

// begin duplicates the world. The ranks then tell each other whether their settings are wrong;
// mistake is this rank's error, or nil. With MPI only begin has a deadline: a rank that has come through
// it mostly comes to every other step of NewEnv.
func (e *Env) begin(world transport.Comm, mistake error, timeout time.Duration, deadline time.Time) error {
	rank := world.Rank()
	within := func(done func() bool) error {
		var slow health.Slowness
		looks := 0
		return e.Engine.Wait(func() bool {
			if looks++; looks&31 == 0 && slow.Due(&e.Reports, time.Now(), time.Time{}) {
				e.Reports.Init(&slow, rank)
			}
			return done()
		}, deadline, e.Interrupt)
	}
	var mistaken []bool
	base, err := world.Dup(within)
	if err == nil {
		e.Base = base
		mistaken, err = transport.GatherBool(base, mistake != nil, within)
	}
	if err == work.ErrDeadline {
		return status.New(status.Timeout, "init: after %v not all ranks of the job had called init_process_group; every rank must call it", timeout)
	} else if err != nil {
		return err
	}
	var wrong []int
	for r, yes := range mistaken {
		if yes {
			wrong = append(wrong, r)
		}
	}
	if len(wrong) > 0 && mistake == nil {
		return status.New(status.Refused, "init: rank(s) %s refused: their settings are wrong, and their own error says which", status.Brief(wrong)).WithRanks(wrong...)
	}
	return mistake
}

// chores runs now and then on waiting threads and on the progress thread.
func (e *Env) chores() {
	e.Mail.Pump()
	if e.Groups.queued.Load() == 0 {
		return
	}
	now := time.Now()
	for _, g := range e.Groups.all() {
		g.Expire(now)
	}
}

// Hold counts a collective that was put into a queue, so that the engine calls chores, which may
// expire it.
func (e *Env) Hold() {
	e.Groups.queued.Add(1)
	e.Engine.Hold()
}

// Unhold takes a collective out of that number.
func (e *Env) Unhold() {
	e.Groups.queued.Add(-1)
	e.Engine.Unhold()
}

// wait waits by await, Wait or WaitRung of the engine, until done returns true. It returns an error of that, or what ending
// returns: why the wait has to end, nil while it may go on.
func (e *Env) wait(await awaiting, done func() bool, ending func() error, deadline time.Time) error {
	var why error
	err := await(func() bool {
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

type awaiting func(done func() bool, deadline time.Time, interrupt work.Interrupt) error

// Ending returns why no operation must wait any longer, nil while they may.
func (e *Env) Ending() error {
	if why := e.Departure.ended.Load(); why != nil {
		return why
	}
	if why := e.revoked(); why != nil {
		return why
	}
	return nil
}

// EndingError returns why new calls are refused, nil while they are not. what and ranks describe the call.
func (e *Env) EndingError(what string, ranks []int) error {
	why := e.Ending()
	if why == nil {
		return nil
	}
	return status.New(status.CodeOf(why), "%s(ranks=%v): %v", what, status.Brief(ranks), why)
}

// connect makes the connections to the ranks of other nodes, if the first message to a rank waits for that
// rank: now, because all ranks are inside NewEnv. A rank whose deadline ran out would hang when it asks the
// rank that never came.
func (e *Env) connect() error {
	if !e.Base.FirstSendWaits() {
		return nil
	}
	far := slices.DeleteFunc(transport.EveryRank(e.Topo.Size), func(r int) bool { return e.Topo.Node[r] == e.Topo.Node[e.Topo.Rank] })
	for _, r := range far {
		e.Mail.Send(r, mailbox.Hello, 0, nil)
	}
	return e.Engine.Wait(func() bool {
		e.Mail.Pump()
		far = slices.DeleteFunc(far, func(r int) bool {
			_, came := e.Mail.Take(mailbox.Hello, r, 0)
			return came
		})
		return len(far) == 0 && e.Mail.Sent()
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
		e.Roster.Questions.Leave()
		e.Node.Leave()
	}, nil) // no interrupt: it would call the interpreter, which may be gone
}

// leave ends the groups because of why. It calls begun once this rank begins nothing more.
func (e *Env) leave(why *status.Error, begun func(), interrupt work.Interrupt) (settled bool, err error) {
	d, groups := &e.Departure, e.Groups.all()
	for _, g := range groups {
		g.RefuseCalls()
	}
	err = Drain(e.Engine, groups, begun, interrupt)
	d.ended.Store(why)
	begun()
	settled = GiveUp(e.Engine, func() bool {
		return d.users.Load() == 0 && all(groups, func(g Group) bool { return !g.UnderWay() })
	})
	for _, g := range groups {
		g.Close(why.Code)
	}
	e.Node.Leave() // after the groups are closed: their members hear that this rank has destroyed them
	e.Groups.Watcher.End()
	stopped := e.Engine.Stop(why, giveUpLimit)
	d.stuck = !stopped || d.users.Load() > 0 || !all(groups, func(g Group) bool { return !g.Blocking() })
	if stopped && !(e.Topo.Joined && d.Deserted()) {
		for _, g := range groups {
			g.Farewell(why.Code)
		}
	}
	if failure := d.begin(); err == nil {
		err = failure
	}
	return stopped && settled, err
}

// Close frees the groups, once all ranks have departed. It keeps what shows whether their processes end, until
// Free or EndTogether. It does nothing if MPI still uses some of it.
func (e *Env) Close() (err error) {
	if e.Departure.stuck || !e.Departure.Settled() {
		return nil
	}
	for _, g := range e.Groups.all() {
		err = cmp.Or(err, g.Free(status.GroupDestroyed))
	}
	e.Mail.Pump() // receives what has come
	e.Recorder.Close()
	e.Departure.closed = true
	return cmp.Or(err, e.Mail.Free())
}

// Free tells the other ranks that the process of this one may end, and frees what Close has kept. If Close did
// nothing, MPI still uses that, and Free keeps it.
func (e *Env) Free() error {
	e.Departure.End(true)
	if !e.Departure.closed {
		return nil
	}
	mem.Free(e.Departure.words)
	e.Node.close()
	if j := transport.JoinerOf(e.Base); j != nil && e.Topo.Joined {
		return j.Disconnect() // it is the last of the communicators
	}
	return e.Base.Free()
}

// Use says that a thread uses the world, or a request of its transport, until done is called. The end of the world
// waits for that a while, and else does not finalize MPI.
func (e *Env) Use() (done func()) {
	e.Departure.users.Add(1)
	return func() { e.Departure.users.Add(-1) }
}

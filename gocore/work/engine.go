package work

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/paddlempi/paddlempi/gocore/status"
)

// Poller tests requests. Their addresses are opaque to the engine. Poll tests all of them together and
// returns how many have ended since the last test.
type Poller interface {
	Poll(requests []uintptr) int
}

// Task is an operation under way. The engine calls its methods from one goroutine at a time, but
// not always from the same one.
type Task interface {
	// Poll advances the task without waiting, and returns whether the task is over.
	Poll() bool
	// Requests adds the requests that the task waits for now. A task without requests waits for
	// something else; it is polled at every tick as well. The pace is that of a waiting thread: how often
	// polling moves data at present.
	Requests(*Batch) Pace
}

// Batch collects the requests of all tasks, grouped by poller.
type Batch struct {
	pollers  []Poller
	requests [][]uintptr
}

// Add appends a request of poller p.
func (b *Batch) Add(p Poller, request uintptr) {
	for i := range b.pollers {
		if b.pollers[i] == p {
			b.requests[i] = append(b.requests[i], request)
			return
		}
	}
	b.pollers = append(b.pollers, p)
	b.requests = append(b.requests, []uintptr{request})
}

func (b *Batch) reset() {
	for i := range b.requests {
		b.requests[i] = b.requests[i][:0]
	}
}

func (b *Batch) poll() (changed int) {
	for i, p := range b.pollers {
		if len(b.requests[i]) > 0 {
			changed += p.Poll(b.requests[i])
		}
	}
	return changed
}

// entry is a task of the engine.
type entry struct {
	Task
	patient  bool
	standing Standing // the task, if it is one of AddStanding
}

// Standing is a task that serves requests of other ranks.
type Standing interface {
	Task
	// Lively tells, after Requests, whether the next request, or an answer, is expected at once. The progress thread takes
	// the shortest naps then. If it polled without them, a thread that computes on its core would be owed that time, and
	// keep the core for milliseconds; a thread that has slept gets it at once. A thread that waits spins longer: in the
	// time of a way over the network and back it would have left its core to others.
	Lively() bool
}

// Engine holds the tasks of a process. All methods are safe for concurrent use.
type Engine struct {
	// Panicked, if set, is called with the value of a panic in a task on the progress thread; the
	// thread then ends. On a goroutine in Wait a panic goes up to the caller of Wait.
	Panicked func(any)
	// Background, if set, is called about once a millisecond, by waiting goroutines and the
	// progress thread.
	Background func()
	// Spare, if set, tells whether there is an idle CPU that no rank needs. While there is, the progress
	// thread drives patient tasks at once. It asks some ten times a second at most, and only while there
	// are such tasks.
	Spare func() bool

	mu    sync.Mutex // guards tasks
	tasks []entry

	driving  sync.Mutex // held by the goroutine in Tick; guards the next five
	looking  bool       // the tick is one of Look
	helping  bool       // the tick is one of the progress thread
	snapshot []entry
	over     []entry
	batch    Batch

	stopped  atomic.Pointer[status.Error] // why no wait may go on; nil while waits may
	active   atomic.Int32                 // len(tasks) plus the calls of Hold without their Unhold
	standing atomic.Int32                 // the tasks of AddStanding
	urgent   atomic.Int32                 // the tasks of Add, and the handles for which no goroutine will wait
	left     atomic.Int64                 // when the last goroutine left Wait, or patient tasks came; see monotonic
	inside   atomic.Int32                 // goroutines in Wait
	drivers  atomic.Int32                 // goroutines in Wait, except for those inside interrupt
	crowded  atomic.Bool                  // more ranks than cores: do not spin
	pace     atomic.Int32                 // the greatest Pace of the tasks at the last tick
	bells    atomic.Pointer[Bells]        // nil: nobody rings
	bed      sync.Mutex                   // guards the entry among those whom others ring
	dozing   atomic.Int32                 // goroutines that sleep until a bell rings, or are about to
	dozes    atomic.Uint32                // such sleeps that have ended
	serving  atomic.Bool                  // at the last tick a standing task was lively
	lastBack atomic.Int64                 // when Background was last called, in nanoseconds
	called   atomic.Bool                  // CalledMPI was called since the progress thread last looked
	spare    atomic.Bool                  // the last answer of Spare
	core     core                         // whether others use the cores of its waiting threads

	firstCall sync.Once // of CalledMPI

	progress progressThread
}

// NewEngine returns an engine without tasks.
func NewEngine() *Engine { return &Engine{} }

// SetCrowded says whether the node has more ranks than cores. Spinning then takes time from the
// ranks for which this one waits.
func (e *Engine) SetCrowded(crowded bool) { e.crowded.Store(crowded) }

// Add hands a task to the engine. While no goroutine waits, the progress thread drives it.
func (e *Engine) Add(t Task) {
	e.urgent.Add(1)
	e.append(entry{Task: t})
	e.progress.wake(true)
}

// AddPatient hands a task to the engine whose caller is expected to wait soon. The progress thread
// would compete with the caller for a core. Therefore it drives the task only when no goroutine has
// waited for a while (patience), or while a core is idle (Spare).
func (e *Engine) AddPatient(t Task) {
	e.startPatience()
	e.append(entry{Task: t, patient: true})
	e.progress.wake(e.spare.Load())
}

// AddStanding hands a task to the engine that serves requests of other ranks, for as long as there may be some. It is
// patient. No goroutine waits for its end, so it does not count as work for which the progress thread waits.
func (e *Engine) AddStanding(t Standing) {
	e.standing.Add(1)
	e.append(entry{Task: t, patient: true, standing: t})
	e.progress.wake(false)
}

func (e *Engine) append(t entry) {
	e.mu.Lock()
	e.tasks = append(e.tasks, t)
	e.mu.Unlock()
	e.active.Add(1)
	e.rouse()
}

// startPatience begins the time that the progress thread leaves to callers, if there are no tasks but standing ones.
func (e *Engine) startPatience() {
	if e.active.Load() == e.standing.Load() {
		e.left.Store(monotonic())
	}
}

// Active returns the number of tasks, plus the calls of Hold without their Unhold.
func (e *Engine) Active() int { return int(e.active.Load()) }

// Hold counts an operation that has no task yet, so that the progress thread stays awake and calls
// Background.
func (e *Engine) Hold() {
	e.startPatience()
	e.active.Add(1)
	e.progress.wake(false)
}

// Unhold takes one call of Hold back.
func (e *Engine) Unhold() { e.active.Add(-1) }

// CalledMPI says that MPI was called to move data. MPI may hold some of the data back after the call,
// and send it at a later call: another rank then waits for data while this one computes, or waits for
// something else than MPI. So the progress thread calls Background now and then from here on.
func (e *Engine) CalledMPI() {
	if e.called.Load() {
		return // a load costs nothing, a store some 5 ns
	}
	e.called.Store(true)
	e.firstCall.Do(func() {
		e.StartProgress()
		e.progress.wake(false)
	})
}

// Tick takes every task further and returns whether a request or a task has ended. It does nothing
// if another goroutine is in Tick.
func (e *Engine) Tick() bool {
	moved, _ := e.tick(false, false)
	return moved
}

// Look is Tick for a caller that has other work to do than that of the tasks: see Looking.
func (e *Engine) Look() { e.tick(true, false) }

// Looking tells a task, inside Poll, that the tick is one of Look: the task should start what needs
// no time of this thread, and leave its own work to a later tick.
func (e *Engine) Looking() bool { return e.looking }

// Helping tells a task, inside Poll, that the progress thread polls it.
func (e *Engine) Helping() bool { return e.helping }

// Relieved tells a task, inside Poll, that the progress thread polls it and that a goroutine has come to
// wait. The task should return soon, because that goroutine drives all tasks from then on.
func (e *Engine) Relieved() bool { return e.helping && e.drivers.Load() > 0 }

// tick is Tick. looked is false if another goroutine is in it.
func (e *Engine) tick(looking, helping bool) (moved, looked bool) {
	if e.active.Load() == 0 {
		e.pace.Store(int32(Rung))
		return false, true
	}
	if !e.driving.TryLock() {
		return false, false
	}
	defer e.driving.Unlock()
	e.looking, e.helping = looking, helping
	e.mu.Lock()
	e.snapshot = append(e.snapshot[:0], e.tasks...)
	e.mu.Unlock()

	e.batch.reset()
	pace, serving := Rung, false
	for _, t := range e.snapshot {
		pace = max(pace, t.Requests(&e.batch))
		serving = serving || t.standing != nil && t.standing.Lively()
	}
	e.pace.Store(int32(pace))
	e.serving.Store(serving)
	moved = e.batch.poll() > 0

	e.over = e.over[:0]
	for _, t := range e.snapshot {
		if t.Poll() {
			e.over = append(e.over, t)
		}
	}
	if len(e.over) > 0 {
		e.remove(e.over)
		moved = true
	}
	clear(e.snapshot)
	clear(e.over)
	if moved {
		e.rouse()
	}
	return moved, true
}

// The looks that follow a nap while requests of other ranks are served.
const (
	looksInVain = 2  // end them: MPI may tell of what the first has moved only in the second
	mostLooks   = 64 // are made between two looks at the clock
)

// goOn makes further ticks after a nap, until some of them have moved nothing, or done returns true, which goOn then
// returns. MPI takes several calls to move one message, as many bytes as fit its buffer in each: with a nap for each call a long
// message takes milliseconds.
func (e *Engine) goOn(helping bool, moved *bool, done func() bool) bool {
	for i, inVain := 0, 0; i < mostLooks && inVain < looksInVain && e.serving.Load(); i++ {
		if done() {
			return true
		}
		inVain++
		if more, _ := e.tick(false, helping); more {
			*moved, inVain = true, 0
		}
	}
	return false
}

func (e *Engine) remove(over []entry) {
	e.mu.Lock()
	kept := e.tasks[:0]
	for _, t := range e.tasks {
		switch {
		case !slices.Contains(over, t):
			kept = append(kept, t)
		case t.standing != nil:
			e.standing.Add(-1)
		case !t.patient:
			e.urgent.Add(-1)
		}
	}
	clear(e.tasks[len(kept):])
	e.tasks = kept
	e.mu.Unlock()
	e.active.Add(-int32(len(over)))
}

// Longest is the longest timeout that is observed, some 100 years. The time of the day plus a
// longer one would overflow and lie in the past.
const Longest = 100 * 365 * 24 * time.Hour

// ErrDeadline is the error of a Wait whose deadline passed.
var ErrDeadline = errors.New("work: deadline passed")

// Interrupt returns an error if the wait has to end, for instance because a signal came. Wait calls
// it at most once every 50 ms.
type Interrupt func() error

// InterruptEvery is the least time between two calls of an Interrupt.
const InterruptEvery = 50 * time.Millisecond

// Wait drives the engine until done returns true. It returns ErrDeadline if the deadline passes
// first (the zero time: no deadline), the error of interrupt (nil: no interrupt), or the reason why
// the engine was stopped.
//
// interrupt may take long, because it may run a signal handler of the caller. The progress thread
// drives meanwhile.
func (e *Engine) Wait(done func() bool, deadline time.Time, interrupt Interrupt) error {
	return e.wait(nil, false, done, deadline, interrupt)
}

// WaitRung is Wait where whoever does what done waits for rings a bell.
func (e *Engine) WaitRung(done func() bool, deadline time.Time, interrupt Interrupt) error {
	return e.wait(nil, true, done, deadline, interrupt)
}

// wait is Wait for the end of h, unless h is nil; rung: see WaitRung.
func (e *Engine) wait(h *Handle, rung bool, done func() bool, deadline time.Time, interrupt Interrupt) error {
	if done() {
		return nil
	}
	e.inside.Add(1)
	defer e.inside.Add(-1)
	e.drivers.Add(1)
	defer e.leave()
	if h != nil && e.stopped.Load() == nil { // so the ring stays until this goroutine has left
		h.mark.Waited()
	}
	b := Backoff{Crowded: e.crowded.Load()}
	core := sharing{of: &e.core}
	var lastAsked time.Time
	for i := 1; ; i++ {
		moved, over := e.Tick(), false
		if b.Slept() {
			over = e.goOn(false, &moved, done)
		}
		if over || done() {
			return nil
		}
		if moved {
			b.Reset()
		}
		pace := Pace(e.pace.Load())
		b.Pace, b.Prompt = core.pace(pace), e.serving.Load()
		if !rung {
			b.Pace = max(b.Pace, Seldom)
		}
		if bells := e.bells.Load(); bells != nil && b.ripe() {
			if e.doze(bells, &b, deadline, done) {
				return nil
			}
		} else {
			b.Pause()
		}
		if i&31 != 0 && !b.Slept() {
			continue
		}
		if b.napped {
			e.core.napped(b.late)
		}
		now := time.Now()
		if pace == Often {
			core.look(int64(now.Sub(started)), b.Slept(), coreUsage)
		}
		if h != nil {
			h.await()
		}
		e.background(now)
		if !deadline.IsZero() && now.After(deadline) {
			return ErrDeadline
		}
		if why := e.stopped.Load(); why != nil {
			return why
		}
		if interrupt == nil {
			continue
		}
		if lastAsked.IsZero() {
			lastAsked = now
		}
		if now.Sub(lastAsked) >= InterruptEvery {
			e.leave()
			err := interrupt()
			e.drivers.Add(1)
			lastAsked = time.Now() // measured from the end of the handler, which may have taken long
			if err != nil {
				return err
			}
		}
	}
}

// leave counts a goroutine out that drove the tasks.
func (e *Engine) leave() {
	e.left.Store(monotonic())
	e.rouse() // another goroutine drives now
	if e.drivers.Add(-1) == 0 && (e.urgent.Load() > 0 || e.spare.Load() && e.active.Load() > e.standing.Load()) {
		e.progress.wake(true)
	}
}

// background calls Background at most once a millisecond, on whichever goroutine comes first.
func (e *Engine) background(now time.Time) {
	if e.Background == nil {
		return
	}
	last := e.lastBack.Load()
	if n := now.UnixNano(); n-last >= int64(time.Millisecond) && e.lastBack.CompareAndSwap(last, n) {
		e.Background()
	}
}

// Stop ends the waits of all other goroutines with why. It waits until they have ended, limit at
// most, and returns whether they have.
func (e *Engine) Stop(why *status.Error, limit time.Duration) bool {
	e.stopped.CompareAndSwap(nil, why)
	e.rouse()
	e.StopProgress()
	for end := time.Now().Add(limit); e.inside.Load() > 0; sleep(100 * time.Microsecond) {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}

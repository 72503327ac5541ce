package work

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/paddlempi/paddlempi/gocore/status"
)

// Poller tests requests. A slot is opaque to the engine; Poll looks at all of them
// in one go and returns how many ended just now.
type Poller interface {
	Poll(slots []uintptr) int
}

// Task is an operation under way. The engine calls its methods from one goroutine
// at a time, though not always the same one.
type Task interface {
	// Poll goes as far as it can without waiting and returns whether the task is over.
	Poll() bool
	// Requests adds the requests the task waits for now. One that adds none is
	// waiting for something else and is polled at every tick all the same. moving says
	// that it is polls that move the data now: whoever waits should not sleep between them.
	Requests(*Batch) (moving bool)
}

// Batch collects the requests of all tasks, by poller.
type Batch struct {
	pollers []Poller
	slots   [][]uintptr
}

// Add appends a request.
func (b *Batch) Add(p Poller, slot uintptr) {
	for i := range b.pollers {
		if b.pollers[i] == p {
			b.slots[i] = append(b.slots[i], slot)
			return
		}
	}
	b.pollers = append(b.pollers, p)
	b.slots = append(b.slots, []uintptr{slot})
}

func (b *Batch) reset() {
	for i := range b.slots {
		b.slots[i] = b.slots[i][:0]
	}
}

func (b *Batch) poll() (changed int) {
	for i, p := range b.pollers {
		if len(b.slots[i]) > 0 {
			changed += p.Poll(b.slots[i])
		}
	}
	return changed
}

// Engine holds the tasks of a process. All methods are safe for concurrent use.
type Engine struct {
	// Panicked, if set, is told what a task panicked with on the progress thread, which
	// ends. Where somebody waits, the panic goes up to whoever called.
	Panicked func(any)
	// Background, if set, is called by waiting goroutines about once a millisecond.
	Background func()

	mu    sync.Mutex // guards tasks
	tasks []Task

	driving  sync.Mutex // held by the one goroutine that ticks; guards the three below
	snapshot []Task
	over     []Task
	batch    Batch

	stopped  atomic.Pointer[status.Error] // why no wait goes on; nil while waits do
	active   atomic.Int32                 // len(tasks), and what is held
	inside   atomic.Int32                 // goroutines in Wait
	drivers  atomic.Int32                 // those of them that tick: not the ones that ask interrupt
	crowded  atomic.Bool                  // more ranks than cores: do not spin
	moving   atomic.Bool                  // at the last tick polls were moving data
	lastBack atomic.Int64                 // when Background ran, in nanoseconds

	progress progressThread
}

// NewEngine returns an engine with no tasks.
func NewEngine() *Engine { return &Engine{} }

// SetCrowded says whether the node has more ranks than cores, where spinning takes
// time from the rank that is waited for.
func (e *Engine) SetCrowded(crowded bool) { e.crowded.Store(crowded) }

// Add hands a task to the engine.
func (e *Engine) Add(t Task) {
	e.mu.Lock()
	e.tasks = append(e.tasks, t)
	e.mu.Unlock()
	e.active.Add(1)
	e.progress.wake()
}

// Active returns the number of tasks under way, and of what is held.
func (e *Engine) Active() int { return int(e.active.Load()) }

// Hold counts something as under way that no task stands for yet, so that the progress
// thread stays awake and Background runs. Unhold takes it back.
func (e *Engine) Hold() {
	e.active.Add(1)
	e.progress.wake()
}

// Unhold is the other half of Hold.
func (e *Engine) Unhold() { e.active.Add(-1) }

// Tick takes every task a step further and returns whether anything moved. It does
// nothing where another goroutine is at it.
func (e *Engine) Tick() bool {
	if e.active.Load() == 0 || !e.driving.TryLock() {
		return false
	}
	defer e.driving.Unlock()
	e.mu.Lock()
	e.snapshot = append(e.snapshot[:0], e.tasks...)
	e.mu.Unlock()

	e.batch.reset()
	moving := false
	for _, t := range e.snapshot {
		moving = t.Requests(&e.batch) || moving
	}
	e.moving.Store(moving)
	moved := e.batch.poll() > 0

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
	return moved
}

func (e *Engine) remove(over []Task) {
	e.mu.Lock()
	kept := e.tasks[:0]
	for _, t := range e.tasks {
		gone := false
		for _, o := range over {
			gone = gone || o == t
		}
		if !gone {
			kept = append(kept, t)
		}
	}
	clear(e.tasks[len(kept):])
	e.tasks = kept
	e.mu.Unlock()
	e.active.Add(-int32(len(over)))
}

// Longest is the longest deadline that is kept, some 100 years: a longer one, added to the
// time of the day, would lie in the past.
const Longest = 100 * 365 * 24 * time.Hour

// ErrDeadline is returned by Wait when its deadline passed first.
var ErrDeadline = errors.New("work: deadline passed")

// Interrupt asks whether the caller's environment wants the wait to end, for
// instance because a signal came. It is called at most every 50 ms.
type Interrupt func() error

const interruptEvery = 50 * time.Millisecond

// Wait drives the engine until done returns true. It returns ErrDeadline when
// deadline (the zero time: none) passes first, what interrupt (nil: none) returned, or
// why the engine was stopped.
//
// While interrupt runs, which may take long (a signal handler of the caller's), the
// progress thread drives.
func (e *Engine) Wait(done func() bool, deadline time.Time, interrupt Interrupt) error {
	if done() {
		return nil
	}
	e.inside.Add(1)
	defer e.inside.Add(-1)
	e.drivers.Add(1)
	defer e.drivers.Add(-1)
	b := Backoff{Crowded: e.crowded.Load()}
	var lastAsked time.Time
	for i := 1; ; i++ {
		if e.Tick() {
			b.Reset()
		}
		if done() {
			return nil
		}
		b.Moving = e.moving.Load()
		b.Pause()
		if i&31 != 0 && !b.Slept() {
			continue
		}
		now := time.Now()
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
		if now.Sub(lastAsked) >= interruptEvery {
			e.drivers.Add(-1)
			err := interrupt()
			e.drivers.Add(1)
			lastAsked = time.Now() // a handler that takes long is not asked again at once
			if err != nil {
				return err
			}
		}
	}
}

// background runs the slow chores at most once a millisecond, whoever comes first.
func (e *Engine) background(now time.Time) {
	if e.Background == nil {
		return
	}
	last := e.lastBack.Load()
	if n := now.UnixNano(); n-last >= int64(time.Millisecond) && e.lastBack.CompareAndSwap(last, n) {
		e.Background()
	}
}

// Stop ends the waits of all other goroutines with why, and returns whether they are
// over, which it waits for up to limit.
func (e *Engine) Stop(why *status.Error, limit time.Duration) bool {
	e.stopped.CompareAndSwap(nil, why)
	e.StopProgress()
	for end := time.Now().Add(limit); e.inside.Load() > 0; sleep(100 * time.Microsecond) {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}

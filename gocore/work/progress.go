package work

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// patience is how long the progress thread leaves patient tasks and late completions to a goroutine
// that comes to wait. A training step submits collectives during its backward, and waits for them at
// the end. On a machine without a spare core, a thread that polls meanwhile costs more than it
// gains. On a machine with a spare core it gains: see Engine.Spare.
const patience = 2 * time.Millisecond

// spareEvery is the time between two questions whether a CPU is idle.
const spareEvery = 100 * time.Millisecond

// After MPI was called, the progress thread visits Background after firstVisit, then after twice the
// time, and so on up to lastVisit. It never stops, because the rank that waits may come late. A visit
// is several calls, because MPICH may send one small packet in each.
const (
	firstVisit = time.Millisecond
	lastVisit  = 20 * time.Millisecond
	visitCalls = 32
)

var started = time.Now()

// monotonic returns nanoseconds on a clock that never jumps.
func monotonic() int64 { return int64(time.Since(started)) }

// progressThread drives tasks for which no goroutine waits. It sleeps on a futex while it has
// nothing to do.
type progressThread struct {
	once    sync.Once
	started atomic.Bool
	stopped atomic.Bool
	asleep  atomic.Int32
	word    uint32 // futex; changes when a task was added or the thread must stop
	exited  chan struct{}
	next    time.Duration // the time to the next visit; 0 before CalledMPI
	asked   int64         // when Spare was last called; see monotonic
}

// The values of progressThread.asleep.
const (
	awake   int32 = iota
	napping       // only urgent work wakes the thread
	resting       // any work wakes it
)

// StartProgress starts the progress thread, unless it runs. The first asynchronous operation calls
// it.
func (e *Engine) StartProgress() {
	p := &e.progress
	if p.started.Load() {
		return
	}
	p.once.Do(func() {
		p.exited = make(chan struct{})
		p.started.Store(true)
		go e.runProgress()
	})
}

// StopProgress ends the progress thread and waits until it has. Tasks stay in the engine.
func (e *Engine) StopProgress() {
	p := &e.progress
	if p.started.Load() && !p.stopped.Swap(true) {
		p.wake(true)
		<-p.exited
	}
}

// wake ends the thread's sleep. It does not end a nap unless the work is urgent.
func (p *progressThread) wake(urgent bool) {
	atomic.AddUint32(&p.word, 1)
	if asleep := p.asleep.Load(); asleep == resting || asleep == napping && urgent {
		futexWake(&p.word)
	}
}

// sleep sleeps for d (negative: until wake is called), napping or resting, unless wake was called
// after the word was seen.
func (p *progressThread) sleep(seen uint32, state int32, d time.Duration) {
	p.asleep.Store(state)
	if atomic.LoadUint32(&p.word) == seen && !p.stopped.Load() {
		futexWait(&p.word, seen, d)
	}
	p.asleep.Store(awake)
}

// rest lets the progress thread sleep while there are no tasks, until it is woken or until the next
// visit.
func (e *Engine) rest(seen uint32) {
	p := &e.progress
	switch {
	case e.called.Swap(false):
		p.next = firstVisit
	case p.next == 0:
		p.sleep(seen, resting, -1)
		return
	default:
		p.next = min(2*p.next, lastVisit)
	}
	p.sleep(seen, resting, p.next)
	if e.called.Load() {
		// Somebody has called MPI meanwhile, and so sent what it held. A thread that visits MPI beside one that waits in
		// it would take its core, where all are used.
		return
	}
	for i := 0; i < visitCalls && e.Background != nil && !p.stopped.Load(); i++ {
		e.Background()
	}
}

// idleFor returns for how long the progress thread has nothing to do: negative if there are no
// tasks.
func (e *Engine) idleFor() time.Duration {
	switch {
	case e.Active() == 0 && completed.nLate.Load() == 0:
		return -1
	case e.drivers.Load() > 0:
		return patience
	case e.urgent.Load() > 0:
		return 0
	}
	return max(0, patience-time.Duration(monotonic()-e.left.Load()))
}

// mayHelp tells whether the progress thread drives patient tasks at once: no goroutine waits, and a CPU
// is idle that no rank needs.
func (e *Engine) mayHelp() bool {
	if e.Spare == nil || e.drivers.Load() > 0 || e.active.Load() == e.standing.Load() {
		return false
	}
	if now := monotonic(); now-e.progress.asked >= int64(spareEvery) {
		e.progress.asked = now
		e.spare.Store(e.Spare())
	}
	return e.spare.Load()
}

func (e *Engine) runProgress() {
	runtime.LockOSThread()
	ExactSleeps()
	p := &e.progress
	defer close(p.exited)
	defer completed.reportLate()
	defer func() {
		if e.Panicked == nil {
			return
		}
		if why := recover(); why != nil {
			e.Panicked(why)
		}
	}()
	b := Backoff{Lazy: true}
	for !p.stopped.Load() {
		seen := atomic.LoadUint32(&p.word)
		idle := e.idleFor()
		switch {
		case idle < 0:
			e.rest(seen)
			b.Reset()
			continue
		case idle > 0 && !e.mayHelp():
			p.sleep(seen, napping, idle)
			b.Reset()
			continue
		}
		moved, _ := e.tick(false, true)
		e.goOn(true, &moved, func() bool { return p.stopped.Load() || e.drivers.Load() > 0 })
		if moved {
			b.Reset()
		}
		if idle == 0 {
			completed.reportLate()
		}
		e.background(time.Now())
		if e.serving.Load() {
			nap()
		} else {
			b.Pause()
		}
	}
}

package work

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// progressThread drives tasks for which no goroutine waits. It sleeps on a futex while there are no
// tasks, and leaves driving to a goroutine that waits, if there is one.
type progressThread struct {
	once     sync.Once
	started  atomic.Bool
	stopped  atomic.Bool
	sleeping atomic.Bool
	word     uint32 // futex; changes when a task was added or the thread must stop
	exited   chan struct{}
}

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
		p.wake()
		<-p.exited
	}
}

func (p *progressThread) wake() {
	atomic.AddUint32(&p.word, 1)
	if p.sleeping.Load() {
		futexWake(&p.word)
	}
}

func (e *Engine) runProgress() {
	runtime.LockOSThread()
	exactSleeps()
	p := &e.progress
	defer close(p.exited)
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
		if e.Active() == 0 {
			p.sleeping.Store(true)
			if atomic.LoadUint32(&p.word) == seen && !p.stopped.Load() {
				futexWait(&p.word, seen)
			}
			p.sleeping.Store(false)
			b.Reset()
			continue
		}
		if e.drivers.Load() > 0 {
			sleep(time.Millisecond)
			continue
		}
		if e.Tick() {
			b.Reset()
		}
		e.background(time.Now())
		b.Pause()
	}
}

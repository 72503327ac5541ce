package work

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// progressThread moves tasks that nobody waits for. It sleeps on a futex while
// there are none, and lets a waiting goroutine drive where there is one.
type progressThread struct {
	once     sync.Once
	started  atomic.Bool
	stopped  atomic.Bool
	sleeping atomic.Bool
	word     uint32 // futex; changes whenever there may be something to do
	exited   chan struct{}
}

// StartProgress makes sure the progress thread runs. Called by the first
// operation that its caller does not wait for.
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

// StopProgress ends the progress thread and waits for it. Tasks stay.
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

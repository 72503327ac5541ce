package work

import (
	"math/bits"
	"runtime"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/status"
)

// bellsOfTest returns the doorbells of n ranks, as each of them uses them.
func bellsOfTest(t *testing.T, n int) []*Bells {
	mem, err := syscall.Mmap(-1, 0, int(BellBytes(n)), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED|syscall.MAP_ANONYMOUS)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, syscall.Munmap(mem)) })
	all := make([]*Bells, n)
	for me := range all {
		all[me] = NewBells(unsafe.Pointer(unsafe.SliceData(mem)), n, me)
	}
	return all
}

// sleepLong makes sleeps so long that only a bell ends them while a test runs.
func sleepLong(t *testing.T) { sleepAtLeast(t, time.Hour) }

func sleepAtLeast(t *testing.T, d time.Duration) {
	first, longest := firstDoze, longestDoze
	firstDoze, longestDoze = d, d
	t.Cleanup(func() { firstDoze, longestDoze = first, longest })
}

// asleep waits until so many goroutines of e sleep, or are about to.
func asleep(t *testing.T, e *Engine, n int32) {
	require.Eventually(t, func() bool { return e.dozing.Load() == n }, 20*time.Second, time.Millisecond)
	time.Sleep(5 * time.Millisecond)
}

// sharedTask is a task that is over when a word says so, which another rank writes.
type sharedTask struct {
	over   atomic.Bool
	looked atomic.Int64
	pace   Pace
}

func (s *sharedTask) Poll() bool           { s.looked.Add(1); return s.over.Load() }
func (s *sharedTask) Requests(*Batch) Pace { return s.pace }

// A wait that sleeps ends when another rank has done what it waits for, and rings: also where the set of those that sleep has more
// than one word, or line.
func TestARingEndsASleep(t *testing.T) {
	sleepLong(t)
	for _, n := range []int{2, 70, 600} {
		bells := bellsOfTest(t, n)
		for _, me := range []int{0, n - 1} {
			e, task, over := NewEngine(), &sharedTask{}, make(chan error)
			e.UseBells(bells[me])
			e.AddPatient(task)
			for range 2 { // one of them drives
				go func() { over <- e.WaitRung(func() bool { return e.Active() == 0 }, time.Time{}, nil) }()
			}
			asleep(t, e, 2)
			other := bells[(me+1)%n]
			other.Answer(false)
			task.over.Store(true)
			Ring()
			other.Ignore()
			require.NoError(t, <-over)
			require.NoError(t, <-over)
		}
	}
}

// A process rings the doorbells of all its worlds, and no longer those that it ignores.
func TestAProcessRingsAllItsBells(t *testing.T) {
	worlds := [][]*Bells{bellsOfTest(t, 2), bellsOfTest(t, 3), bellsOfTest(t, 2)}
	var answered [3]bool
	check := func() {
		t.Helper()
		var seen [3]uint32
		for i, bells := range worlds {
			seen[i] = bells[1].Enter()
		}
		Ring()
		for i, bells := range worlds {
			assert.Equal(t, answered[i], bells[1].Enter() != seen[i], i)
			bells[1].Leave()
		}
	}
	check()
	for _, which := range []int{0, 1, 2, 1, 0, 1, 2, 0, 1, 0, 2, 1, 1} { // each on, and off, in several orders
		if answered[which] = !answered[which]; answered[which] {
			worlds[which][0].Answer(false)
			worlds[which][0].Answer(false) // the second time does nothing
		} else {
			worlds[which][0].Ignore()
		}
		check()
	}
	for i, bells := range worlds {
		bells[0].Ignore() // also of one that does not answer
		answered[i] = false
	}
	check()
}

// limitedTask is a task that is over when a look at the clock shows that its deadline has passed.
type limitedTask struct {
	e        *Engine
	looks    Looks
	deadline time.Time
}

func (l *limitedTask) Poll() bool           { return l.looks.Due(l.e) && time.Now().After(l.deadline) }
func (l *limitedTask) Requests(*Batch) Pace { return Rung }

// A deadline that passes while a wait sleeps is seen after that sleep, not some sleeps later.
func TestADeadlineIsSeenAfterASleep(t *testing.T) {
	sleepAtLeast(t, 200*time.Millisecond)
	e := NewEngine()
	e.UseBells(bellsOfTest(t, 2)[0])
	e.AddPatient(&limitedTask{e: e, deadline: time.Now().Add(100 * time.Millisecond)})
	require.NoError(t, e.WaitRung(func() bool { return e.Active() == 0 }, time.Time{}, nil))
	assert.LessOrEqual(t, e.dozes.Load(), uint32(1))
}

// What another thread of the process does ends a sleep, too.
func TestAThreadEndsASleep(t *testing.T) {
	sleepLong(t)
	stopped := status.New(status.GroupDestroyed, "stopped")
	for name, c := range map[string]struct {
		do   func(*Engine, *Handle)
		want error
	}{
		"by a task that ends the work": {do: func(e *Engine, h *Handle) { e.AddPatient(ending{h}) }},
		"by the end of the work":       {do: func(_ *Engine, h *Handle) { h.Finish(Result{}, nil) }},
		"by the end of the engine":     {do: func(e *Engine, _ *Handle) { e.Stop(stopped, time.Second) }, want: stopped},
	} {
		t.Run(name, func(t *testing.T) {
			e, over := NewEngine(), make(chan error)
			h := e.NewHandle()
			bells := bellsOfTest(t, 2)
			e.UseBells(bells[0])
			go func() {
				_, err := h.Wait(-1, nil)
				over <- err
			}()
			asleep(t, e, 1)
			c.do(e, h)
			require.Equal(t, c.want, <-over)
			bell := (*uint32)(bells[0].Memory())
			seen := *bell
			bells[1].Answer(false)
			Ring()
			bells[1].Ignore()
			require.Equal(t, seen, *bell, "who sleeps no longer is not rung")
		})
	}
}

// ending is a task that ends a work.
type ending struct{ h *Handle }

func (e ending) Poll() bool           { return e.h.Finish(Result{}, nil) }
func (e ending) Requests(*Batch) Pace { return Rung }

// A wait does not sleep while some task has to be polled, and a wait for anything that rings no bell does not either.
func TestWhatRingsNoBellIsPolled(t *testing.T) {
	sleepLong(t)
	for name, c := range map[string]struct {
		pace Pace
		wait func(*Engine, func() bool) error
	}{
		"a task": {Seldom, func(e *Engine, done func() bool) error { return e.WaitRung(done, time.Time{}, nil) }},
		"a wait": {Rung, func(e *Engine, done func() bool) error { return e.Wait(done, time.Time{}, nil) }},
	} {
		t.Run(name, func(t *testing.T) {
			e, task := NewEngine(), &sharedTask{pace: c.pace}
			e.UseBells(bellsOfTest(t, 2)[0])
			e.AddPatient(task)
			require.NoError(t, c.wait(e, func() bool { return task.looked.Load() > spins+2*yields }))
		})
	}
}

// A sleep ends at the deadline, and an interrupt is asked for as in any wait.
func TestASleepEndsInTime(t *testing.T) {
	e := NewEngine()
	e.UseBells(bellsOfTest(t, 2)[0])
	never := func() bool { return false }
	require.Equal(t, ErrDeadline, e.WaitRung(never, time.Now().Add(30*time.Millisecond), nil))
	asked := status.New(status.Interrupted, "asked")
	require.Equal(t, error(asked), e.WaitRung(never, time.Time{}, func() error { return asked }))
}

// After a sleep the tasks come before Background: both may be due, and a task that ends with an error may be why others end.
func TestTasksComeBeforeBackgroundAfterASleep(t *testing.T) {
	sleepAtLeast(t, 50*time.Millisecond)
	e, task := NewEngine(), &sharedTask{}
	var late atomic.Bool
	e.Background = func() {
		if e.dozing.Load() == 0 && task.over.Load() && e.Active() > 0 {
			late.Store(true)
		}
	}
	e.UseBells(bellsOfTest(t, 2)[0])
	e.AddPatient(task)
	over := make(chan error)
	go func() { over <- e.WaitRung(func() bool { return e.Active() == 0 }, time.Time{}, nil) }()
	asleep(t, e, 1)
	task.over.Store(true)
	require.NoError(t, <-over)
	assert.False(t, late.Load())
}

// cpuOfThread returns the CPU on which this thread is, and the set of those that it may use.
func cpuOfThread(t *testing.T) (cpu uint32, may [1024]byte) {
	_, _, errno := syscall.RawSyscall(syscall.SYS_SCHED_GETAFFINITY, 0, uintptr(len(may)), uintptr(unsafe.Pointer(&may[0])))
	require.Zero(t, errno)
	_, _, errno = syscall.RawSyscall(map[string]uintptr{"amd64": 309, "arm64": 168}[runtime.GOARCH], uintptr(unsafe.Pointer(&cpu)), 0, 0)
	require.Zero(t, errno)
	return cpu, may
}

// A rank whose sleep has not parted it from another one on its CPU leaves that CPU, if it may use another one, and is bound to
// none. The earlier of two ranks stays.
func TestRanksOnOneCPUPart(t *testing.T) {
	runtime.LockOSThread() // and never unlocked: what the thread knows of its core ends with it
	_, may := cpuOfThread(t)
	several := 0
	for _, set := range may {
		several += bits.OnesCount8(set)
	}
	for me := range 2 {
		bells := bellsOfTest(t, 2)
		tells := func(rank int) *uint32 { // where a rank says on which CPU it is
			return (*uint32)(unsafe.Add(bells[0].Memory(), int(BellBytes(2))/2*rank+4))
		}
		here := func() { cpu, _ := cpuOfThread(t); *tells(1 - me) = cpu + 1 }
		bells[me].Answer(false)
		parted := false
		for range 200 { // the kernel may move the thread, too
			b := Backoff{Pace: Rung, n: spins}
			here()
			if b.ripe() {
				b.doze(time.Time{}, func(time.Duration) {})
				here()
				stays := b.ripe()
				parted = parted || !stays && *tells(me) != 0
			}
			*tells(1 - me) = 0
			b.ripe() // nobody is on its CPU any more
		}
		bells[me].Ignore()
		_, allowed := cpuOfThread(t)
		require.Equal(t, may, allowed)
		require.Equal(t, me == 1 && several > 1, parted)
	}
}

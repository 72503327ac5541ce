package work

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/status"
)

const soon = 10 * time.Second // only a failure takes as long

func TestTheProgressThreadDrivesTasksWithoutAWaiter(t *testing.T) {
	e := NewEngine()
	e.StopProgress() // does nothing: the thread was not started
	early := newCountdown(5)
	e.Add(early)
	e.StartProgress()
	e.StartProgress() // does nothing: the thread runs
	require.Eventually(t, early.over, soon, time.Millisecond)
	for range 200 { // the thread is asleep by then, or about to sleep
		c := newCountdown(2)
		e.Add(c)
		require.Eventually(t, c.over, soon, 10*time.Microsecond)
	}
	require.Eventually(t, func() bool { return e.Active() == 0 }, soon, time.Millisecond)

	e.StopProgress()
	e.StopProgress()
	c := newCountdown(1)
	e.Add(c)
	time.Sleep(5 * time.Millisecond)
	assert.False(t, c.over(), "the task stays, and no thread drives it")
	require.NoError(t, e.Wait(c.over, time.Now().Add(soon), nil), "but one who waits")
}

func TestStoppingFromSeveralGoroutines(t *testing.T) {
	e := NewEngine()
	e.StartProgress()
	e.Add(newCountdown(1 << 30))
	var wg sync.WaitGroup
	for range 4 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			e.StopProgress()
		}()
	}
	wg.Wait()
	select {
	case <-e.progress.exited:
	case <-time.After(soon):
		assert.Fail(t, "the progress thread goes on")
	}
}

// A goroutine in Wait drives while the progress thread runs too.
func TestWaitersAndTheProgressThread(t *testing.T) {
	e := NewEngine()
	e.StartProgress()
	defer e.StopProgress()
	p := &fakePoller{}
	for i := range 100 {
		r := &request{poller: p, slot: uintptr(i)}
		e.Add(r)
		time.AfterFunc(20*time.Microsecond, func() { p.ripen(r.slot) })
		require.NoError(t, e.Wait(r.ended.Load, time.Now().Add(soon), nil))
		assert.False(t, r.twice.Load())
	}
}

// A patient task is left to a goroutine that comes to wait, for a while.
func TestThePatienceOfTheProgressThread(t *testing.T) {
	e := NewEngine()
	e.StartProgress()
	defer e.StopProgress()
	for range 20 {
		start := time.Now()
		c := newCountdown(1)
		e.AddPatient(c)
		require.Eventually(t, c.over, soon, 50*time.Microsecond)
		assert.GreaterOrEqual(t, time.Since(start), patience)
		require.Eventually(t, func() bool { return e.Active() == 0 }, soon, 50*time.Microsecond)
	}

	// It begins again when the last goroutine leaves Wait.
	c := newCountdown(1 << 30)
	e.AddPatient(c)
	require.ErrorIs(t, e.Wait(c.over, time.Now().Add(10*time.Millisecond), nil), ErrDeadline)
	left := time.Now()
	c.left.Store(1)
	require.Eventually(t, c.over, soon, 50*time.Microsecond)
	assert.GreaterOrEqual(t, time.Since(left), patience-time.Millisecond)
}

// server is a standing task that is never lively.
type server struct{ countdown }

func (*server) Lively() bool { return false }

// A standing task is driven by who waits, and by the progress thread if nobody does. It takes no patience from others.
func TestAStandingTask(t *testing.T) {
	e := NewEngine()
	e.StartProgress()
	defer e.StopProgress()
	standing := &server{}
	standing.countdown.left.Store(1 << 30)
	e.AddStanding(standing)
	time.Sleep(2 * patience)
	before := standing.left.Load()
	require.Eventually(t, func() bool { return standing.left.Load() < before }, soon, time.Millisecond, "the progress thread drives it")
	require.ErrorIs(t, e.Wait(standing.over, time.Now().Add(time.Millisecond), nil), ErrDeadline)
	early := 0
	for range 10 {
		time.Sleep(2 * patience) // since the last wait
		start := time.Now()
		c := newCountdown(1)
		e.AddPatient(c)
		require.Eventually(t, c.over, soon, 50*time.Microsecond)
		if time.Since(start) < patience-time.Millisecond {
			early++ // the thread was about to look when the task came
		}
		require.Eventually(t, func() bool { return e.Active() == 1 }, soon, 50*time.Microsecond)
	}
	assert.Less(t, early, 5)
	assert.Equal(t, int32(1), e.standing.Load())
	standing.left.Store(1)
	require.Eventually(t, func() bool { return e.Active() == 0 }, soon, time.Millisecond)
	assert.Equal(t, int32(0), e.standing.Load())
	assert.Zero(t, e.urgent.Load())
}

// Where a CPU is idle the progress thread has no patience. It asks now and then, while there are tasks.
func TestASpareCPU(t *testing.T) {
	e := NewEngine()
	var asked atomic.Int32
	var idle atomic.Bool
	e.Spare = func() bool { asked.Add(1); return idle.Load() }
	begun := time.Now()
	e.StartProgress()
	defer e.StopProgress()
	time.Sleep(3 * spareEvery / 2)
	assert.Zero(t, asked.Load(), "there is no task")

	least := soon
	run := func() {
		start := time.Now()
		c := newCountdown(2)
		e.AddPatient(c)
		for !c.over() && time.Since(start) < soon {
			Yield()
		}
		least = min(least, time.Since(start))
		require.Eventually(t, func() bool { return e.Active() == 0 }, soon, 10*time.Microsecond)
	}
	for asked.Load() < 3 && time.Since(begun) < soon {
		run()
	}
	assert.LessOrEqual(t, int(asked.Load()), 1+int(time.Since(begun)/spareEvery))
	assert.GreaterOrEqual(t, least, patience, "no CPU is idle")
	idle.Store(true)
	for !e.spare.Load() && time.Since(begun) < soon {
		run()
	}
	for range 100 {
		run()
	}
	assert.Less(t, least, patience)
}

// yielding is a task that is over when another goroutine than the progress thread polls it. The progress
// thread leaves it only when it is relieved.
type yielding struct {
	e              *Engine
	helped, ended  atomic.Bool
	relievedInTime bool
}

func (y *yielding) Requests(*Batch) Pace { return Always }

func (y *yielding) Poll() bool {
	if !y.e.Helping() {
		y.ended.Store(true)
		return true
	}
	y.helped.Store(true)
	for end := time.Now().Add(soon); !y.e.Relieved() && time.Now().Before(end); Yield() {
	}
	y.relievedInTime = y.e.Relieved()
	return false
}

// A goroutine that comes to wait takes over from the progress thread.
func TestAGoroutineRelievesTheProgressThread(t *testing.T) {
	for _, spare := range []func() bool{nil, func() bool { return true }} {
		e := NewEngine()
		e.Spare = spare
		y := &yielding{e: e}
		e.AddPatient(y)
		e.StartProgress()
		require.Eventually(t, y.helped.Load, soon, time.Millisecond)
		require.NoError(t, e.Wait(y.ended.Load, time.Now().Add(soon/2), nil))
		e.StopProgress()
		assert.True(t, y.relievedInTime)
	}
}

// A task of Add, or an operation for which no goroutine will wait, ends the patience for all.
func TestHurry(t *testing.T) {
	e := NewEngine()
	defer e.StopProgress()
	for _, hurry := range []func(h *Handle){
		func(h *Handle) { h.Hurry(); h.Hurry() },
		func(h *Handle) { h.Notify() },
		func(*Handle) { e.Add(newCountdown(1 << 30)) },
	} {
		h := e.NewHandle()
		e.AddPatient(&finisher{newCountdown(200), h})
		hurry(h)
		assert.Equal(t, int32(1), e.urgent.Load())
		assert.Zero(t, e.idleFor())
		e.StartProgress()
		require.Eventually(t, h.Done, soon, time.Millisecond)
		h.Hurry() // too late to count
		if h.notify.Load() {
			assert.True(t, TakeCompletion(Register(h)))
		}
		if e.Active() == 0 {
			assert.Zero(t, e.urgent.Load())
		}
	}
}

func TestHandles(t *testing.T) {
	e := NewEngine()
	h := e.NewHandle()
	id := Register(h)
	got, err := Lookup(id)
	require.NoError(t, err)
	assert.Same(t, h, got)
	assert.False(t, h.Done())

	_, err = h.Wait(5*time.Millisecond, nil)
	assert.Equal(t, status.NotReady, status.CodeOf(err), "the operation goes on")
	broken := status.New(status.Timeout, "late")
	_, err = h.Wait(-1, func() error { return broken })
	assert.Equal(t, broken, err)
	assert.False(t, h.Done())

	assert.True(t, h.Finish(Result{Source: 1, Tag: 2, Bytes: 3}, broken))
	assert.False(t, h.Finish(Result{Source: 9}, nil), "only the first call counts")
	assert.True(t, h.Done())
	r, err := h.Wait(0, nil)
	assert.Equal(t, Result{Source: 1, Tag: 2, Bytes: 3}, r)
	assert.Equal(t, broken, err)
	r, err = h.Result()
	assert.Equal(t, Result{Source: 1, Tag: 2, Bytes: 3}, r)
	assert.Equal(t, broken, err)

	Release(id)
	Release(id)
	_, err = Lookup(id)
	assert.Equal(t, status.Argument, status.CodeOf(err))
	assert.ErrorContains(t, err, "was released")
	assert.NotEqual(t, id, Register(e.NewHandle()), "a number is never used twice")
	assert.NotEqual(t, id+1, Register(NewEngine().NewHandle()), "not in another engine either")
}

func TestWaitOnAHandleDrives(t *testing.T) {
	e := NewEngine()
	h := e.NewHandle()
	e.Add(&finisher{countdown: newCountdown(20), h: h})
	r, err := h.Wait(-1, nil)
	assert.NoError(t, err)
	assert.Equal(t, int64(7), r.Bytes)
}

// finisher is a task that ends a handle.
type finisher struct {
	*countdown
	h *Handle
}

func (f *finisher) Poll() bool {
	if !f.countdown.Poll() {
		return false
	}
	f.h.Finish(Result{Bytes: 7}, nil)
	return true
}

// Several threads end an operation at once. Exactly one call tells the caller.
func TestManyFinishAtOnce(t *testing.T) {
	e := NewEngine()
	for range 200 {
		h := e.NewHandle()
		var first atomic.Int32
		var wg sync.WaitGroup
		for i := range 4 {
			wg.Add(1)
			go func() {
				defer wg.Done()
				end := func() bool { return h.Finish(Result{Tag: int32(i)}, nil) }
				if i == 0 {
					end = func() bool { return h.GiveUp(status.New(status.Timeout, "late")) }
				}
				if end() {
					first.Add(1)
				}
				r, err := h.Result()
				if err == nil {
					assert.Positive(t, r.Tag)
				}
				assert.True(t, h.Done())
			}()
		}
		wg.Wait()
		assert.Equal(t, int32(1), first.Load())
		assert.True(t, h.Settled())
	}
}

// An operation that was released before MPI was done with its memory is returned once by
// NextReleased.
func TestReleasedMemory(t *testing.T) {
	e := NewEngine()
	over, early, given := e.NewHandle(), e.NewHandle(), e.NewHandle()
	ids := [...]uint64{Register(over), Register(early), Register(given)}
	over.Finish(Result{}, nil)
	assert.True(t, Release(ids[0]))
	assert.True(t, Release(ids[0]), "the memory of an unknown work is free")
	assert.False(t, Release(ids[1]))
	given.GiveUp(status.New(status.Timeout, "late"))
	assert.True(t, given.Done())
	assert.False(t, given.Settled())
	assert.False(t, Release(ids[2]), "the work was given up, and MPI goes on")
	assert.Zero(t, NextReleased())
	given.Finish(Result{}, nil)
	assert.Equal(t, ids[2], NextReleased())
	assert.Zero(t, NextReleased())
	tail := &fakeTail{}
	early.FinishOn(tail, Result{}, nil)
	assert.Zero(t, NextReleased(), "the device goes on")
	tail.ended = true
	assert.Equal(t, ids[1], NextReleased())
	assert.True(t, tail.released)
	assert.Zero(t, NextReleased())
	late := &fakeTail{}
	assert.False(t, early.FinishOn(late, Result{}, nil))
	assert.True(t, late.released, "FinishOn releases the tail of a second call")
}

// fakeTail is work that a device has not finished.
type fakeTail struct{ ended, released bool }

func (f *fakeTail) Order(uint64) error   { return nil }
func (f *fakeTail) Ended() (bool, error) { return f.ended, nil }
func (f *fakeTail) Release()             { f.released = true }

// takeAll collects n completions, in any order.
func takeAll(t *testing.T, n int) map[uint64]int {
	t.Helper()
	got := map[uint64]int{}
	var ended [7]Completion
	for taken := 0; taken < n; {
		k := NextCompletions(ended[:min(len(ended), n-taken)], soon)
		require.NotZero(t, k)
		for _, c := range ended[:k] {
			got[c.ID]++
		}
		taken += k
	}
	return got
}

func TestCompletions(t *testing.T) {
	e := NewEngine()
	defer e.StopProgress()
	assert.Zero(t, NextCompletions(make([]Completion, 1), 0), "nothing is listed")
	start := time.Now()
	assert.Zero(t, NextCompletions(make([]Completion, 1), 20*time.Millisecond))
	assert.GreaterOrEqual(t, time.Since(start), 20*time.Millisecond)
	assert.False(t, readable(CompletionFD(), 0))

	want := map[uint64]int{}
	for i := range 10 {
		h := e.NewHandle()
		want[Register(h)] = 1
		if i%2 == 0 { // Notify before the end
			h.Notify()
			e.Add(&finisher{newCountdown(3), h})
		} else { // Notify after the end
			h.Finish(Result{}, nil)
			h.Notify()
		}
		h.Notify() // a second Notify adds no second completion
	}
	early := e.NewHandle() // an operation may be over before it gets a number
	early.Notify()
	early.Finish(Result{}, nil)
	want[Register(early)] = 1
	silent := e.NewHandle()
	Register(silent)
	silent.Finish(Result{}, nil)

	assert.Equal(t, want, takeAll(t, 11))
	assert.False(t, readable(CompletionFD(), 0), "readable only while there is something to take")
	assert.Zero(t, NextCompletions(make([]Completion, 1), 0))
}

// A completion has the outcome. It releases a work that succeeded and left nothing on a device.
func TestCompletionsCarryTheAnswer(t *testing.T) {
	e := NewEngine()
	defer e.StopProgress()
	var words [4]uint32
	var ids [4]uint64
	var hs [4]*Handle
	for i := range hs {
		hs[i] = e.NewHandle()
		hs[i].Watch(uint64(100+i), &words[i])
		ids[i] = Register(hs[i])
		if i != 3 {
			words[i] = StateNotify
		}
	}
	hs[0].Finish(Result{Source: 2, Bytes: 8}, nil)
	hs[1].GiveUp(status.New(status.Timeout, "late"))
	hs[2].Finish(Result{}, nil)
	hs[3].Finish(Result{}, nil)
	assert.Equal(t, StateOver, words[3], "without Notify it is not listed")
	assert.Equal(t, StateOver|StateNotify, words[0])
	assert.True(t, Release(ids[2]), "released before its end was read: left out")
	var ended [8]Completion
	require.Equal(t, 2, NextCompletions(ended[:], soon))
	assert.Equal(t, Completion{ID: ids[0], Cookie: 100, Released: true, Result: Result{Source: 2, Bytes: 8}}, ended[0])
	assert.Equal(t, Completion{ID: ids[1], Cookie: 101, Code: status.Timeout}, ended[1])
	_, err := Lookup(ids[0])
	assert.Equal(t, status.Argument, status.CodeOf(err))
	_, err = Lookup(ids[1])
	assert.NoError(t, err, "the error is still there")
	assert.False(t, readable(CompletionFD(), 0))
	hs[1].Finish(Result{}, nil)
	assert.True(t, Release(ids[1]) && Release(ids[3]))

	// A caller that learns of the end in another way may release the work before the completion is
	// read.
	other := e.NewHandle()
	word := StateNotify
	other.Watch(7, &word)
	id := Register(other)
	other.Finish(Result{}, nil)
	assert.True(t, other.Forget())
	require.Equal(t, 1, NextCompletions(ended[:], soon))
	assert.Equal(t, Completion{ID: id, Cookie: 7, Released: true}, ended[0])
}

// A completion with StateLate is reported when no goroutine has waited for a while, unless it was
// taken.
func TestLateCompletions(t *testing.T) {
	e := NewEngine()
	e.StartProgress()
	var ended [8]Completion
	late := func() (*Handle, uint64) {
		word := StateNotify | StateLate
		h := e.NewHandle()
		h.Watch(1, &word)
		return h, Register(h)
	}
	for range 20 {
		h, id := late()
		e.AddPatient(&finisher{newCountdown(3), h})
		start := time.Now()
		require.Equal(t, 1, NextCompletions(ended[:], soon))
		assert.Equal(t, id, ended[0].ID)
		assert.GreaterOrEqual(t, time.Since(start), patience/2)
	}

	h, id := late()
	e.AddPatient(&finisher{newCountdown(3), h})
	waited := e.Wait(func() bool { // the waiting goroutine is never away for long enough
		return h.Done() && completed.nLate.Load() == 1 && TakeCompletion(id)
	}, time.Now().Add(soon), nil)
	require.NoError(t, waited)
	assert.False(t, TakeCompletion(id), "it was taken")
	assert.Zero(t, NextCompletions(ended[:], 3*patience))
	assert.False(t, readable(CompletionFD(), 0))

	h, id = late() // reported, but not read
	h.Finish(Result{}, nil)
	require.Eventually(t, func() bool { return readable(CompletionFD(), 0) }, soon, time.Millisecond)
	assert.True(t, TakeCompletion(id))
	assert.False(t, readable(CompletionFD(), 0))
	assert.Zero(t, NextCompletions(ended[:], 0))

	// A thread that stops leaves none behind, and reports none late.
	h, id = late()
	h.Finish(Result{}, nil)
	e.StopProgress()
	h2, id2 := late()
	h2.Finish(Result{}, nil)
	assert.Equal(t, map[uint64]int{id: 1, id2: 1}, takeAll(t, 2))
}

// End, number and Notify come at the same moment: there is one completion.
func TestNotifyRegisterAndFinishAtOnce(t *testing.T) {
	e := NewEngine()
	defer e.StopProgress()
	const n = 500
	for range n {
		h := e.NewHandle()
		var wg sync.WaitGroup
		wg.Add(3)
		go func() { defer wg.Done(); Register(h) }()
		go func() { defer wg.Done(); h.Notify() }()
		go func() { defer wg.Done(); h.Finish(Result{}, nil) }()
		wg.Wait()
	}
	for _, times := range takeAll(t, n) {
		assert.Equal(t, 1, times)
	}
	assert.Zero(t, NextCompletions(make([]Completion, 1), 0))
}

// NextCompletions blocks until there is a completion.
func TestNextCompletionsWakesUp(t *testing.T) {
	e := NewEngine()
	defer e.StopProgress()
	got := make(chan uint64)
	go func() {
		var ended [1]Completion
		assert.Equal(t, 1, NextCompletions(ended[:], -1))
		got <- ended[0].ID
	}()
	time.Sleep(5 * time.Millisecond)
	h := e.NewHandle()
	id := Register(h)
	h.Notify()
	e.Add(&finisher{newCountdown(2), h})
	select {
	case x := <-got:
		assert.Equal(t, id, x)
	case <-time.After(soon):
		assert.Fail(t, "the reader did not wake up")
	}
}

// After MPI was called, the progress thread calls Background also without tasks.
func TestVisitsAfterMPIWasCalled(t *testing.T) {
	e := NewEngine()
	var visits atomic.Int32
	e.Background = func() { visits.Add(1) }
	e.StartProgress()
	defer e.StopProgress()
	time.Sleep(5 * time.Millisecond)
	before := visits.Load()
	time.Sleep(20 * time.Millisecond)
	assert.Equal(t, before, visits.Load(), "the thread sleeps until MPI was called")

	for range 2 { // after a pause, too
		e.CalledMPI()
		seen := visits.Load()
		require.Eventually(t, func() bool { return visits.Load() > seen+2*visitCalls }, soon, time.Millisecond)
		time.Sleep(5 * lastVisit)
	}
	c := newCountdown(2)
	e.AddPatient(c) // ends the rest
	require.Eventually(t, c.over, soon, 100*time.Microsecond)
}

// While callers call MPI themselves, the progress thread leaves them the cores.
func TestNoVisitsBesideCallers(t *testing.T) {
	e := NewEngine()
	var visits atomic.Int32
	e.Background = func() { visits.Add(1) }
	defer e.StopProgress()
	call := func() (seen int32) {
		e.CalledMPI()
		before := visits.Load()
		for began := time.Now(); time.Since(began) < 20*firstVisit; {
			e.CalledMPI()
		}
		return visits.Load() - before
	}
	// A busy machine may take this thread's core away for longer than a visit waits.
	require.Eventually(t, func() bool { return call() == 0 }, soon, time.Millisecond)
	seen := visits.Load()
	require.Eventually(t, func() bool { return visits.Load() > seen+visitCalls }, soon, time.Millisecond, "after the last call")
}

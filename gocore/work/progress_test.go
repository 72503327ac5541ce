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

const soon = 10 * time.Second // a bound that only a fault reaches

func TestTheProgressThreadMovesWhatNobodyWaitsFor(t *testing.T) {
	e := NewEngine()
	e.StopProgress() // not started: nothing to stop
	early := newCountdown(5)
	e.Add(early)
	e.StartProgress()
	e.StartProgress() // once is enough
	require.Eventually(t, early.over, soon, time.Millisecond)
	for range 200 { // it has gone to sleep by then, or is about to
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
	assert.False(t, c.over(), "the task stays, and nobody moves it")
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

// A waiter drives while the progress thread runs as well.
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

func TestHandles(t *testing.T) {
	e := NewEngine()
	h := e.NewHandle()
	id := e.Register(h)
	got, err := e.Lookup(id)
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
	assert.False(t, h.Finish(Result{Source: 9}, nil), "only the first counts")
	assert.True(t, h.Done())
	r, err := h.Wait(0, nil)
	assert.Equal(t, Result{Source: 1, Tag: 2, Bytes: 3}, r)
	assert.Equal(t, broken, err)
	r, err = h.Result()
	assert.Equal(t, Result{Source: 1, Tag: 2, Bytes: 3}, r)
	assert.Equal(t, broken, err)

	e.Release(id)
	e.Release(id)
	_, err = e.Lookup(id)
	assert.Equal(t, status.Argument, status.CodeOf(err))
	assert.ErrorContains(t, err, "was released")
	assert.NotEqual(t, id, e.Register(e.NewHandle()), "a number is never used twice")
	assert.NotEqual(t, id+1, NewEngine().Register(NewEngine().NewHandle()), "not in another engine either")
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

// Several threads end an operation at once: one of them tells its caller.
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

// What was released before MPI was done with its memory is told of once, when it is.
func TestReleasedMemory(t *testing.T) {
	e := NewEngine()
	over, early, given := e.NewHandle(), e.NewHandle(), e.NewHandle()
	ids := [...]uint64{e.Register(over), e.Register(early), e.Register(given)}
	over.Finish(Result{}, nil)
	known, free := e.Release(ids[0])
	assert.True(t, known && free)
	known, free = e.Release(ids[0])
	assert.True(t, !known && free)
	_, free = e.Release(ids[1])
	assert.False(t, free)
	given.GiveUp(status.New(status.Timeout, "late"))
	assert.True(t, given.Done())
	assert.False(t, given.Settled())
	_, free = e.Release(ids[2])
	assert.False(t, free, "its caller was told, MPI goes on")
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
	assert.True(t, late.released, "nobody else would")
}

// fakeTail is work that a device has not ended.
type fakeTail struct{ ended, released bool }

func (f *fakeTail) Order(uint64) error   { return nil }
func (f *fakeTail) Ended() (bool, error) { return f.ended, nil }
func (f *fakeTail) Release()             { f.released = true }

// takeAll collects n completions, in any order.
func takeAll(t *testing.T, n int) map[uint64]int {
	t.Helper()
	got := map[uint64]int{}
	for range n {
		id := NextCompletion(soon)
		require.NotZero(t, id)
		got[id]++
	}
	return got
}

func TestCompletions(t *testing.T) {
	e := NewEngine()
	defer e.StopProgress()
	assert.Zero(t, NextCompletion(0), "nothing is listed")
	start := time.Now()
	assert.Zero(t, NextCompletion(20*time.Millisecond))
	assert.GreaterOrEqual(t, time.Since(start), 20*time.Millisecond)
	assert.False(t, readable(CompletionFD(), 0))

	want := map[uint64]int{}
	for i := range 10 {
		h := e.NewHandle()
		want[e.Register(h)] = 1
		if i%2 == 0 { // asked for before the end
			h.Notify()
			e.Add(&finisher{newCountdown(3), h})
		} else { // and after it
			h.Finish(Result{}, nil)
			h.Notify()
		}
		h.Notify() // listed once all the same
	}
	early := e.NewHandle() // over before it has a number, as an operation is that ends at once
	early.Notify()
	early.Finish(Result{}, nil)
	want[e.Register(early)] = 1
	silent := e.NewHandle()
	e.Register(silent)
	silent.Finish(Result{}, nil)

	assert.Equal(t, want, takeAll(t, 11))
	assert.False(t, readable(CompletionFD(), 0), "readable only while there is something to take")
	assert.Zero(t, NextCompletion(0))
}

// The end, the number and the request to be told come at the same moment: one completion.
func TestNotifyRegisterAndFinishAtOnce(t *testing.T) {
	e := NewEngine()
	defer e.StopProgress()
	const n = 500
	for range n {
		h := e.NewHandle()
		var wg sync.WaitGroup
		wg.Add(3)
		go func() { defer wg.Done(); e.Register(h) }()
		go func() { defer wg.Done(); h.Notify() }()
		go func() { defer wg.Done(); h.Finish(Result{}, nil) }()
		wg.Wait()
	}
	for _, times := range takeAll(t, n) {
		assert.Equal(t, 1, times)
	}
	assert.Zero(t, NextCompletion(0))
}

// The thread that reads completions blocks until there is one.
func TestNextCompletionWakesUp(t *testing.T) {
	e := NewEngine()
	defer e.StopProgress()
	got := make(chan uint64)
	go func() { got <- NextCompletion(-1) }()
	time.Sleep(5 * time.Millisecond)
	h := e.NewHandle()
	id := e.Register(h)
	h.Notify()
	e.Add(&finisher{newCountdown(2), h})
	select {
	case x := <-got:
		assert.Equal(t, id, x)
	case <-time.After(soon):
		assert.Fail(t, "nobody was woken")
	}
}

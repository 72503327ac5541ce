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
	assert.False(t, h.Finish(Result{Source: 9}, nil), "only the first counts")
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
	ids := [...]uint64{Register(over), Register(early), Register(given)}
	over.Finish(Result{}, nil)
	assert.True(t, Release(ids[0]))
	assert.True(t, Release(ids[0]), "of what nobody knows nothing is used")
	assert.False(t, Release(ids[1]))
	given.GiveUp(status.New(status.Timeout, "late"))
	assert.True(t, given.Done())
	assert.False(t, given.Settled())
	assert.False(t, Release(ids[2]), "its caller was told, MPI goes on")
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
	want[Register(early)] = 1
	silent := e.NewHandle()
	Register(silent)
	silent.Finish(Result{}, nil)

	assert.Equal(t, want, takeAll(t, 11))
	assert.False(t, readable(CompletionFD(), 0), "readable only while there is something to take")
	assert.Zero(t, NextCompletions(make([]Completion, 1), 0))
}

// What a completion tells, and that a work of which nothing is left to ask is forgotten with it.
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
	assert.Equal(t, StateOver, words[3], "not asked for: not listed")
	assert.Equal(t, StateOver|StateNotify, words[0])
	assert.True(t, Release(ids[2]), "released before its end was read: left out")
	var ended [8]Completion
	require.Equal(t, 2, NextCompletions(ended[:], soon))
	assert.Equal(t, Completion{ID: ids[0], Cookie: 100, Released: true, Result: Result{Source: 2, Bytes: 8}}, ended[0])
	assert.Equal(t, Completion{ID: ids[1], Cookie: 101, Code: status.Timeout}, ended[1])
	_, err := Lookup(ids[0])
	assert.Equal(t, status.Argument, status.CodeOf(err))
	_, err = Lookup(ids[1])
	assert.NoError(t, err, "its error can be asked for")
	assert.False(t, readable(CompletionFD(), 0))
	hs[1].Finish(Result{}, nil)
	assert.True(t, Release(ids[1]) && Release(ids[3]))

	// Who waits in another way may be told first, and the number is forgotten with that.
	other := e.NewHandle()
	word := StateNotify
	other.Watch(7, &word)
	id := Register(other)
	other.Finish(Result{}, nil)
	assert.True(t, other.Forget())
	require.Equal(t, 1, NextCompletions(ended[:], soon))
	assert.Equal(t, Completion{ID: id, Cookie: 7, Released: true}, ended[0])
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

// The thread that reads completions blocks until there is one.
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
		assert.Fail(t, "nobody was woken")
	}
}

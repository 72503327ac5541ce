package work

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/status"
)

// fakePoller ends the requests of its list that are ripe, and records which requests it was asked
// about.
type fakePoller struct {
	mu    sync.Mutex
	ripe  map[uintptr]bool
	asked [][]uintptr
}

func (p *fakePoller) ripen(slots ...uintptr) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ripe == nil {
		p.ripe = map[uintptr]bool{}
	}
	for _, s := range slots {
		p.ripe[s] = true
	}
}

func (p *fakePoller) Poll(slots []uintptr) (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked = append(p.asked, append([]uintptr(nil), slots...))
	for _, s := range slots {
		if p.ripe[s] {
			n++
		}
	}
	return n
}

func (p *fakePoller) done(slot uintptr) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ripe[slot]
}

// request is a task with one request. It is over when the request is.
type request struct {
	poller *fakePoller
	slot   uintptr
	polls  atomic.Int32
	ended  atomic.Bool
	inside atomic.Int32 // goroutines inside the task's methods: never more than one
	twice  atomic.Bool
}

func (r *request) Requests(b *Batch) Pace { b.Add(r.poller, r.slot); return Seldom }

func (r *request) Poll() bool {
	if r.inside.Add(1) > 1 || r.ended.Load() {
		r.twice.Store(true)
	}
	defer r.inside.Add(-1)
	r.polls.Add(1)
	if r.poller.done(r.slot) {
		r.ended.Store(true)
		return true
	}
	return false
}

// countdown is a task without requests that is over after n polls.
type countdown struct {
	left atomic.Int32
}

func newCountdown(n int32) *countdown {
	c := &countdown{}
	c.left.Store(n)
	return c
}

func (c *countdown) Requests(*Batch) Pace { return Seldom }
func (c *countdown) Poll() bool           { return c.left.Add(-1) <= 0 }
func (c *countdown) over() bool           { return c.left.Load() <= 0 }

func TestATickAsksEveryPollerOnceForAllItsRequests(t *testing.T) {
	e := NewEngine()
	p, q := &fakePoller{}, &fakePoller{}
	var tasks []*request
	for i := range 6 {
		r := &request{poller: []*fakePoller{p, q}[i%2], slot: uintptr(i)}
		tasks = append(tasks, r)
		e.Add(r)
	}
	assert.Equal(t, 6, e.Active())
	assert.False(t, e.Tick(), "nothing moved")
	assert.Equal(t, [][]uintptr{{0, 2, 4}}, p.asked)
	assert.Equal(t, [][]uintptr{{1, 3, 5}}, q.asked)

	p.ripen(2)
	q.ripen(5)
	assert.True(t, e.Tick())
	assert.Equal(t, 4, e.Active())
	assert.False(t, e.Tick())
	assert.Equal(t, []uintptr{0, 4}, p.asked[2], "a request that has ended is not tested again")
	assert.Equal(t, []uintptr{1, 3}, q.asked[2])

	p.ripen(0, 4)
	assert.True(t, e.Tick())
	assert.False(t, e.Tick())
	assert.Len(t, p.asked, 4, "a poller without requests is not called")
	q.ripen(1, 3)
	e.Tick()
	assert.Zero(t, e.Active())
	for _, r := range tasks {
		assert.True(t, r.ended.Load())
		assert.False(t, r.twice.Load())
	}
	assert.False(t, e.Tick(), "nothing to do")
}

func TestATaskWithoutRequestsIsPolledAtEveryTick(t *testing.T) {
	e := NewEngine()
	c := newCountdown(3)
	e.Add(c)
	assert.False(t, e.Tick())
	assert.False(t, e.Tick())
	assert.True(t, e.Tick())
	assert.Zero(t, e.Active())
}

// adder is a task that adds another task when it is over.
type adder struct {
	e    *Engine
	next Task
}

func (a *adder) Requests(*Batch) Pace { return Seldom }
func (a *adder) Poll() bool {
	a.e.Add(a.next)
	return true
}

func TestATaskMayAddTasks(t *testing.T) {
	e := NewEngine()
	last := newCountdown(1)
	e.Add(&adder{e, &adder{e, last}})
	require.NoError(t, e.Wait(last.over, time.Now().Add(5*time.Second), nil))
	assert.Zero(t, e.Active())
}

// Many goroutines add tasks and wait for them. No task is polled by two goroutines at once or after
// its end, and none is forgotten.
// talker is a standing task, in whose first ticks something moves. It counts the ticks.
type talker struct {
	lively       bool
	moves, ticks int
}

func (s *talker) Requests(b *Batch) Pace { b.Add((*network)(s), 1); return Often }
func (s *talker) Lively() bool           { return s.lively }
func (s *talker) Poll() bool             { return false }

// network is the poller of a talker.
type network talker

func (n *network) Poll([]uintptr) int {
	n.ticks++
	if n.ticks > n.moves {
		return 0
	}
	return 1
}

func TestTheLooksAfterANap(t *testing.T) {
	after := func(s *talker, done func() bool) (moved, over bool) {
		e := NewEngine()
		e.AddStanding(s)
		e.serving.Store(s.lively) // as the tick before has found
		over = e.goOn(false, &moved, done)
		return moved, over
	}
	never := func() bool { return false }
	for _, c := range []struct {
		talker
		ticks int
		why   string
	}{
		{talker{lively: true}, looksInVain, "nothing moves"},
		{talker{lively: true, moves: 10}, 10 + looksInVain, "something has moved for a while"},
		{talker{lively: true, moves: 1 << 30}, mostLooks, "the clock is looked at, too"},
		{talker{moves: 10}, 0, "no message is expected"},
	} {
		moved, over := after(&c.talker, never)
		assert.Equal(t, c.ticks, c.talker.ticks, c.why)
		assert.Equal(t, c.ticks > looksInVain, moved, c.why)
		assert.False(t, over, c.why)
	}
	s, asked := &talker{lively: true, moves: 10}, 0
	moved, over := after(s, func() bool { asked++; return s.ticks == 4 })
	assert.True(t, moved && over)
	assert.Equal(t, 4, s.ticks)
	assert.Equal(t, 5, asked)
}

// What a wait is for may be taken by the look that finds it: after it was there it is not asked for again.
func TestAWaitIsNotAskedAgain(t *testing.T) {
	e := NewEngine()
	e.SetCrowded(true) // so that it sleeps soon
	s := &talker{lively: true}
	e.AddStanding(s)
	taken := 0
	require.NoError(t, e.Wait(func() bool {
		if taken > 0 || s.ticks < 2000 {
			return false
		}
		taken++
		return true
	}, time.Now().Add(10*soon), nil))
	require.Equal(t, 1, taken)
}

func TestManyWaiters(t *testing.T) {
	for _, crowded := range []bool{false, true} {
		e := NewEngine()
		e.SetCrowded(crowded)
		p := &fakePoller{}
		var wg sync.WaitGroup
		for w := range 8 {
			wg.Add(1)
			go func() {
				defer wg.Done()
				for i := range 40 {
					r := &request{poller: p, slot: uintptr(1000*w + i)}
					e.Add(r)
					if i%2 == 0 {
						time.AfterFunc(100*time.Microsecond, func() { p.ripen(r.slot) })
					} else {
						p.ripen(r.slot)
					}
					if !assert.NoError(t, e.Wait(r.ended.Load, time.Now().Add(10*time.Second), nil)) {
						return
					}
					assert.False(t, r.twice.Load())
				}
			}()
		}
		wg.Wait()
		assert.Zero(t, e.Active())
	}
}

func TestWaitWithADeadline(t *testing.T) {
	for _, crowded := range []bool{false, true} {
		e := NewEngine()
		e.SetCrowded(crowded)
		assert.NoError(t, e.Wait(func() bool { return true }, time.Now().Add(-time.Hour), nil), "done is tested before the deadline")
		start := time.Now()
		err := e.Wait(func() bool { return false }, start.Add(30*time.Millisecond), nil)
		assert.ErrorIs(t, err, ErrDeadline)
		assert.GreaterOrEqual(t, time.Since(start), 30*time.Millisecond)
		assert.Less(t, time.Since(start), 20*time.Second)

		polls := 0
		c := newCountdown(50)
		e.Add(c)
		require.NoError(t, e.Wait(func() bool { polls++; return c.over() }, time.Time{}, nil))
		assert.Zero(t, e.Active())
	}
}

func TestWaitAsksForInterruptsAtMostEvery50ms(t *testing.T) {
	e := NewEngine()
	signal := errors.New("signal")
	asked := 0
	start := time.Now()
	err := e.Wait(func() bool { return false }, time.Time{}, func() error {
		if asked++; asked == 3 {
			return signal
		}
		return nil
	})
	assert.ErrorIs(t, err, signal)
	assert.Equal(t, 3, asked)
	assert.GreaterOrEqual(t, time.Since(start), 3*InterruptEvery)

	// A wait that ends at once does not call interrupt.
	assert.NoError(t, e.Wait(newCountdown(0).over, time.Time{}, func() error { return signal }))
}

func TestBackgroundRunsAboutOnceAMillisecond(t *testing.T) {
	e := NewEngine()
	var runs atomic.Int32
	e.Background = func() { runs.Add(1) }
	var wg sync.WaitGroup
	start := time.Now()
	for range 4 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			_ = e.Wait(func() bool { return false }, start.Add(50*time.Millisecond), nil)
		}()
	}
	wg.Wait()
	assert.Positive(t, runs.Load())
	assert.LessOrEqual(t, time.Duration(runs.Load()), time.Since(start)/time.Millisecond+1)
}

// While a signal handler of the caller runs, the progress thread drives.
func TestTheProgressThreadDrivesWhileAWaiterIsInterrupted(t *testing.T) {
	e := NewEngine()
	e.StartProgress()
	defer e.StopProgress()
	c := newCountdown(1 << 30)
	e.Add(c)
	c.left.Store(5)
	handled := false
	require.NoError(t, e.Wait(func() bool { return handled }, time.Now().Add(soon), func() error {
		c := newCountdown(5)
		e.Add(c)
		assert.Eventually(t, c.over, soon, time.Millisecond, "the progress thread does not drive")
		handled = true
		return nil
	}))
}

// Hold keeps the progress thread awake, so that it calls Background.
func TestHoldCountsAsActive(t *testing.T) {
	e := NewEngine()
	var runs atomic.Int32
	e.Background = func() { runs.Add(1) }
	e.StartProgress()
	defer e.StopProgress()
	e.Hold()
	assert.Equal(t, 1, e.Active())
	require.Eventually(t, func() bool { return runs.Load() > 3 }, soon, time.Millisecond)
	e.Unhold()
	assert.Zero(t, e.Active())
}

func TestBackoffSpinsThenYieldsThenSleepsLongerAndLonger(t *testing.T) {
	count := func(b Backoff) (before int) {
		for !b.Slept() {
			b.Pause()
			before++
		}
		return before - 1
	}
	spinning := count(Backoff{})
	assert.LessOrEqual(t, spinning, spins+yields)
	assert.Greater(t, spinning, yields)
	assert.InDelta(t, yields, count(Backoff{Crowded: true}), 3, "it does not spin on a crowded node")
	assert.Equal(t, 4, count(Backoff{Lazy: true}))
	assert.LessOrEqual(t, count(Backoff{Lazy: true, Crowded: true}), 4)

	slow := Backoff{}
	for range 2 * lookEvery {
		slow.Pause()
		time.Sleep(spinTime / lookEvery) // a poll that takes long
	}
	assert.Greater(t, slow.n, spins, "it does not spin for long")

	assert.InDelta(t, fewYields, count(Backoff{Crowded: true, Pace: Often}), 1, "where others use the core it sleeps soon")
	nap := Backoff{Pace: Often}
	for range spins + fewYields + 60 {
		before := nap.slept
		nap.Pause()
		assert.LessOrEqual(t, nap.slept-before, longestNap)
	}
	assert.True(t, nap.Slept())
	assert.Greater(t, nap.slept, longestNap)
	nap.Pace = Always
	nap.Pause()
	assert.False(t, nap.Slept(), "it does not sleep while polling moves data")

	b := Backoff{Lazy: true}
	last := time.Duration(0)
	for pauses := 0; last < longestSleep; pauses++ {
		require.Less(t, pauses, 100)
		before := b.slept
		b.Pause()
		assert.GreaterOrEqual(t, b.slept-before, last)
		last = b.slept - before
		assert.LessOrEqual(t, last, max(firstSleep, before/8))
	}
	assert.Equal(t, longestSleep, last)
	b.Reset()
	assert.False(t, b.Slept())
	b.Pause()
	assert.False(t, b.Slept())
}

// Somebody waits for an operation from the first wait on that lasts, or from Hurry on.
func TestAwaited(t *testing.T) {
	e := NewEngine()
	h := e.NewHandle()
	assert.Zero(t, h.Awaited())
	_, err := h.Wait(20*time.Millisecond, nil)
	assert.Equal(t, status.NotReady, status.CodeOf(err))
	since := h.Awaited()
	assert.WithinDuration(t, time.Now(), since, 20*time.Second)
	assert.False(t, since.IsZero())
	_, _ = h.Wait(time.Millisecond, nil)
	assert.Equal(t, since, h.Awaited())

	h = e.NewHandle()
	h.Finish(Result{}, nil)
	_, err = h.Wait(-1, nil)
	assert.NoError(t, err)
	assert.Zero(t, h.Awaited(), "it was over")

	h = e.NewHandle()
	h.Hurry()
	assert.False(t, h.Awaited().IsZero())
}

package work

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/paddlempi/paddlempi/gocore/status"
)

type panicking struct{ request }

func (*panicking) Poll() bool { panic("on purpose") }

func TestAPanicOnTheProgressThreadIsTold(t *testing.T) {
	e := NewEngine(false)
	told := make(chan any, 1)
	e.Panicked = func(p any) { told <- p }
	e.Add(&panicking{request{poller: &fakePoller{}}})
	e.StartProgress()
	select {
	case p := <-told:
		assert.Equal(t, "on purpose", p)
	case <-time.After(5 * time.Second):
		assert.Fail(t, "nobody was told")
	}
	assert.Panics(t, func() { e.Tick() }, "whoever waits gets it too")
}

func TestStopEndsTheWaitsOfOthers(t *testing.T) {
	e := NewEngine(false)
	got := make(chan error)
	go func() { got <- e.Wait(func() bool { return false }, time.Time{}, nil) }()
	time.Sleep(10 * time.Millisecond)
	assert.True(t, e.Stop(func() bool { return true }, 5*time.Second))
	assert.Equal(t, status.PeerLeft, status.CodeOf(<-got))
	assert.False(t, e.Stop(func() bool { return false }, time.Millisecond), "what never settles is not waited for")
}

// stuck is a task whose caller was told of its failure.
type stuck struct{ request }

func (*stuck) Abandoned() bool { return true }

func TestDrainWaitsLittleForWhatWasAbandoned(t *testing.T) {
	e := NewEngine(false)
	e.Add(&stuck{request{poller: &fakePoller{}}})
	began := time.Now()
	assert.Equal(t, 1, e.Drain(20*time.Second))
	assert.Less(t, time.Since(began), 10*time.Second)
}

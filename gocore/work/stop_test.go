package work

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/paddlempi/paddlempi/gocore/status"
)

type panicking struct{ request }

func (*panicking) Poll() bool { panic("on purpose") }

func TestAPanicOnTheProgressThreadIsReported(t *testing.T) {
	e := NewEngine()
	told := make(chan any, 1)
	e.Panicked = func(p any) { told <- p }
	e.Add(&panicking{request{poller: &fakePoller{}}})
	e.StartProgress()
	select {
	case p := <-told:
		assert.Equal(t, "on purpose", p)
	case <-time.After(20 * time.Second):
		assert.Fail(t, "Panicked was not called")
	}
	assert.Panics(t, func() { e.Tick() }, "a goroutine that ticks gets the panic too")
}

func TestStopEndsTheWaitsOfOthers(t *testing.T) {
	e := NewEngine()
	got := make(chan error)
	go func() { got <- e.Wait(func() bool { return false }, time.Time{}, nil) }()
	time.Sleep(10 * time.Millisecond)
	why := status.New(status.PeerLeft, "this rank ends")
	assert.True(t, e.Stop(why, soon))
	assert.Equal(t, error(why), <-got)
	assert.Equal(t, error(why), e.Wait(func() bool { return false }, time.Time{}, nil), "a new wait ends too")
	assert.NoError(t, e.Wait(func() bool { return true }, time.Time{}, nil))
}

// Stop does not wait for ever for a goroutine that is inside its interrupt handler.
func TestStopGivesUpOnAWaiterThatDoesNotReturn(t *testing.T) {
	e := NewEngine()
	inside, leave := make(chan bool), make(chan bool)
	go func() {
		_ = e.Wait(func() bool { return false }, time.Time{}, func() error {
			inside <- true
			<-leave
			return status.New(status.Interrupted, "enough")
		})
	}()
	<-inside
	assert.False(t, e.Stop(status.New(status.PeerLeft, "this rank ends"), 10*time.Millisecond))
	leave <- true
}

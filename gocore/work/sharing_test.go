package work

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// observed is a thread that waits, with a clock of its own.
type observed struct {
	sharing
	clock, onCore int64
}

// polls lets time pass, of which the thread has a core for a part, and looks.
func (o *observed) polls(took, had time.Duration, slept bool) {
	o.clock += int64(took)
	o.onCore += int64(had)
	o.look(o.clock, slept, func() int64 { return o.onCore })
}

func TestAThreadFindsOutThatOthersUseItsCore(t *testing.T) {
	var until atomic.Int64
	o := &observed{sharing: sharing{until: &until}, clock: 1 + monotonic()}
	assert.Equal(t, Seldom, o.pace(Seldom))
	assert.Equal(t, Always, o.pace(Always))
	for range 20 {
		assert.Equal(t, Always, o.pace(Often), "it has its core for itself")
		o.polls(coreLook/2, coreLook/2-coreLook/16, false)
	}
	o.polls(coreLook, 0, true)
	assert.Equal(t, Always, o.pace(Often), "it slept")
	o.polls(4*time.Millisecond, time.Millisecond, false)
	assert.Equal(t, Often, o.pace(Often), "the core was taken away")
	assert.Equal(t, Always, o.pace(Always))
	assert.Equal(t, Often, (&sharing{until: &until}).pace(Often), "the next wait knows it")

	o.polls(coreHold/2, 0, true)
	assert.Equal(t, Often, o.pace(Often), "it sleeps, which tells nothing")
	o.polls(coreHold, 0, true)
	assert.Equal(t, Always, o.pace(Often), "it looks again")
	until.Store(0)
	assert.Equal(t, Always, (&sharing{until: &until}).pace(Often))
	o.polls(coreLook, coreLook, false) // a look begins
	o.polls(coreLook, coreLook, false)
	assert.Equal(t, Always, o.pace(Often))
	o.polls(coreLook, coreLook/2, false)
	assert.Equal(t, Often, o.pace(Often))
}

func TestTheTimeOnACore(t *testing.T) {
	begun := cpuTime()
	sleep(5 * time.Millisecond)
	slept := cpuTime() - begun
	assert.Less(t, slept, int64(5*time.Millisecond))
}

// Who expects an answer at once spins longer than others.
func TestBackoffSpinsLongerForAnAnswer(t *testing.T) {
	after := func(prompt bool, spun time.Duration) int {
		b := Backoff{Prompt: prompt, n: lookEvery - 1, since: monotonic() - int64(spun)}
		b.Pause()
		return b.n
	}
	assert.Equal(t, lookEvery, after(true, -time.Hour), "it goes on spinning")
	assert.Equal(t, lookEvery, after(false, -time.Hour))
	assert.Equal(t, spins, after(true, 2*promptSpin))
	assert.Equal(t, spins, after(false, 2*spinTime))
	b := Backoff{Prompt: true, n: spins - 1, since: monotonic() + int64(time.Hour)}
	for range lookEvery {
		b.Pause()
	}
	assert.Less(t, b.n, spins, "the number of polls does not end it")
}

package work

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// observed is a thread that waits, with a clock of its own.
type observed struct {
	sharing
	clock int64
	used  usage
}

// polls lets time pass, of which the thread has a core for a part, is taken off it some times, and looks.
func (o *observed) polls(took, had time.Duration, taken int64, slept bool) {
	o.clock += int64(took)
	o.used.cpu += int64(had)
	o.used.taken += taken
	o.look(o.clock, slept, func() usage { return o.used })
}

func TestAThreadFindsOutThatOthersUseItsCore(t *testing.T) {
	var known core
	o := &observed{sharing: sharing{of: &known}, clock: 1 + monotonic()}
	assert.Equal(t, Seldom, o.pace(Seldom))
	assert.Equal(t, Always, o.pace(Always))
	for range 20 {
		assert.Equal(t, Always, o.pace(Often), "it has its core for itself")
		o.polls(coreLook/2, coreLook/2-coreLook/16, 1, false)
	}
	o.polls(coreLook, 0, 1, true)
	assert.Equal(t, Always, o.pace(Often), "it slept")
	o.polls(4*time.Millisecond, time.Millisecond, 1, false)
	assert.Equal(t, Often, o.pace(Often), "the core was taken away")
	assert.Equal(t, Always, o.pace(Always))
	assert.Equal(t, Often, (&sharing{of: &known}).pace(Often), "the next wait knows it")

	o.polls(coreHold/2, 0, 1, true)
	assert.Equal(t, Often, o.pace(Often), "it sleeps, which tells nothing")
	o.polls(coreHold, 0, 1, true)
	assert.Equal(t, Always, o.pace(Often), "it looks again")
	known.until.Store(0)
	assert.Equal(t, Always, (&sharing{of: &known}).pace(Often))
	o.polls(coreLook, coreLook, 1, false) // a look begins
	o.polls(coreLook, coreLook, 1, false)
	assert.Equal(t, Always, o.pace(Often))
	o.polls(2*coreLook, coreLook, 1, false)
	assert.Equal(t, Often, o.pace(Often))
}

func TestTheKernelsOwnWorkIsNoOtherThread(t *testing.T) {
	o := &observed{sharing: sharing{of: &core{}}, clock: 1 + monotonic()}
	o.polls(coreLook, coreLook, 0, false)
	o.polls(4*time.Millisecond, time.Millisecond, 0, false)
	assert.Equal(t, Always, o.pace(Often), "nobody took the core")
	o.polls(4*time.Millisecond, time.Millisecond, 100, false)
	assert.Equal(t, Always, o.pace(Often), "who took it gave it back at once")
	o.polls(4*time.Millisecond, time.Millisecond, 2, false)
	assert.Equal(t, Often, o.pace(Often))
}

func TestNapsEndWhereTheyTakeTooLong(t *testing.T) {
	var known core
	lose := func() Pace {
		o := &observed{sharing: sharing{of: &known}, clock: 1 + monotonic()}
		o.polls(coreLook, coreLook, 0, false)
		o.polls(4*time.Millisecond, time.Millisecond, 3, false) // a millisecond each
		return o.pace(Often)
	}
	assert.Equal(t, Often, lose())
	for range 100 {
		known.napped(50 * time.Microsecond)
	}
	assert.Equal(t, Often, (&sharing{of: &known}).pace(Often), "they take less than what they save")
	for range 100 {
		known.napped(time.Millisecond)
	}
	assert.Equal(t, Always, (&sharing{of: &known}).pace(Often), "they take as long as what they save")
	assert.Equal(t, Always, lose())
	again := 1
	for lose() == Always {
		again++
	}
	assert.Less(t, again, 20, "they are tried again")
}

func TestWhatAThreadHasHadOfItsCore(t *testing.T) {
	begun := coreUsage()
	sleep(5 * time.Millisecond)
	slept := coreUsage().cpu - begun.cpu
	assert.Less(t, slept, int64(5*time.Millisecond))
	b := Backoff{Pace: Often, n: spins + fewYields}
	b.Pause()
	assert.True(t, b.napped)
	assert.Positive(t, b.late)
	b.Reset()
	b.Pause()
	assert.False(t, b.napped)
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

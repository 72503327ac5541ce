package world

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/mpi/mpifake"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/transport"
)

// claims is a transport that says whether it takes device memory.
type claims struct {
	transport.Comm
	aware bool
	host  bool // it cannot, whatever a user says
}

func (c claims) HostMemoryOnly() bool { return c.host }

func (c claims) TakesDeviceMemory() (bool, string) { return c.aware, "what it says" }

// A call waits for the trial only if it has no other path. The outcome counts once it is there.
func TestAwarenessIsTriedInTheBackground(t *testing.T) {
	for _, works := range []bool{false, true} {
		goOn, asked := make(chan struct{}), 0
		e := &Aware{base: claims{aware: true}, Trial: func() (bool, string) { asked++; <-goOn; return works, "what was seen" }}
		e.staged = true
		assert.False(t, e.CUDAAware())
		assert.False(t, e.CUDAAware())
		assert.Equal(t, "being tried", e.Awareness(false).How)
		close(goOn)
		assert.Equal(t, Awareness{works, "tried", "what was seen"}, e.Awareness(true))
		assert.Equal(t, works, e.CUDAAware())
		assert.Equal(t, 1, asked)

		e = &Aware{base: claims{aware: true}, Trial: func() (bool, string) { time.Sleep(20 * time.Millisecond); return works, "" }}
		assert.Equal(t, works, e.CUDAAware(), "it waits if staging is not allowed")
	}
}

func TestAwarenessWithoutATrial(t *testing.T) {
	trial := func() (bool, string) { t.Error("tried"); return true, "" }
	e := &Aware{base: claims{aware: false}, Trial: trial}
	assert.Equal(t, Awareness{false, "asked", "what it says"}, e.Awareness(true))
	e = &Aware{base: claims{aware: true}}
	assert.Contains(t, e.Awareness(true).Reason, "no Python to try it with")
	e = &Aware{base: mpifake.World(mpifake.New(1)[0]), Trial: trial}
	assert.Equal(t, "asked", e.Awareness(true).How)
	for value, aware := range map[string]bool{"1": true, "0": false} {
		t.Setenv(envCUDAAware, value)
		e = &Aware{base: claims{host: true}, Trial: trial}
		assert.False(t, e.CUDAAware(), "the transport cannot")
		e = &Aware{base: claims{aware: !aware}, Trial: trial}
		require.Equal(t, "set", e.Awareness(true).How)
		assert.Equal(t, aware, e.CUDAAware())
	}
}

func TestTheUserSaysWhetherMPIIsCUDAAware(t *testing.T) {
	for value, want := range map[string][2]bool{"": {false, false}, "0": {false, true}, "1": {true, true}} {
		t.Setenv(envCUDAAware, value)
		aware, set, err := cudaForced()
		require.NoError(t, err)
		assert.Equal(t, want, [2]bool{aware, set}, "%q", value)
	}
	for _, value := range []string{"yes", "2", " 1"} {
		t.Setenv(envCUDAAware, value)
		_, _, err := cudaForced()
		assert.Equal(t, status.Argument, status.CodeOf(err))
		assert.ErrorContains(t, err, envCUDAAware+"=\""+value+"\"")
	}
}

package window

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/tools/explorer"
)

// lockModel is the lock of a member's memory with its doorbells (lock.go, primitives/doorbells.h), told to an explorer: one member
// wants it alone, another one shared, each sleeps while it has to wait, and writes the memory while it has the lock. A fence is
// a read-modify-write of one location, as in the model of the doorbells.
type lockModel struct {
	// Defects.
	quietEnd      bool // who gives the lock back does not ring
	quietTakeBack bool // who takes back that it reads does not ring
	looksOnce     bool // who wants to read does not look again after it has said so
}

// Atomic locations. asleep and bell have one for each of the two members.
const (
	exclusive = iota
	reading
	asleep
	bell    = asleep + 2
	fenceAt = bell + 2
)

// update is a read-modify-write.
func update(c *explorer.Thread, at int, f func(int) int) (was int) {
	for {
		read, ok := c.Swap(at, was, f(was), explorer.AcqRel, explorer.Relaxed)
		if ok {
			return was
		}
		was = read
	}
}

func fence(c *explorer.Thread) { update(c, fenceAt, func(v int) int { return v + 1 }) }

// ring rings the other member, if that sleeps.
func ring(c *explorer.Thread, me int) {
	fence(c)
	if c.Load(asleep+1-me, explorer.Relaxed) == 1 && update(c, asleep+1-me, func(int) int { return 0 }) == 1 {
		update(c, bell+1-me, func(v int) int { return v + 1 })
	}
}

// await is the wait of a member, which sleeps. It does not leave the set: one ring more is no matter here.
func await(c *explorer.Thread, me int, try func() bool) {
	for {
		seen := c.Load(bell+me, explorer.Acquire)
		update(c, asleep+me, func(int) int { return 1 })
		fence(c)
		if try() {
			return
		}
		if c.Load(bell+me, explorer.Acquire) == seen {
			c.Await(bell+me, explorer.Acquire, func(v int) bool { return v == seen+1 })
		}
	}
}

func (m *lockModel) alone(c *explorer.Thread) {
	await(c, 0, func() bool {
		if was, ok := c.Swap(exclusive, 0, 1, explorer.AcqRel, explorer.Acquire); !ok && was != 1 {
			c.Fail("%d holds it alone", was)
		}
		fence(c)
		return c.Load(reading, explorer.Acquire) == 0
	})
	c.Write(0, 1)
	c.Store(exclusive, 0, explorer.Release)
	if !m.quietEnd {
		ring(c, 0)
	}
}

func (m *lockModel) shared(c *explorer.Thread) {
	await(c, 1, func() bool {
		if c.Load(exclusive, explorer.Acquire) != 0 {
			return false
		}
		c.Store(reading, 1, explorer.Release)
		fence(c)
		if m.looksOnce || c.Load(exclusive, explorer.Acquire) == 0 {
			return true
		}
		c.Store(reading, 0, explorer.Release)
		if !m.quietTakeBack {
			ring(c, 1)
		}
		return false
	})
	c.Write(0, 2)
	c.Store(reading, 0, explorer.Release)
	if !m.quietEnd {
		ring(c, 1)
	}
}

func (m *lockModel) explore() (states int, err error) {
	return explorer.Explore(&explorer.Program{Atomics: fenceAt + 1, Plains: 1, Threads: []func(*explorer.Thread){m.alone, m.shared},
		Check: func(_ [][]int, blocked []int) error {
			if len(blocked) > 0 {
				return fmt.Errorf("member(s) %v sleep for ever", blocked)
			}
			return nil
		}})
}

func TestALockIsTakenByOneAndNoRingIsLost(t *testing.T) {
	states, err := new(lockModel).explore()
	require.NoError(t, err)
	t.Log(states, "states")
	require.Greater(t, states, 100)
}

func TestLocksNeedTheirParts(t *testing.T) {
	for name, c := range map[string]struct {
		m    lockModel
		want string
	}{
		"who gives it back does not ring":          {lockModel{quietEnd: true}, "for ever"},
		"who takes back its reading does not ring": {lockModel{quietTakeBack: true}, "for ever"},
		"who reads does not look again":            {lockModel{looksOnce: true}, "race"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := c.m.explore()
			require.ErrorContains(t, err, c.want)
		})
	}
}

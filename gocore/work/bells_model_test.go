package work

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/tools/explorer"
)

// bellsModel is the protocol of doorbells.h, told to an explorer that knows release and acquire. It goes through all
// executions of a few ranks: the first ones write a word each, and ring; the last ones sleep until all words are written, as
// Engine.doze does. A fence is a read-modify-write of one location: like fences, these have one order, and each sees what was
// written before those that precede it.
type bellsModel struct {
	writers, sleepers int
	dies              bool // the first sleeper may be killed at any moment

	// Defects.
	unfencedRing, unfencedSleep bool
	looksFirst                  bool // who sleeps looks before it enters itself
	noted                       bool // who sleeps notes the bell's number after it has looked
	wakes                       bool // who rings wakes sleepers, and leaves the bell's number
}

// Atomic locations. A set is one bit, because each writer has one of each sleeper here.
func (m *bellsModel) word(w int) int   { return w }
func (m *bellsModel) set(w, s int) int { return m.writers + w*m.sleepers + s }
func (m *bellsModel) bell(s int) int   { return m.writers + m.writers*m.sleepers + s }
func (m *bellsModel) fenceAt() int     { return m.bell(m.sleepers) }

// update is a read-modify-write.
func update(c *explorer.Thread, at int, o explorer.Order, f func(int) int) (was int) {
	for was = c.Load(at, explorer.Relaxed); ; {
		read, ok := c.Swap(at, was, f(was), o, explorer.Relaxed)
		if ok {
			return was
		}
		was = read
	}
}

func (m *bellsModel) fence(c *explorer.Thread) {
	update(c, m.fenceAt(), explorer.AcqRel, func(v int) int { return v + 1 })
}

// write is a rank that writes its word, and pmpi_ring.
func (m *bellsModel) write(w int) func(*explorer.Thread) {
	return func(c *explorer.Thread) {
		c.Store(m.word(w), 1, explorer.Release)
		if !m.unfencedRing {
			m.fence(c)
		}
		for s := range m.sleepers {
			if c.Load(m.set(w, s), explorer.Relaxed) == 0 {
				continue
			}
			if update(c, m.set(w, s), explorer.AcqRel, func(int) int { return 0 }) == 0 {
				continue
			}
			if !m.wakes {
				update(c, m.bell(s), explorer.AcqRel, func(v int) int { return v + 1 })
			}
		}
	}
}

// sleep is a rank that waits for all words.
func (m *bellsModel) sleep(s int) func(*explorer.Thread) {
	return func(c *explorer.Thread) {
		mayDie := m.dies && s == 0
		all := func() bool {
			for w := range m.writers {
				if c.Load(m.word(w), explorer.Acquire) == 0 {
					return false
				}
			}
			return true
		}
		for {
			if mayDie && c.Choose(2) == 1 {
				return
			}
			over, seen := m.looksFirst && all(), 0
			if !m.noted {
				seen = c.Load(m.bell(s), explorer.Acquire)
			}
			for w := range m.writers {
				update(c, m.set(w, s), explorer.AcqRel, func(int) int { return 1 })
			}
			if !m.unfencedSleep {
				m.fence(c)
			}
			if mayDie && c.Choose(2) == 1 {
				return
			}
			if over || !m.looksFirst && all() {
				c.Note(1)
				return
			}
			if m.noted {
				seen = c.Load(m.bell(s), explorer.Acquire)
			}
			c.Await(m.bell(s), explorer.Acquire, func(v int) bool { return v == seen+1 }) // or more: those come after it
			for w := range m.writers {
				update(c, m.set(w, s), explorer.AcqRel, func(int) int { return 0 })
			}
		}
	}
}

func (m *bellsModel) explore() (states int, err error) {
	p := &explorer.Program{Atomics: m.fenceAt() + 1, Check: func(_ [][]int, blocked []int) error {
		if len(blocked) > 0 {
			return fmt.Errorf("rank(s) %v sleep for ever", blocked)
		}
		return nil
	}}
	for w := range m.writers {
		p.Threads = append(p.Threads, m.write(w))
	}
	for s := range m.sleepers {
		p.Threads = append(p.Threads, m.sleep(s))
	}
	return explorer.Explore(p)
}

func TestNoRingIsLost(t *testing.T) {
	for name, m := range map[string]bellsModel{
		"one waits for one":              {writers: 1, sleepers: 1},
		"one waits for two":              {writers: 2, sleepers: 1},
		"two wait for one":               {writers: 1, sleepers: 2},
		"two wait for one, one may die":  {writers: 1, sleepers: 2, dies: true},
		"one that may die waits for two": {writers: 2, sleepers: 1, dies: true},
	} {
		t.Run(name, func(t *testing.T) {
			states, err := m.explore()
			require.NoError(t, err)
			t.Log(states, "states")
			require.Greater(t, states, 20)
		})
	}
}

func TestBellsNeedTheirParts(t *testing.T) {
	for name, m := range map[string]bellsModel{
		"who rings has no fence":                    {unfencedRing: true},
		"who sleeps has no fence":                   {unfencedSleep: true},
		"who sleeps looks before it enters itself":  {looksFirst: true},
		"who sleeps notes the bell after it looked": {noted: true},
		"who rings leaves the bell's number":        {wakes: true},
	} {
		t.Run(name, func(t *testing.T) {
			m.writers, m.sleepers = 1, 1
			_, err := m.explore()
			require.ErrorContains(t, err, "for ever")
		})
	}
}

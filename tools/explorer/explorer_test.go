package explorer

import (
	"fmt"
	"sort"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const x, y = 0, 1

// outcomes explores threads and returns every combination of what they note.
func outcomes(t *testing.T, atomics, plains int, threads ...func(c *Thread)) string {
	t.Helper()
	seen := map[string]bool{}
	_, err := Explore(&Program{Atomics: atomics, Plains: plains, Threads: threads, Check: func(notes [][]int, _ []int) error {
		var words []string
		for _, n := range notes {
			for _, v := range n {
				words = append(words, fmt.Sprint(v))
			}
		}
		seen[strings.Join(words, "")] = true
		return nil
	}})
	require.NoError(t, err)
	var list []string
	for k := range seen {
		list = append(list, k)
	}
	sort.Strings(list)
	return strings.Join(list, " ")
}

// The litmus tests of the literature, with the outcomes that C11 allows.
func TestLitmus(t *testing.T) {
	message := func(write, read Order) string {
		return outcomes(t, 2, 0,
			func(c *Thread) { c.Store(x, 1, Relaxed); c.Store(y, 1, write) },
			func(c *Thread) { c.Note(c.Load(y, read)); c.Note(c.Load(x, Relaxed)) })
	}
	assert.Equal(t, "00 01 11", message(Release, Acquire), "message passing")
	assert.Equal(t, "00 01 10 11", message(Relaxed, Acquire))
	assert.Equal(t, "00 01 10 11", message(Release, Relaxed))

	assert.Equal(t, "00 01 10 11", outcomes(t, 2, 0,
		func(c *Thread) { c.Store(x, 1, Release); c.Note(c.Load(y, Acquire)) },
		func(c *Thread) { c.Store(y, 1, Release); c.Note(c.Load(x, Acquire)) }), "store buffering")

	writer := func(loc int) func(*Thread) { return func(c *Thread) { c.Store(loc, 1, Release) } }
	reader := func(a, b int) func(*Thread) {
		return func(c *Thread) { c.Note(c.Load(a, Acquire)); c.Note(c.Load(b, Acquire)) }
	}
	assert.Contains(t, outcomes(t, 2, 0, writer(x), writer(y), reader(x, y), reader(y, x)), "1010",
		"independent reads of independent writes")

	for _, seen := range strings.Fields(outcomes(t, 1, 0,
		func(c *Thread) { c.Store(x, 1, Relaxed) },
		func(c *Thread) { c.Store(x, 2, Relaxed) },
		func(c *Thread) { c.Note(c.Load(x, Relaxed)); c.Note(c.Load(x, Relaxed)) },
		func(c *Thread) { c.Note(c.Load(x, Relaxed)); c.Note(c.Load(x, Relaxed)) })) {
		assert.NotContains(t, []string{"1221", "2112", "1020", "2010"}, seen, "coherence of reads")
	}

	// 2+2W: the modification order need not agree with the order in which the stores were executed.
	assert.Contains(t, outcomes(t, 2, 0,
		func(c *Thread) { c.Store(x, 1, Release); c.Store(y, 2, Release) },
		func(c *Thread) { c.Store(y, 1, Release); c.Store(x, 2, Release) },
		func(c *Thread) {
			c.Await(x, Relaxed, func(v int) bool { return v == 2 })
			c.Await(x, Relaxed, func(v int) bool { return v == 1 })
			c.Await(y, Relaxed, func(v int) bool { return v == 2 })
			c.Await(y, Relaxed, func(v int) bool { return v == 1 })
			c.Note(7)
		}), "7")
}

func TestReadModifyWrite(t *testing.T) {
	once := func(c *Thread) {
		_, ok := c.Swap(x, 0, 1, Relaxed, Relaxed)
		if ok {
			c.Note(1)
		} else {
			c.Note(0)
		}
	}
	assert.Equal(t, "001 010 100", outcomes(t, 1, 0, once, once, once), "one swap wins")
	// A relaxed swap goes on with the release sequence; a relaxed store ends it.
	chain := func(middle func(*Thread)) string {
		return outcomes(t, 2, 0,
			func(c *Thread) { c.Store(y, 1, Relaxed); c.Store(x, 1, Release) },
			middle,
			func(c *Thread) {
				c.Await(x, Acquire, func(v int) bool { return v == 2 })
				c.Note(c.Load(y, Relaxed))
			})
	}
	assert.Equal(t, "1", chain(func(c *Thread) {
		c.Await(x, Relaxed, func(v int) bool { return v == 1 })
		c.Swap(x, 1, 2, Relaxed, Relaxed)
	}))
	assert.Equal(t, "0 1", chain(func(c *Thread) {
		c.Await(x, Relaxed, func(v int) bool { return v == 1 })
		c.Store(x, 2, Relaxed)
	}))
}

func TestDataRaces(t *testing.T) {
	passing := func(write, read Order) error {
		_, err := Explore(&Program{Atomics: 1, Plains: 1, Threads: []func(*Thread){
			func(c *Thread) { c.Write(0, 5); c.Store(x, 1, write) },
			func(c *Thread) {
				c.Await(x, read, func(v int) bool { return v == 1 })
				if v := c.Read(0); v != 5 {
					c.Fail("read %d", v)
				}
			}}})
		return err
	}
	assert.NoError(t, passing(Release, Acquire))
	assert.ErrorContains(t, passing(Relaxed, Acquire), "data race")
	assert.ErrorContains(t, passing(Release, Relaxed), "data race")

	// A read before a write is a race, too, unless it happens before.
	handing := func(write Order) error {
		_, err := Explore(&Program{Atomics: 1, Plains: 1, Threads: []func(*Thread){
			func(c *Thread) { c.Read(0); c.Store(x, 1, write) },
			func(c *Thread) { c.Await(x, Acquire, func(v int) bool { return v == 1 }); c.Write(0, 5) }}})
		return err
	}
	assert.NoError(t, handing(Release))
	assert.ErrorContains(t, handing(Relaxed), "data race")
}

// The report has the steps to the failure. A thread that gives up, chooses, marks or waits for ever
// is reported to Check.
func TestWaysOfAThread(t *testing.T) {
	var ends []string
	p := &Program{Atomics: 1, Threads: []func(*Thread){
		func(c *Thread) {
			for n := c.Marked(0)[0]; n < 3; n++ {
				c.Mark(n)
				c.Note(10*n + c.Choose(2))
			}
			c.Await(x, Relaxed, func(v int) bool { return v == 9 })
		},
		func(c *Thread) {
			_, ok := c.AwaitOr(x, Relaxed, func(v int) bool { return v == 0 })
			if !ok {
				c.Note(-1)
			}
		}}, Check: func(notes [][]int, blocked []int) error {
		ends = append(ends, fmt.Sprint(notes, blocked))
		return nil
	}}
	_, err := Explore(p)
	require.NoError(t, err)
	assert.Len(t, ends, 16)
	assert.Contains(t, ends, "[[1 10 21] []] [0]")
	assert.Contains(t, ends, "[[1 10 21] [-1]] [0]")
	p.Threads[1] = func(c *Thread) { c.Store(x, 3, Relaxed); c.Fail("as wanted") }
	_, err = Explore(p)
	assert.ErrorContains(t, err, "as wanted\n")
	assert.ErrorContains(t, err, "thread 1: stores 3 in 0")
	p.Most = 3
	p.Threads[1] = func(*Thread) {}
	_, err = Explore(p)
	assert.ErrorContains(t, err, "more than 3 states")
}

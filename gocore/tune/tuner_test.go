package tune

import (
	"fmt"
	"math"
	"math/rand"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/op"
)

// A told time is that of the member that needed least, to 2 %, if it is near the base, and void if it is void on any.
func TestTimesAreTold(t *testing.T) {
	for _, base := range []time.Duration{2 * time.Microsecond, time.Millisecond, 10 * time.Second} {
		for factor := 0.45; factor < 3.3; factor *= 1.01 {
			d := time.Duration(factor * float64(base))
			got, ok := heard(tell(3*d, base)|tell(d, base)|tell(d*11/10, base), base)
			require.True(t, ok)
			assert.InEpsilon(t, float64(d), float64(got), 0.02)
		}
		for _, far := range []time.Duration{1, base / 100, 100 * base, math.MaxInt64} {
			got, ok := heard(tell(far, base), base)
			require.True(t, ok)
			assert.Equal(t, far < base, got < base)
			shorter, longer := offScale(tell(far, base))
			assert.Equal(t, [2]bool{far < base, far > base}, [2]bool{shorter, longer})
		}
	}
	for d := 2 * time.Microsecond; d < 15*time.Minute; d = d * 9 / 8 {
		got, ok := heard(tell(d, 0), 0)
		require.True(t, ok)
		assert.InEpsilon(t, float64(d), float64(got), 0.2)
	}
	for _, word := range []uint64{0, void, tell(time.Second, 0) | void, 1 << 62} {
		_, ok := heard(word, time.Second)
		assert.False(t, ok, "%#x", word)
	}
}

// members are the tuners of a group.
type members []*Tuner

func group(mode Mode, n int) (m members) {
	for range n {
		m = append(m, New(mode, nil))
	}
	return m
}

// call does one call on all members. took says how long the one that came last needs for a way; the others take longer.
func (m members) call(t *testing.T, of Class, ways []string, took func(way int) time.Duration) int {
	word, way := uint64(0), -1
	for i, x := range m {
		word |= x.Word()
		w, _ := x.Propose(of, ways)
		if way >= 0 {
			require.Equal(t, way, w, "member %d takes another way", i)
		}
		way = w
	}
	for i, x := range m {
		x.Heard(word, true)
		d := took(way)
		if d > 0 && i != len(m)/2 {
			d += time.Duration(rand.Int63n(int64(d)))
		}
		x.Done(d)
	}
	return way
}

// A call on which the members do not agree leaves no trace, whoever proposed something.
func TestCallsThatAreNotAgreedOn(t *testing.T) {
	m := group(Once, 3)
	of := ClassOf(op.AllReduce, false, 1<<20)
	for i := range 60 {
		if i%3 == 1 {
			word := uint64(0)
			for k, x := range m {
				word |= x.Word()
				switch (i + k) % 3 {
				case 0:
					x.Propose(of, three)
				case 1:
					x.Propose(ClassOf(op.Broadcast, false, 1<<20), three[:2])
				}
			}
			for _, x := range m {
				x.Heard(word, false)
				x.Done(time.Microsecond)
			}
		}
		m.call(t, of, three, func(way int) time.Duration { return []time.Duration{100, 90, 50}[way] * time.Microsecond })
	}
	assert.Equal(t, 2, m.call(t, of, three, func(int) time.Duration { return 1 }))
	assert.Len(t, m[0].Chosen(), 1)
}

var three = []string{"usual", "other", "third"}

func TestTheBestWayIsTaken(t *testing.T) {
	of := ClassOf(op.AllReduce, false, 1<<20)
	for _, c := range []struct {
		times []time.Duration // us
		best  int
		most  int // calls until it is taken
	}{
		{[]time.Duration{1000, 700, 900}, 1, 12},
		{[]time.Duration{1000, 1100, 500}, 2, 12},
		{[]time.Duration{1000, 970, 990}, 0, 12},   // no more than chance
		{[]time.Duration{1000, 5000, 4000}, 0, 10}, // hopeless ones are hardly tried
		{[]time.Duration{1000, 100, 120}, 1, 20},
	} {
		t.Run(fmt.Sprint(c.times), func(t *testing.T) {
			m := group(Once, 4)
			tried := map[int]int{}
			took := func(way int) time.Duration { return c.times[way] * time.Microsecond }
			for range c.most {
				tried[m.call(t, of, three, took)]++
			}
			for range 300 {
				assert.Equal(t, c.best, m.call(t, of, three, took))
			}
			for way, d := range c.times {
				if d > 2*c.times[0] {
					assert.LessOrEqual(t, tried[way], 2, "way %d is hopeless", way)
				}
			}
			row := m[3].Chosen()[0]
			assert.Equal(t, of, row.Class)
			assert.Equal(t, c.best, row.Best)
			assert.True(t, row.Tuned)
		})
	}
}

// Calls of other classes in between, and a member whose time counts for nothing, change nothing but how long it takes.
func TestTrialsThatCountForNothing(t *testing.T) {
	m := group(Once, 3)
	one, other := ClassOf(op.AllReduce, false, 1<<20), ClassOf(op.ReduceScatter, false, 1<<20)
	k := 0
	took := func(way int) time.Duration {
		if k++; k%5 == 0 {
			return 0
		}
		return []time.Duration{900, 500, 800}[way] * time.Microsecond
	}
	last := 0
	for i := range 80 {
		m.call(t, one, three, took)
		if i%3 == 0 {
			last = m.call(t, other, three[:2], took)
		}
		if i%7 == 0 {
			assert.Zero(t, m.call(t, Class{}, nil, took), "there is nothing to choose")
		}
	}
	assert.Equal(t, 1, m.call(t, one, three, took))
	assert.Equal(t, 1, last)
	void := group(Once, 2)
	for range patience*rounds*len(three) + 1 {
		void.call(t, one, three, func(int) time.Duration { return 0 })
	}
	for range 50 {
		assert.Zero(t, void.call(t, one, three, took), "a class whose times never count takes the usual way")
	}
}

// A first time that is an accident does not spoil the scale of the others, whether it is long or short.
func TestTheFirstTimeIsAnAccident(t *testing.T) {
	for _, first := range []time.Duration{30 * time.Millisecond, 30 * time.Microsecond} {
		m := group(Once, 3)
		calls := 0
		took := func(way int) time.Duration {
			if calls == 1 {
				return first
			}
			return []time.Duration{900, 500, 800}[way] * time.Microsecond
		}
		for calls = range 24 {
			m.call(t, ClassOf(op.AllReduce, false, 1<<20), three, took)
		}
		assert.Equal(t, 1, m.call(t, ClassOf(op.AllReduce, false, 1<<20), three, took), "%v", first)
	}
}

// What is hopeless is not tried in the next longer class, and again in the one after it.
func TestWhatIsHopelessIsNotTriedForLongerCalls(t *testing.T) {
	m := group(Once, 2)
	for length := int64(1 << 16); length <= 1<<20; length *= 2 {
		hopeless := 0
		for range 12 {
			if m.call(t, ClassOf(op.AllReduce, false, length), three, func(way int) time.Duration { return []time.Duration{100, 900, 90}[way] * time.Microsecond }) == 1 {
				hopeless++
			}
		}
		assert.Equal(t, map[int64]int{1 << 16: 1, 1 << 18: 1, 1 << 20: 1}[length], hopeless, "%d", length)
	}
}

// A network that changes is noticed, if the group always measures, and what is hopeless now and then.
func TestAlways(t *testing.T) {
	of := ClassOf(op.AllReduce, false, 1<<20)
	m := group(Always, 2)
	times := []time.Duration{500, 1400, 450}
	took := func(way int) time.Duration { return times[way] * time.Microsecond }
	for range 100 {
		m.call(t, of, three, took)
	}
	assert.Equal(t, 2, m.call(t, of, three, took))
	times = []time.Duration{500, 300, 1000}
	trials := 0
	for range 4 * forgiven {
		if m.call(t, of, three, took) != 1 {
			trials++
		}
	}
	assert.Equal(t, 1, m.call(t, of, three, took))
	assert.Less(t, trials, 2*forgiven)
	off := group(Off, 2)
	for range 50 {
		assert.Zero(t, off.call(t, of, three, took))
	}
	assert.Empty(t, off[0].Chosen())
}

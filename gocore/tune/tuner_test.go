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

// What is told are the shortest and the longest time of all members, to 2.2 % if they are near the base, and void if they are on any.
func TestTimesAreTold(t *testing.T) {
	or := func(times ...time.Duration) func(base time.Duration) (words Words) {
		return func(base time.Duration) (words Words) {
			for _, d := range times {
				words = combined(words, tell(d, base))
			}
			return words
		}
	}
	for _, base := range []time.Duration{2 * time.Microsecond, time.Millisecond, 10 * time.Second} {
		for factor := 0.45; factor < 3.1; factor *= 1.01 {
			d := time.Duration(factor * float64(base))
			shortest, longest, ok := heard(or(d*21/20, d, d*11/10)(base), base)
			require.True(t, ok)
			assert.InEpsilon(t, float64(d), float64(shortest), 0.023)
			assert.InEpsilon(t, 1.1*float64(d), float64(longest), 0.023)
		}
		for _, far := range []time.Duration{1, base / 100, 100 * base, math.MaxInt64} {
			shortest, longest, ok := heard(tell(far, base), base)
			require.True(t, ok)
			assert.Equal(t, shortest, longest)
			assert.Equal(t, far < base, shortest < base)
			shorter, longer := offScale(tell(far, base))
			assert.Equal(t, [2]bool{far < base, far > base}, [2]bool{shorter, longer})
		}
	}
	for d := 2 * time.Microsecond; d < 15*time.Minute; d = d * 9 / 8 {
		shortest, longest, ok := heard(or(d, 2*d)(0), 0)
		require.True(t, ok)
		assert.InEpsilon(t, float64(d), float64(shortest), 0.2)
		assert.InEpsilon(t, 2*float64(d), float64(longest), 0.2)
	}
	told := tell(time.Second, 0)
	for _, words := range []Words{{}, {void}, combined(told, Words{void}), {1 << 62, 1}, {told[0], 1 << 62}, {told[0], 1}, {told[0], 0}} {
		_, _, ok := heard(words, time.Second)
		assert.False(t, ok, "%#x", words)
	}
}

// combined is what the members of an arrival do with the words of each other.
func combined(a, b Words) Words { return Words{a[0] | b[0], a[1] | b[1]} }

// members are the tuners of a group.
type members []*Tuner

func group(mode Mode, n int) (m members) {
	for range n {
		m = append(m, New(mode, nil, 0))
	}
	return m
}

// call does one call on all members. took says how long the one that came last needs for a way; the others take longer.
func (m members) call(t *testing.T, of Class, ways []string, took func(way int) time.Duration) int {
	return m.callOf(t, of, ways, func(way int) []time.Duration {
		times := make([]time.Duration, len(m))
		for i := range times {
			if times[i] = took(way); times[i] > 0 && i != len(m)/2 {
				times[i] += time.Duration(rand.Int63n(int64(times[i])))
			}
		}
		return times
	})
}

// callOf does one call on all members. took says how long each needs for a way.
func (m members) callOf(t *testing.T, of Class, ways []string, took func(way int) []time.Duration) int {
	var words Words
	way := -1
	for i, x := range m {
		words = combined(words, x.Words())
		w, _ := x.Propose(of, ways)
		if way >= 0 {
			require.Equal(t, way, w, "member %d takes another way", i)
		}
		way = w
	}
	times := took(way)
	for i, x := range m {
		x.Heard(words, true)
		x.Done(times[i])
	}
	return way
}

// A call on which the members do not agree leaves no trace, whoever proposed something.
func TestCallsThatAreNotAgreedOn(t *testing.T) {
	m := group(Once, 3)
	of := ClassOf(op.AllReduce, false, 1<<20)
	for i := range 60 {
		if i%3 == 1 {
			var words Words
			for k, x := range m {
				words = combined(words, x.Words())
				switch (i + k) % 3 {
				case 0:
					x.Propose(of, three)
				case 1:
					x.Propose(ClassOf(op.Broadcast, false, 1<<20), three[:2])
				}
			}
			for _, x := range m {
				x.Heard(words, false)
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
		{[]time.Duration{1000, 970, 990}, 0, 30},   // no more than chance
		{[]time.Duration{1000, 5000, 4000}, 0, 10}, // hopeless ones are hardly tried
		{[]time.Duration{1000, 100, 120}, 1, 30},
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

// Times of one way differ from call to call by more than those of two ways: near ones are tried more often, so that chance decides
// seldom.
func TestTimesThatScatter(t *testing.T) {
	right := 0
	for seed := range int64(1000) {
		r := rand.New(rand.NewSource(seed))
		m := group(Once, 2)
		took := func(way int) time.Duration {
			d := []float64{1000, 850, 2500}[way] * math.Exp(0.15*r.NormFloat64())
			return time.Duration(d) * time.Microsecond
		}
		of := ClassOf(op.AllReduce, false, 1<<20)
		for range 30 {
			m.call(t, of, three, func(way int) time.Duration { return took(way) })
		}
		if m.call(t, of, three, took) == 1 {
			right++
		}
	}
	assert.Greater(t, right, 900, "of 1000")
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
	for range patience*finals*len(three) + 1 {
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

// Two members on a network of some latency, on which one way is an exchange, and another one is two: of 1 and of 2 latencies, or the exchange
// takes 3 because its receiver is asked first. Who comes last does not see how long its own message takes in an odd number of them. The
// way that takes least is taken, whoever is last, as long as the members do not come much further apart.
func TestWhatTheLastMemberDoesNotSee(t *testing.T) {
	const latency = time.Millisecond
	for _, legs := range [][2]int{{1, 2}, {3, 2}, {2, 1}, {2, 3}} {
		for apart := time.Duration(0); apart < 2*latency; apart += latency / 5 {
			m := group(Once, 2)
			for _, x := range m {
				x.latency = latency
			}
			behind := apart
			took := func(way int) []time.Duration {
				// The times at which the members begin, and at which they have what has come.
				begun := [2]time.Duration{0, behind}
				at := begun
				for range legs[way] {
					at = [2]time.Duration{max(at[0], at[1]+latency), max(at[1], at[0]+latency)}
				}
				if behind = at[1] - at[0]; apart > latency {
					behind = apart // the program of the other one takes so long
				}
				return []time.Duration{at[0] - begun[0] + 1, at[1] - begun[1] + 1}
			}
			for range 40 {
				m.callOf(t, ClassOf(op.AllReduce, false, 1<<16), three[:2], took)
			}
			best := 0
			if legs[1] < legs[0] {
				best = 1
			}
			assert.Equal(t, best, m.callOf(t, ClassOf(op.AllReduce, false, 1<<16), three[:2], took), "%v apart, %d legs", apart, legs)
		}
	}
}

// What is hopeless is not tried in the next longer class, and again in the one after it.
func TestWhatIsHopelessIsNotTriedForLongerCalls(t *testing.T) {
	m := group(Once, 2)
	tried := map[time.Duration]int{}
	for _, latency := range []time.Duration{20 * time.Microsecond, 200 * time.Microsecond} {
		m := group(Once, 2)
		for _, x := range m {
			x.latency = latency
		}
		for i := range 24 {
			if m.call(t, ClassOf(op.AllReduce, false, 1<<(16+i/12)), three, func(way int) time.Duration { return []time.Duration{100, 900, 90}[way] * time.Microsecond }) == 1 {
				tried[latency]++
			}
		}
	}
	assert.Equal(t, map[time.Duration]int{20 * time.Microsecond: 1, 200 * time.Microsecond: 2}, tried, "it is only late")
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

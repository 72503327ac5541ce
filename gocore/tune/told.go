package tune

import (
	"math"
	"math/bits"
	"time"
)

// Words tell a time, relative to a base that all members know, in steps of 4.4 %. Those of several members are combined by bitwise or. In the
// first word bit i is set if the time is at most that of step i, so its lowest bit is the shortest time of all. In the second word bit i is set
// if the time is at least that of step i, so its highest bit is the longest one. The time that makes the base is told in steps of 41 %, from a
// microsecond on.
type Words = [2]uint64

const (
	void    = 1 << 63 // of the first word: the time of this member, and so that of all, counts for nothing
	steps   = 62
	middle  = 33 // the step of the base: from 0.24 times that to 3.4 times
	perFine = 16 // steps for each doubling
	perBase = 2
)

// tell returns the words for a time. A base of 0 stands for none.
func tell(d, base time.Duration) Words {
	step := middle + perFine*math.Log2(float64(d)/float64(base))
	if base == 0 {
		step = perBase * math.Log2(float64(d)/float64(time.Microsecond))
	}
	at := int(math.Round(max(0, min(step, steps-1))))
	return Words{(1<<steps - 1) &^ (1<<at - 1), 1<<(at+1) - 1}
}

// offScale tells whether the shortest time in words is beyond what the base lets it tell, at one of its ends.
func offScale(words Words) (shorter, longer bool) {
	at := bits.TrailingZeros64(words[0])
	return at == 0, at == steps-1
}

// heard returns the shortest and the longest time that words tell; ok is false if they tell none.
func heard(words Words, base time.Duration) (shortest, longest time.Duration, ok bool) {
	least, most := bits.TrailingZeros64(words[0]), bits.Len64(words[1])-1
	if words[0]&void != 0 || least > most || most >= steps {
		return 0, 0, false
	}
	return ofStep(least, base), ofStep(most, base), true
}

// ofStep returns the time of a step.
func ofStep(at int, base time.Duration) time.Duration {
	if base == 0 {
		return time.Duration(float64(time.Microsecond) * math.Exp2(float64(at)/perBase))
	}
	return time.Duration(float64(base) * math.Exp2(float64(at-middle)/perFine))
}

package tune

import (
	"math"
	"math/bits"
	"time"
)

// A time is told relative to a base that all members know, in steps of 4 %. Bit i of the word is set if the time is at most that of
// step i. So the lowest bit of the or of several words is the shortest time. The time that makes the base is told in steps of 41 %,
// from a microsecond on.
const (
	void    = 1 << 63 // the time of this member, and so that of all, counts for nothing
	steps   = 62
	middle  = 26 // the step of the base: from 0.41 times that to 3.4 times
	perFine = 20 // steps for each doubling
	perBase = 2
)

// tell returns the word for a time. A base of 0 stands for none.
func tell(d, base time.Duration) uint64 {
	step := middle + perFine*math.Log2(float64(d)/float64(base))
	if base == 0 {
		step = perBase * math.Log2(float64(d)/float64(time.Microsecond))
	}
	at := int(math.Round(max(0, min(step, steps-1))))
	return (1<<steps - 1) &^ (1<<at - 1)
}

// offScale tells whether the time in a word is beyond what the base lets it tell, at one of its ends.
func offScale(word uint64) (shorter, longer bool) {
	at := bits.TrailingZeros64(word)
	return at == 0, at == steps-1
}

// heard returns the time that a word tells; ok is false if it tells none.
func heard(word uint64, base time.Duration) (d time.Duration, ok bool) {
	at := bits.TrailingZeros64(word)
	if word&void != 0 || at >= steps {
		return 0, false
	}
	if base == 0 {
		return time.Duration(float64(time.Microsecond) * math.Exp2(float64(at)/perBase)), true
	}
	return time.Duration(float64(base) * math.Exp2(float64(at-middle)/perFine)), true
}

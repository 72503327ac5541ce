package trace

import (
	"math"
	"syscall"
	"time"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/trace/cpu"
)

// Times in a ring are ticks of a clock that is cheap to read: the time stamp counter of the processor,
// if it is invariant, else CLOCK_MONOTONIC in nanoseconds. The header of the ring has one moment in
// ticks and in nanoseconds of CLOCK_MONOTONIC. Whoever reads the ring, on the same host, takes a second
// moment, and knows the rate from both.

const (
	clockCounter   = 1
	clockMonotonic = 2
)

var (
	useCounter = cpu.Invariant()
	// The monotonic clock of Go costs less than a system call, but begins anywhere.
	goClock, goClockAt = time.Now(), monotonic()
)

// now returns the time in ticks.
var now = clock()

func clock() func() uint64 {
	if useCounter {
		return cpu.Counter
	}
	return func() uint64 { return goClockAt + uint64(time.Since(goClock)) }
}

func clockKind() uint64 {
	if useCounter {
		return clockCounter
	}
	return clockMonotonic
}

// monotonic returns CLOCK_MONOTONIC in nanoseconds.
func monotonic() uint64 {
	const clockMonotonicID = 1 // clock_gettime(2)
	var t syscall.Timespec
	_, _, _ = syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, clockMonotonicID, uintptr(unsafe.Pointer(&t)), 0)
	return uint64(t.Nano())
}

// moment is one moment on several clocks.
type moment struct {
	ticks     uint64
	monotonic uint64 // nanoseconds
	unix      int64  // nanoseconds since 1970
}

// readings is how often takeMoment reads the clocks.
const readings = 5

// takeMoment reads all clocks, and takes the fastest of some readings, because the process may lose its
// core between two clocks.
func takeMoment() moment {
	var best moment
	least := uint64(math.MaxUint64)
	for range readings {
		before := now()
		m := moment{monotonic: monotonic(), unix: time.Now().UnixNano()}
		after := now()
		if after-before < least {
			least = after - before
			m.ticks = before + (after-before)/2
			best = m
		}
	}
	return best
}

// timeline turns ticks of a ring into nanoseconds since 1970.
type timeline struct {
	first, last moment
	perTick     float64 // nanoseconds
}

// newTimeline makes the timeline of a ring that was made at first, on this host, with this kind of
// clock. last is a moment of now.
func newTimeline(kind uint64, first, last moment) (timeline, error) {
	l := timeline{first: first, last: last, perTick: 1}
	switch {
	case kind != clockKind():
		return l, status.New(status.Argument, "the ring has clock %d, this process reads clock %d", kind, clockKind())
	case last.ticks <= first.ticks || last.monotonic <= first.monotonic:
		return l, status.New(status.Argument, "the ring was made later than now")
	case kind == clockMonotonic:
		return l, nil
	}
	l.perTick = float64(last.monotonic-first.monotonic) / float64(last.ticks-first.ticks)
	if !(l.perTick > 0.01 && l.perTick < 1000) { // 1 MHz to 100 GHz
		return l, status.New(status.Argument, "the ring's clock has %v ns a tick, which is no clock", l.perTick)
	}
	return l, nil
}

// slack is how far a time may lie outside the life of the ring, in nanoseconds: the clocks of two cores,
// and the readings of two clocks, are not exactly simultaneous.
const slack = 1e6

// at returns the time of ticks. ok is false if that is before the ring was made, or later than now.
func (l *timeline) at(ticks uint64) (unix int64, ok bool) {
	ago := float64(int64(l.last.ticks-ticks)) * l.perTick
	most := float64(l.last.ticks-l.first.ticks) * l.perTick
	if ago < -slack || ago > most+slack {
		return 0, false
	}
	return l.last.unix - int64(min(max(ago, 0), most)), true
}

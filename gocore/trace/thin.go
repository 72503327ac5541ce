package trace

import (
	"fmt"
	"sync/atomic"
	"time"
)

// Ranks that do nothing but short operations carry out so many that to keep all would take time from them, and more room than a file
// should have. Then a Collector keeps what lies within windows of the clock, which are the same on all ranks and hosts, so that what
// it has of one rank fits to what it has of another. A window begins with each thinPeriod of the time since 1970, and is as long as a
// power of 2 of such windows would fill the period: of two hosts with different ones, one has all that the other has.

const (
	// mostPerSecond is how many operations a second of all ranks of this host are kept: 0.1 us and some 10 bytes of the file each.
	mostPerSecond = 100_000
	thinPeriod    = 100 * time.Millisecond
	judgeEvery    = 500 * time.Millisecond
	judgeSoon     = 30 * time.Millisecond
	longestShift  = 10
)

// thinner says which windows there are.
type thinner struct {
	shift  uint // a window is thinPeriod >> shift; 0: all is kept
	judged time.Time
	window int64 // the last window that was read
	most   uint  // the greatest shift so far
}

func (t *thinner) due() bool { return time.Since(t.judged) >= judgeEvery }

// judge chooses the windows, and how many entries the operations of each ring are to use, by what the rings have given away since the last
// call. Entries beyond those that fit into the caches of a core cost an operation more than all else, so they are used by those alone of
// which all is kept.
func (c *Collector) judge() {
	took := time.Since(c.thinner.judged).Seconds()
	all, most := 0.0, 0.0 // operations a second
	for _, r := range c.rings {
		next := atomic.LoadUint64(&r.counts.next)
		rate := float64(next-r.judged) / took
		r.judged = next
		all, most = all+rate, max(most, rate)
		r.width = some
		if rate > some/4/pollMost.Seconds() {
			r.width = room
		}
	}
	c.thinner.choose(all, most, c.most)
	for _, r := range c.rings {
		if c.thinner.shift > 0 {
			r.width = some
		}
		r.widen(now() + c.ticks(leaseTime))
	}
}

// choose chooses the windows for so many operations a second of all rings, and of the fastest one, of which so many can be kept.
func (t *thinner) choose(all, most, kept float64) {
	t.judged = time.Now()
	if t.shift > 0 {
		kept /= 2 // not back and forth
	}
	t.shift = 0
	if all <= kept {
		return
	}
	for t.shift < longestShift && (all > kept || most*thinPeriod.Seconds() > some/2) {
		all, most = all/2, most/2
		t.shift++
	}
	t.most = max(t.most, t.shift)
}

// note says what was left out; "": nothing.
func (t *thinner) note(thinned uint64) string {
	if thinned == 0 {
		return ""
	}
	return fmt.Sprintf("while more than %d operations a second were carried out, only those were kept that lie in the first part of every %v of the clock, at "+
		"the highest rate in the first %v, or were under way at its end; %d operations were counted and not kept", mostPerSecond, thinPeriod, thinPeriod>>t.most, thinned)
}

// pollWindow reads what lies in the last window, once it has ended.
func (c *Collector) pollWindow() (wait time.Duration) {
	at := takeMoment()
	window := at.unix / int64(thinPeriod)
	from := window * int64(thinPeriod)
	to := from + int64(thinPeriod>>c.thinner.shift)
	if at.unix >= to && c.thinner.window != window {
		c.thinner.window = window
		for _, r := range c.rings {
			r.pollBetween(at.ticks-c.ticks(time.Duration(at.unix-from)), at.ticks-c.ticks(time.Duration(at.unix-to)))
			r.polled = 0
		}
	}
	if at.unix >= to {
		to += int64(thinPeriod)
	}
	return time.Duration(to - at.unix)
}

// pollBetween keeps what was submitted and has ended between two times, and passes over everything else.
func (r *recorded) pollBetween(from, to uint64) {
	next, ok := r.next()
	if !ok {
		return
	}
	if j := atomic.LoadUint64(&r.header().joined); j != r.joined {
		r.readGroups()
	}
	still := r.open[:0]
	for _, n := range r.open {
		still = r.take(n, next, still)
	}
	r.open = still
	oldest := r.last
	if next-r.last > room {
		oldest = next - room
	}
	kept, begun := r.kept, len(r.open)
	var e entry
	for n := next; n > oldest; n-- {
		switch r.look(n, next, &e) {
		case underWay, unsure:
			if len(r.open) < room {
				r.open = append(r.open, n)
			}
		case isOver:
			if e.submitted >= from && e.ended <= to {
				r.keep(&e)
			} else if e.submitted < from { // so were those before it
				oldest = n
			}
		}
	}
	r.thinned += next - r.last - (r.kept - kept) - uint64(len(r.open)-begun)
	r.last = next
}

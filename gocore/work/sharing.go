package work

/*
#define _GNU_SOURCE
#include <sys/resource.h>
#include <time.h>

static long pw_cpu_time(long *taken)
{
	struct timespec t;
	struct rusage u;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	getrusage(RUSAGE_THREAD, &u);
	*taken = u.ru_nivcsw;
	return t.tv_sec * 1000000000 + t.tv_nsec;
}
*/
import "C"

import (
	"sync/atomic"
	"time"
)

// sharing finds out whether a thread that waits has its core for itself.
//
// The kernel shares a core among sessions (sched_autogroup) and containers (cgroups) first, and then among the threads
// of each. So sched_yield gives the core only to threads of the same session and container. A thread of another one waits
// until the kernel takes the core away at a tick of its clock, after up to 4 ms. If that is the rank for which this one
// waits, every message takes as long. A thread that sleeps leaves its core to everybody. But where nobody else wants the
// core, a thread that sleeps only sees later what has come.
//
// So a thread that polls compares the time that passes with the time for which it was on a core, and counts how often another
// thread took the core: what the kernel itself does there, as the work of TCP, takes time but no switch. The mean time of a
// switch is what a nap is to save. A nap has its price, which is measured too: a virtual machine may take 300 us to wake up.
type sharing struct {
	of *core

	known, now bool  // whether of.until was read; what it said
	begun      int64 // when a look began
	had        usage // at that time
}

// core is what a process knows of the cores of its waiting threads.
type core struct {
	until atomic.Int64 // until when waits take it that others use their core; see monotonic
	lost  atomic.Int64 // the mean time in ns for which others had it, when that was found out
	late  atomic.Int64 // how much longer than asked naps take, in ns, a moving average
}

// usage is what a thread has had of its core.
type usage struct {
	cpu   int64 // ns
	taken int64 // how often another thread took it
}

const (
	coreLook = 500 * time.Microsecond // how long a thread is looked at
	coreHold = time.Second            // how long the answer holds that others use the core: to look again takes some ticks
	// leastLost is the mean time of a switch below which a core is not shared: who takes it gives it back.
	leastLost = 500 * time.Microsecond
	// napShare is how many times the time of a late nap a switch has to take.
	napShare = 2
	// lateWeight is the weight of what is known of late naps beside one nap.
	lateWeight = 8
)

// pace returns how often a thread looks that would look that often if others used its core.
func (s *sharing) pace(p Pace) Pace {
	if p != Often {
		return p
	}
	if !s.known {
		s.known, s.now = true, s.of.until.Load() > monotonic()
	}
	if s.now {
		return Often
	}
	return Always
}

// look is called now and then by a thread that waits. slept says that it slept since the last time. used returns what
// the thread has had of its core.
func (s *sharing) look(now int64, slept bool, used func() usage) {
	if s.now {
		s.now = now < s.of.until.Load()
		s.begun = 0
		return
	}
	if s.begun == 0 || slept {
		s.begun, s.had = now, used()
		return
	}
	took := now - s.begun
	if took < int64(coreLook) {
		return
	}
	had := s.had
	s.begun, s.had = now, used()
	lost, times := took-(s.had.cpu-had.cpu), s.had.taken-had.taken
	if times == 0 || lost <= took/4 {
		return
	}
	mean := lost / times
	if mean < int64(leastLost) {
		return
	}
	if !s.of.worthNaps(mean) {
		s.of.late.Add(-s.of.late.Load() / lateWeight) // it may have changed since: they are tried again some time
		return
	}
	s.now = true
	s.of.lost.Store(mean)
	s.of.until.Store(now + int64(coreHold))
}

// worthNaps tells whether naps pay where others have the core for so many ns at a time.
func (c *core) worthNaps(lost int64) bool { return lost >= napShare*c.late.Load() }

// napped takes in how much longer than asked a nap took. Where naps turn out to be too long, waits take no more.
func (c *core) napped(late time.Duration) {
	mean := c.late.Load()
	mean += (int64(late) - mean) / lateWeight
	c.late.Store(mean)
	if !c.worthNaps(c.lost.Load()) {
		c.until.Store(0)
	}
}

// coreUsage returns what this thread has had of its core.
func coreUsage() usage {
	var taken C.long
	cpu := C.pw_cpu_time(&taken)
	return usage{int64(cpu), int64(taken)}
}

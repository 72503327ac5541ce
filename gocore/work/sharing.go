package work

/*
#define _GNU_SOURCE
#include <time.h>

static long pw_cpu_time(void)
{
	struct timespec t;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
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
// So a thread that polls compares the time that passes with the time for which it was on a core.
type sharing struct {
	until *atomic.Int64 // until when waits take it that others use their core; see monotonic

	known, now bool  // whether until was read; what it said
	begun, cpu int64 // when a look began, and for how long the thread had been on a core then
}

const (
	coreLook = 500 * time.Microsecond // how long a thread is looked at
	coreHold = time.Second            // how long the answer holds that others use the core: to look again takes some ticks
)

// pace returns how often a thread looks that would look that often if others used its core.
func (s *sharing) pace(p Pace) Pace {
	if p != Often {
		return p
	}
	if !s.known {
		s.known, s.now = true, s.until.Load() > monotonic()
	}
	if s.now {
		return Often
	}
	return Always
}

// look is called now and then by a thread that waits. slept says that it slept since the last time. cpu returns for how
// long the thread has been on a core.
func (s *sharing) look(now int64, slept bool, cpu func() int64) {
	if s.now {
		s.now = now < s.until.Load()
		s.begun = 0
		return
	}
	if s.begun == 0 || slept {
		s.begun, s.cpu = now, cpu()
		return
	}
	took := now - s.begun
	if took < int64(coreLook) {
		return
	}
	had := s.cpu
	s.begun, s.cpu = now, cpu()
	if s.now = took-(s.cpu-had) > took/4; s.now {
		s.until.Store(now + int64(coreHold))
	}
}

// cpuTime returns for how many nanoseconds this thread has been on a core.
func cpuTime() int64 { return int64(C.pw_cpu_time()) }

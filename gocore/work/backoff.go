package work

/*
#define _GNU_SOURCE
#include <errno.h>
#include <linux/futex.h>
#include <poll.h>
#include <stdint.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "../primitives/yield.h"

static void pw_yield(void) { pmpi_yield(); }
static int pw_shared(void) { return pmpi_core.shared; }
static int pw_sleep_due(void) { return pmpi_sleep_due(); }

// pw_rung_yield yields, or pauses where a yield would cost a slice: the wait sleeps soon.
static void pw_rung_yield(void)
{
	if (!pmpi_bells || pmpi_core.kept == 0) {
		pmpi_yield();
		return;
	}
	for (int i = 0; i < 16; i++)
		pmpi_pause();
}

static void pw_slept(void) { pmpi_slept(); }

static void pw_spin_yield(int looks, int every)
{
	if (pmpi_yield_due(looks, every))
		pmpi_yield();
}

static void pw_sleep(long ns)
{
	struct timespec t = {ns / 1000000000, ns % 1000000000};
	nanosleep(&t, 0);
}

static void pw_nap(long ns) { pmpi_nap(ns); }

static void pw_exact_sleeps(void) { prctl(PR_SET_TIMERSLACK, 50000UL, 0, 0, 0); }

static void pw_futex_wait(uint32_t *word, uint32_t seen, long ns)
{
	struct timespec t = {ns / 1000000000, ns % 1000000000};
	syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, ns < 0 ? (void *)0 : &t, (void *)0, 0);
}

static void pw_futex_wake(uint32_t *word)
{
	syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1, (void *)0, (void *)0, 0);
}

static int pw_eventfd(void) { return eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); }

static int pw_readable(int fd, int timeout_ms)
{
	struct pollfd p = {fd, POLLIN, 0};
	return poll(&p, 1, timeout_ms) == 1;
}
#cgo noescape pw_futex_wait
#cgo noescape pw_futex_wake
*/
import "C"

import (
	"time"
	"unsafe"
)

// Backoff is an adaptive wait. It spins first, for some 20 us, then yields the core, then sleeps, longer each time,
// up to a millisecond. So ranks that wait for a late one leave it the cores on which they would
// spin (design D4). A sleep is an eighth of the time slept before: the wait lasts little longer than
// it has to.
type Backoff struct {
	Crowded bool // more ranks than cores: do not spin
	Lazy    bool // no caller waits for the result: sleep soon
	Pace    Pace // of a caller that waits
	Prompt  bool // an answer from another node is expected at once: spin longer

	n     int
	since int64         // when it began to spin; see monotonic
	slept time.Duration // in total
	last  bool          // the last Pause slept
	// napped says that the last Pause was a nap, late how much longer than asked it took.
	napped bool
	late   time.Duration
}

// Pace says how often a thread that waits has to look.
type Pace int32

const (
	Rung   Pace = iota // who does what it waits for rings a bell: it sleeps until then
	Seldom             // what it waits for happens elsewhere: it sleeps, longer each time
	Often              // polling moves data over a network, which holds for a moment what has come: it takes naps
	Always             // polling moves data within the node: it does not sleep
)

const (
	spins        = 400 // polls at the most: the shortest take some 50 ns
	spinTime     = 20 * time.Microsecond
	promptSpin   = 100 * time.Microsecond
	lookEvery    = 8 // spins between two looks at the clock
	yields       = 200
	fewYields    = 4 // before a nap
	firstSleep   = 20 * time.Microsecond
	longestSleep = time.Millisecond
	longestNap   = 100 * time.Microsecond
)

// Sleeps until a bell rings end all the same: deaths, deadlines of others and Ctrl-C ring none. Tests make them longer.
var firstDoze, longestDoze = time.Millisecond, 20 * time.Millisecond

// Reset makes the next Pause short again, after something has moved.
func (b *Backoff) Reset() { b.n, b.slept, b.last = 0, 0, false }

// Slept tells whether the last Pause slept.
func (b *Backoff) Slept() bool { return b.last }

// Pause waits a little, longer each time.
func (b *Backoff) Pause() {
	b.n++
	b.last, b.napped = false, false
	switch {
	case !b.Crowded && !b.Lazy && b.n <= spins:
		b.spin()
	case !b.Lazy && b.yields(), b.n <= 4:
		if b.n < spins && b.Crowded {
			b.n = spins
		}
		if b.Pace == Rung {
			C.pw_rung_yield()
		} else {
			Yield()
		}
	default:
		b.sleep()
	}
}

// sleep sleeps for an eighth of the time slept before.
func (b *Backoff) sleep() {
	d := max(b.slept/8, firstSleep)
	if b.Pace == Often {
		d = min(d, longestNap)
		begun := monotonic()
		C.pw_nap(C.long(d))
		b.napped, b.late = true, time.Duration(monotonic()-begun)-d
	} else {
		d = min(d, longestSleep)
		sleep(d)
	}
	b.slept += d
	b.last = true
}

// ripe tells whether a wait for what rings a bell is to sleep: it has spun, and others want its core, or it has also
// yielded for long.
func (b *Backoff) ripe() bool {
	return b.Pace == Rung && !b.Lazy && b.n >= spins && (b.n >= spins+yields || C.pw_sleep_due() != 0)
}

// doze sleeps by sleep, for an eighth of the time slept before at most, and not beyond the deadline.
func (b *Backoff) doze(deadline time.Time, sleep func(time.Duration)) {
	begun := time.Now()
	d := min(max(b.slept/8, firstDoze), longestDoze)
	if !deadline.IsZero() {
		d = max(0, min(d, deadline.Sub(begun)))
	}
	sleep(d)
	C.pw_slept()
	b.slept += time.Since(begun)
	b.last = true
}

// yields tells whether the next pause yields the core.
func (b *Backoff) yields() bool {
	switch b.Pace {
	case Always:
		return true
	case Often:
		return b.n <= spins+fewYields
	}
	return b.n <= spins+yields
}

// spin ends the spinning when it has taken long enough: a poll that calls MPI takes ten times as long as others.
func (b *Backoff) spin() {
	switch {
	case b.n == 1:
		b.since = monotonic()
	case b.n%lookEvery != 0:
	case b.n == lookEvery && SharesCore():
		b.n = spins
	case b.Prompt && monotonic()-b.since <= int64(promptSpin):
		b.n = lookEvery
	case monotonic()-b.since > int64(spinTime):
		b.n = spins
	}
}

// nap is the shortest sleep, which is exact.
func nap() { C.pw_nap(C.long(firstSleep)) }

// Yield gives the core to another thread that is ready to run, and leaves it if one was: see yield.h.
func Yield() { C.pw_yield() }

// SharesCore tells whether another thread took the core of this one for a moment when it last called Yield.
func SharesCore() bool { return C.pw_shared() != 0 }

// SpinYield yields the core if a thread that spins, and yields every so many looks, is to do so after that many.
func SpinYield(looks, every int64) { C.pw_spin_yield(C.int(looks), C.int(every)) }

// sleep blocks this thread. Unlike time.Sleep it does not need the Go scheduler, nor a wakeup by
// the runtime's timer thread, which is imprecise in this process.
func sleep(d time.Duration) { C.pw_sleep(C.long(d)) }

// ExactSleeps sets the timer slack of this thread to the kernel's default. Threads of the Go
// runtime start with 10 ms (capi/slack.c). A goroutine that waits in MPI must call it on a locked
// thread: MPICH sleeps between its polls when there are more ranks than cores.
func ExactSleeps() { C.pw_exact_sleeps() }

// futexWait sleeps for d (negative: until a wake) if the word is as seen.
func futexWait(word *uint32, seen uint32, d time.Duration) {
	C.pw_futex_wait((*C.uint32_t)(unsafe.Pointer(word)), C.uint32_t(seen), C.long(d))
}

func futexWake(word *uint32) { C.pw_futex_wake((*C.uint32_t)(unsafe.Pointer(word))) }

func newEventfd() int { return int(C.pw_eventfd()) }

func readable(fd int, timeoutMS int) bool { return C.pw_readable(C.int(fd), C.int(timeoutMS)) != 0 }

/* To pause, to yield the core, and to leave it.
 *
 * The kernel may put two ranks onto one core while another core is free, and leave them there for
 * many milliseconds, because both are always ready to run. Then the one that waits keeps the other
 * from what it waits for. So a thread that yielded, and found that another one had taken the core
 * for a moment, as a rank does, yields earlier the next time. One that was taken by a program that
 * computes, for its whole slice of some milliseconds, does not yield in its next spins: the answer
 * may come at once.
 *
 * And a thread whose core was taken sleeps once: a thread that wakes up is put onto a free core. If
 * that did not help, it waits longer until it sleeps again, up to a second: there may be no free
 * core. */
#ifndef PADDLEMPI_PRIMITIVES_YIELD_H
#define PADDLEMPI_PRIMITIVES_YIELD_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <sched.h>
#include <stdint.h>
#include <sys/prctl.h>
#include <time.h>

enum {
	PMPI_YIELD_EARLY = 8,        /* pauses before a thread yields that shares its core */
	PMPI_YIELD_TAKEN = 5000,     /* ns; a yield that nobody takes is shorter */
	PMPI_YIELD_SLICE = 500000,   /* ns; a rank that waits itself gives the core back earlier */
	PMPI_YIELD_KEPT = 256,       /* spins' yields that are left out after one that took longer */
	PMPI_YIELD_NAP = 20000,      /* ns */
	PMPI_YIELD_HOLD = 1000000,   /* ns until a thread sleeps again */
	PMPI_YIELD_MOST = 1000000000 /* ns at most */
};

/* pmpi_core is what this thread knows of its core. */
static _Thread_local struct {
	int shared;         /* another thread took the core for a moment at the last yield */
	int kept;           /* yields of spins to leave out */
	int slept;          /* at the last yield */
	int64_t next, hold; /* when it may sleep again; for how long it has not been allowed to */
} pmpi_core;

/* pmpi_pause is the pause of a spin. */
static inline void pmpi_pause(void) {
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ __volatile__("yield");
#endif
}

/* pmpi_nap sleeps without the slack of timers, which for most threads is longer than the nap. */
static inline void pmpi_nap(int64_t ns) {
	const struct timespec t = {ns / 1000000000, ns % 1000000000};
	const unsigned long slack = (unsigned long)prctl(PR_GET_TIMERSLACK, 0UL, 0, 0, 0);
	prctl(PR_SET_TIMERSLACK, 1000UL, 0, 0, 0);
	nanosleep(&t, 0);
	prctl(PR_SET_TIMERSLACK, slack, 0, 0, 0);
}

static inline int64_t pmpi_yield_clock(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* pmpi_yield gives the core to another thread that is ready to run. */
static inline void pmpi_yield(void) {
	const int64_t begun = pmpi_yield_clock();
	sched_yield();
	const int64_t now = pmpi_yield_clock();
	const int taken = now - begun > PMPI_YIELD_TAKEN, computes = now - begun > PMPI_YIELD_SLICE;
	pmpi_core.shared = taken && !computes;
	if (computes)
		pmpi_core.kept = PMPI_YIELD_KEPT;
	if (pmpi_core.slept) {
		pmpi_core.hold = taken ? pmpi_core.hold * 2 : PMPI_YIELD_HOLD;
		if (pmpi_core.hold > PMPI_YIELD_MOST)
			pmpi_core.hold = PMPI_YIELD_MOST;
		pmpi_core.next = now + pmpi_core.hold;
		pmpi_core.slept = 0;
	} else if (taken && now >= pmpi_core.next) {
		if (pmpi_core.hold == 0)
			pmpi_core.hold = PMPI_YIELD_HOLD;
		pmpi_core.slept = 1;
		pmpi_nap(PMPI_YIELD_NAP);
	}
}

/* pmpi_yield_due tells whether a thread that spins, and yields every so many pauses, is to yield
 * after that many. */
static inline int pmpi_yield_due(int paused, int every) {
	if (paused % PMPI_YIELD_EARLY == 0 && pmpi_core.shared)
		return 1;
	if (paused % every != 0)
		return 0;
	if (pmpi_core.kept == 0)
		return 1;
	pmpi_core.kept--;
	return 0;
}

/* pmpi_linger pauses a thread that spins, for the paused-th time, or yields where that is due;
 * every 0: it never yields. */
static inline void pmpi_linger(int paused, int every) {
	if (every && pmpi_yield_due(paused, every))
		pmpi_yield();
	else
		pmpi_pause();
}

#endif

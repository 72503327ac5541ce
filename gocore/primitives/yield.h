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
 * core. Then the later one of two ranks moves to a CPU without a rank. Where another rank rings
 * when it has done what the thread waits for (doorbells.h), the thread sleeps until then, as soon
 * as it finds another rank on its CPU; else it takes a nap. */
#ifndef PADDLEMPI_PRIMITIVES_YIELD_H
#define PADDLEMPI_PRIMITIVES_YIELD_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <sched.h>
#include <stdint.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#include "doorbells.h"

enum {
	PMPI_YIELD_EARLY = 8,         /* pauses before a thread yields that shares its core */
	PMPI_YIELD_TAKEN = 5000,      /* ns; a yield that nobody takes is shorter */
	PMPI_YIELD_SLICE = 500000,    /* ns; a rank that waits itself gives the core back earlier */
	PMPI_YIELD_KEPT = 256,        /* spins' yields that are left out after one that took longer */
	PMPI_SLEEP_LOOK = 128,        /* pauses between two looks whether to sleep */
	PMPI_YIELD_NAP = 20000,       /* ns */
	PMPI_YIELD_HOLD = 1000000,    /* ns until a thread sleeps again */
	PMPI_YIELD_MOST = 1000000000, /* ns at most */
	PMPI_MOST_CPUS = 8192         /* that a kernel may have */
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

/* pmpi_hold says after a sleep when the next may come: later each time, if the thread still shares
 * its core. */
static inline void pmpi_hold(int64_t now, int shares) {
	pmpi_core.hold = shares && pmpi_core.hold ? pmpi_core.hold * 2 : PMPI_YIELD_HOLD;
	if (pmpi_core.hold > PMPI_YIELD_MOST)
		pmpi_core.hold = PMPI_YIELD_MOST;
	pmpi_core.next = now + pmpi_core.hold;
	pmpi_core.slept = 0;
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
		pmpi_hold(now, taken);
	} else if (taken && now >= pmpi_core.next) {
		pmpi_core.slept = 1;
		pmpi_nap(PMPI_YIELD_NAP);
	}
}

/* pmpi_part moves this thread to a CPU of its own, if it may use one on which no rank was last
 * seen, and tells whether it did. Of two ranks on a CPU the later one moves. The thread is bound
 * for that moment only. */
static inline int pmpi_part(void) {
	enum { WORD = 8 * sizeof(unsigned long) };
	unsigned long mine[PMPI_MOST_CPUS / WORD], others[PMPI_MOST_CPUS / WORD];
	const unsigned cpu = (unsigned)sched_getcpu();
	int later = 0, free = 0;
	const long bytes = syscall(SYS_sched_getaffinity, 0, sizeof mine, mine);
	if (bytes <= 0)
		return 0;
	memcpy(others, mine, (size_t)bytes);
	for (const pmpi_doorbells *b = pmpi_bells_first(); b != NULL; b = pmpi_bells_next(b))
		for (int32_t i = 0; i < b->n; i++) {
			const unsigned there =
				__atomic_load_n(pmpi_bell_cpu(b->at, b->n, i), __ATOMIC_RELAXED) - 1;
			if (there < 8 * (unsigned)bytes)
				others[there / WORD] &= ~(1ul << there % WORD);
			later |= there == cpu && i < b->me;
		}
	for (size_t i = 0; i < (size_t)bytes / sizeof *others; i++)
		free |= others[i] != 0;
	if (!later || !free || syscall(SYS_sched_setaffinity, 0, bytes, others) != 0)
		return 0;
	syscall(SYS_sched_setaffinity, 0, bytes, mine);
	for (const pmpi_doorbells *b = pmpi_bells_first(); b != NULL; b = pmpi_bells_next(b))
		pmpi_bell_tell(b, (uint32_t)sched_getcpu() + 1);
	return 1;
}

/* pmpi_sleep_due tells whether a thread that waits for what rings a bell (doorbells.h) is to sleep:
 * another rank was last seen on its CPU, and the kernel may part the two by that; or programs that
 * compute take their slices of a core that ranks share. */
static inline int pmpi_sleep_due(void) {
	const int kept = pmpi_core.kept > 0;
	if (pmpi_bells_crowded())
		return kept;
	if (!pmpi_bell_shares()) {
		pmpi_core.shared = pmpi_core.slept = 0;
		pmpi_core.hold = pmpi_core.next = 0;
		return 0;
	}
	pmpi_core.shared = 1;
	const int64_t now = pmpi_yield_clock();
	if (pmpi_core.slept && now >= pmpi_core.next) { /* and the kernel has not parted the two */
		pmpi_hold(now, 1);
		if (pmpi_part())
			return 0;
	}
	return kept || now >= pmpi_core.next;
}

/* pmpi_slept notes that this thread has slept until a bell rang. */
static inline void pmpi_slept(void) {
	pmpi_core.slept = 1;
	if (pmpi_core.kept > 0)
		pmpi_core.kept--;
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
 * every 0: it never yields. It returns 1 if the thread had better sleep, and can. */
static inline int pmpi_linger(int paused, int every) {
	if ((paused == PMPI_YIELD_EARLY || paused % PMPI_SLEEP_LOOK == 0) && pmpi_bells &&
		pmpi_sleep_due())
		return 1;
	if (every && pmpi_yield_due(paused, every))
		pmpi_yield();
	else
		pmpi_pause();
	return 0;
}

#endif

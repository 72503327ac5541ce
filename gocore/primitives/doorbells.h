/* Doorbells: how a rank of a node sleeps until another one has done something.
 *
 * Each rank has a block in memory that the ranks of its node share: its bell, a word that grows, on
 * a cache line of its own, and behind it the set of the ranks that sleep until this one does
 * something. Who sleeps notes the number of its bell, enters itself into the sets of all others,
 * looks once more for what it waits for, and sleeps while the bell has that number. Who has written
 * anything into shared memory for which another rank may wait looks into its own set, and rings
 * those that it takes out of there. Between the write and the look, and between the entry and the
 * look, there is a fence: so one of the two sees what the other has written.
 *
 * So a rank that rings while nobody sleeps reads one line, which only sleepers write. There is no
 * count that a rank could leave behind that is killed asleep: its bit costs the others one call
 * each. A set or a bell that is damaged costs sleeps or calls, and nothing else: every sleep has an
 * end.
 *
 * A process has doorbells for each of its worlds, the first one and those that it joined, and rings
 * those of all. A thread may ring while a world ends. So what this process knows of its doorbells
 * is never freed, and their place is never unmapped: other memory is mapped there (world/bells.go).
 * Then the thread finds nobody in that set, or it rings ranks of a later world, which are as many,
 * and for which it has the same number there: they look once more for what they wait for. */
#ifndef PADDLEMPI_PRIMITIVES_DOORBELLS_H
#define PADDLEMPI_PRIMITIVES_DOORBELLS_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <linux/futex.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "words.h"

int sched_getcpu(void); /* of sched.h, for files that were compiled without GNU's names */

enum { PMPI_BELL_LINE = 64, PMPI_BELL_SET = 8 * PMPI_BELL_LINE /* ranks in a line */ };

/* pmpi_doorbells are the doorbells of a world. Only next and crowded change. */
typedef struct pmpi_doorbells {
	char *at;
	int32_t n, me;
	int32_t crowded; /* the node has more ranks than cores */
	struct pmpi_doorbells *next;
} pmpi_doorbells;

/* pmpi_bells has the doorbells that this process rings; NULL: none. There is one list in the
 * process, whatever files include this. */
__attribute__((weak, visibility("hidden"))) pmpi_doorbells *pmpi_bells;

static inline const pmpi_doorbells *pmpi_bells_first(void) {
	return __atomic_load_n(&pmpi_bells, __ATOMIC_ACQUIRE);
}

static inline const pmpi_doorbells *pmpi_bells_next(const pmpi_doorbells *b) {
	return __atomic_load_n(&b->next, __ATOMIC_ACQUIRE);
}

/* pmpi_bells_stride returns the bytes of a rank's block among n ranks. */
static inline size_t pmpi_bells_stride(int32_t n) {
	return (size_t)PMPI_BELL_LINE * (1 + ((size_t)n + PMPI_BELL_SET - 1) / PMPI_BELL_SET);
}

static inline uint32_t *pmpi_bell(char *at, int32_t n, int32_t rank) {
	return (uint32_t *)(at + pmpi_bells_stride(n) * (size_t)rank);
}

static inline uint64_t *pmpi_sleepers(char *at, int32_t n, int32_t rank) {
	return (uint64_t *)(at + pmpi_bells_stride(n) * (size_t)rank + PMPI_BELL_LINE);
}

/* pmpi_bell_ring rings one rank. */
static inline void pmpi_bell_ring(char *at, int32_t n, int32_t rank) {
	uint32_t *bell = pmpi_bell(at, n, rank);
	sw_more32_in_turn(bell);
	syscall(SYS_futex, bell, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

/* pmpi_ring_as rings those that sleep until a rank does something, which it has done. A fence
 * precedes it. */
static inline void pmpi_ring_as(char *at, int32_t n, int32_t me) {
	uint64_t *sleepers = pmpi_sleepers(at, n, me);
	for (int32_t from = 0; from < n; from += 64, sleepers++) {
		if (__builtin_expect(__atomic_load_n(sleepers, __ATOMIC_RELAXED) == 0, 1))
			continue;
		for (uint64_t set = sw_take64(sleepers); set != 0; set &= set - 1)
			if (from + __builtin_ctzll(set) < n)
				pmpi_bell_ring(at, n, from + __builtin_ctzll(set));
	}
}

/* pmpi_bell_cpu returns where a rank tells on which CPU it was when it rang last, plus 1. */
static inline uint32_t *pmpi_bell_cpu(char *at, int32_t n, int32_t rank) {
	return pmpi_bell(at, n, rank) + 1;
}

/* pmpi_bell_tell tells the other ranks of a world on which CPU this thread is. */
static inline void pmpi_bell_tell(const pmpi_doorbells *b, uint32_t cpu) {
	uint32_t *told = pmpi_bell_cpu(b->at, b->n, b->me);
	if (__atomic_load_n(told, __ATOMIC_RELAXED) != cpu)
		__atomic_store_n(told, cpu, __ATOMIC_RELAXED);
}

/* pmpi_ring does that for this process. It is called after every write to shared memory for which
 * another rank may wait. */
static inline void pmpi_ring(void) {
	const pmpi_doorbells *b = pmpi_bells_first();
	if (b == NULL)
		return;
	sw_fence();
	const uint32_t cpu = (uint32_t)sched_getcpu() + 1;
	for (; b != NULL; b = pmpi_bells_next(b)) {
		pmpi_ring_as(b->at, b->n, b->me);
		pmpi_bell_tell(b, cpu);
	}
}

/* pmpi_ring_own wakes the threads of this process that sleep until a bell rings. pmpi_ring does
 * not: a thread calls this after it has written anything for which another one of its process may
 * wait. */
static inline void pmpi_ring_own(void) {
	for (const pmpi_doorbells *b = pmpi_bells_first(); b != NULL; b = pmpi_bells_next(b))
		pmpi_bell_ring(b->at, b->n, b->me);
}

/* pmpi_bells_crowded tells whether a node of this process has more ranks than cores. */
static inline int pmpi_bells_crowded(void) {
	for (const pmpi_doorbells *b = pmpi_bells_first(); b != NULL; b = pmpi_bells_next(b))
		if (__atomic_load_n(&b->crowded, __ATOMIC_RELAXED))
			return 1;
	return 0;
}

/* pmpi_bell_shares tells whether another rank was last seen on the CPU of this thread. */
static inline int pmpi_bell_shares(void) {
	const uint32_t cpu = (uint32_t)sched_getcpu() + 1;
	for (const pmpi_doorbells *b = pmpi_bells_first(); b != NULL; b = pmpi_bells_next(b))
		for (int32_t i = 0; i < b->n; i++)
			if (i != b->me &&
				__atomic_load_n(pmpi_bell_cpu(b->at, b->n, i), __ATOMIC_RELAXED) == cpu)
				return 1;
	return 0;
}

/* pmpi_bell_enter enters a rank into the sets of all others, and returns the number of its bell.
 * The caller then looks once more for what it waits for. */
static inline uint32_t pmpi_bell_enter(char *at, int32_t n, int32_t me) {
	const uint32_t seen = sw_read32(pmpi_bell(at, n, me));
	for (int32_t i = 0; i < n; i++)
		if (i != me)
			sw_enter64(pmpi_sleepers(at, n, i) + me / 64, UINT64_C(1) << me % 64);
	sw_fence();
	return seen;
}

/* pmpi_bell_sleep sleeps until the bell of a rank rings, if that has not happened since it was
 * seen, ns nanoseconds at most. */
static inline void pmpi_bell_sleep(char *at, int32_t n, int32_t me, uint32_t seen, int64_t ns) {
	const struct timespec t = {ns / 1000000000, ns % 1000000000};
	syscall(SYS_futex, pmpi_bell(at, n, me), FUTEX_WAIT, seen, &t, NULL, 0);
}

/* pmpi_bell_leave takes a rank out of the sets that it is still in. */
static inline void pmpi_bell_leave(char *at, int32_t n, int32_t me) {
	const uint64_t bit = UINT64_C(1) << me % 64;
	for (int32_t i = 0; i < n; i++) {
		uint64_t *set = pmpi_sleepers(at, n, i) + me / 64;
		if (i != me && __atomic_load_n(set, __ATOMIC_RELAXED) & bit)
			sw_leave64(set, bit);
	}
}

#endif

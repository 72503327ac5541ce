/* The counters of the blocks, as one operation reads and writes them. For rounds.c and cma.c. */
#ifndef PMPI_BOUNCE_COUNTERS_H
#define PMPI_BOUNCE_COUNTERS_H

#include "rounds.h"

#include "../../primitives/doorbells.h"
#include "../../primitives/words.h"

#include <stddef.h>
#include <string.h>

static inline uint64_t load(const uint64_t *at) {
	return sw_read64(at);
}

static inline void store(const uint64_t *at, uint64_t round) {
	sw_write64((uint64_t *)at, round);
}

/* show writes a counter for which other ranks may wait. */
static inline void show(const pb_counter *counter, uint64_t round) {
	store(&counter->round, round);
	pmpi_ring();
}

static inline int64_t least(int64_t a, int64_t b) {
	return a < b ? a : b;
}

static inline void copy(char *to, const char *from, int64_t n) {
	if (n > 0 && to != from)
		memcpy(to, from, (size_t)n);
}

/* copy_out copies to a result. Of a long one the processor would fetch every line first, only to
 * overwrite it. */
static inline void copy_out(const pb_op *op, char *to, const char *from, int64_t n) {
	if (op->past && to != from)
		pmpi_copy_past(to, from, n);
	else
		copy(to, from, n);
}

/* has tells whether a rank has come to `round` by its counter. No rank can be further than the
 * slots let it, because this one has not finished with the rounds behind `finished`. */
static inline int has(pb_op *op, int rank, const pb_counter *counter, uint64_t round) {
	uint64_t at = load(&counter->round);
	if (at < round)
		return 0;
	if (at > op->before + op->finished + (uint64_t)op->slots) {
		op->damaged = rank + 1;
		return 0;
	}
	return 1;
}

/* counter_of returns a counter of a rank. which is its offset in a block. */
static inline const pb_counter *counter_of(const pb_op *op, int rank, size_t which) {
	return (const pb_counter *)((const char *)op->block[rank] + which);
}

/* all_finished tells whether all others have finished with a round. */
static inline int all_finished(pb_op *op, uint64_t round) {
	uint64_t passed = ~(uint64_t)0;
	if (op->passed >= round)
		return 1;
	for (int i = 0; i < op->n; i++) {
		uint64_t finished;
		if (i == op->me)
			continue;
		finished = load(&op->block[i]->finished.round);
		if (finished < passed)
			passed = finished;
	}
	op->passed = passed;
	return passed >= round;
}

/* slot_is_free tells whether all others have finished with the round that had the slot of `round`.
 */
static inline int slot_is_free(pb_op *op, uint64_t round) {
	return round <= (uint64_t)op->slots || all_finished(op, round - (uint64_t)op->slots);
}

/* lane_of returns the lane that has what others give this rank. */
static inline int lane_of(const pb_op *op) {
	return op->lanes > 1 ? op->me : 0;
}

static inline int is_giver(const pb_op *op, int rank) {
	return rank >= op->first && rank < op->last;
}

/* finish says that this rank has finished with its next rounds. */
static inline void finish(pb_op *op, int rounds) {
	op->finished += (uint64_t)rounds;
	op->taken = 0;
	show(&op->block[op->me]->finished, op->before + op->finished);
}

#endif

#define _GNU_SOURCE
#include "cma.h"
#include "counters.h"

#include "../../primitives/yield.h"

#include <stddef.h>

static int64_t lines(int64_t bytes) {
	return (bytes + 63) & ~(int64_t)63;
}

/* slice_bytes returns how much of `bytes` bytes a rank reduces, but the last ones less. */
static int64_t slice_bytes(int n, int64_t bytes) {
	return lines((bytes + n - 1) / n);
}

int64_t pb_block_bytes(int n, int slots, int64_t window) {
	return pb_slots_at(n) + slots * (window + slice_bytes(n, window));
}

/* window_of returns the slot of a round in a block, and result_of the slot for the slice that its
 * owner has reduced. */
static char *window_of(const pb_op *op, int rank, uint64_t round) {
	return (char *)op->block[rank] + pb_slots_at(op->n) + round % (uint64_t)op->slots * op->window;
}

static char *result_of(const pb_op *op, int rank, uint64_t round) {
	return (char *)op->block[rank] + pb_slots_at(op->n) + op->slots * op->window +
		   round % (uint64_t)op->slots * slice_bytes(op->n, op->window);
}

/* now returns the part of a row that is in round k of this operation, counted from 0. */
static pb_row now(const pb_op *op, const pb_row *row, uint64_t k) {
	int64_t from = (int64_t)k * op->step, left = row->bytes - from;
	if (left <= 0)
		return (pb_row){0, 0};
	return (pb_row){row->at + from, least(left, op->step)};
}

/* slice returns where the slice of a rank begins in a window of `bytes` bytes, and sets *n to its
 * length. */
static int64_t slice(const pb_op *op, int rank, int64_t bytes, int64_t *n) {
	int64_t length = slice_bytes(op->n, bytes), from = least(rank * length, bytes);
	*n = least(length, bytes - from);
	return from;
}

/* publish copies the next window of this rank's rows into its slot. */
static int publish(pb_op *op) {
	uint64_t round = op->before + op->published + 1;
	char *to;
	if (op->published == op->rounds || op->published >= op->finished + (uint64_t)op->ahead ||
		!slot_is_free(op, round))
		return 0;
	to = window_of(op, op->me, round);
	for (int i = 0; i < op->lanes; i++) {
		pb_row row = now(op, &op->give[i], op->published);
		if (op->kind == PB_SLICED) {
			int64_t n, from = slice(op, op->me, row.bytes, &n);
			pmpi_copy_far(&op->far, to, row.at, from);
			pmpi_copy_far(&op->far, to + from + n, row.at + from + n, row.bytes - from - n);
		} else if (op->lanes == 1 || i != op->me) {
			pmpi_copy_far(&op->far, to + i * op->step, row.at, row.bytes);
		}
	}
	op->published++;
	store(&op->block[op->me]->published.round, round);
	return 1;
}

/* sources sets op->src to where the givers have `from` bytes into what they have for this rank in
 * round k. Returns 0 if some giver has not come so far. */
static int sources(pb_op *op, uint64_t k, int lane, int64_t from) {
	uint64_t round = op->before + k + 1;
	for (; op->seen < op->last - op->first; op->seen++) {
		int i = op->first + op->seen;
		if (i != op->me && !has(op, i, &op->block[i]->published, round))
			return 0;
	}
	for (int i = op->first; i < op->last; i++)
		op->src[i - op->first] = i == op->me ? now(op, &op->give[lane], k).at + from
											 : window_of(op, i, round) + lane * op->step + from;
	return 1;
}

/* reduce_slice reduces this rank's slice of a window into its slot, and into its result. */
static int reduce_slice(pb_op *op) {
	uint64_t k = op->reduced;
	pb_row row = now(op, &op->give[0], k);
	int64_t n, from = slice(op, op->me, row.bytes, &n);
	void *to[2];
	if (k >= op->published || !sources(op, k, 0, from))
		return 0;
	to[0] = result_of(op, op->me, op->before + k + 1);
	if (op->gets)
		to[1] = now(op, &op->get[0], k).at + from;
	if (n > 0)
		op->run(&op->fold, to, op->gets ? 2 : 1, op->src, op->last - op->first, n / op->elem);
	op->reduced++;
	op->seen = 0;
	store(&op->block[op->me]->reduced.round, op->before + k + 1);
	return 1;
}

/* fetch copies the slice of another rank. */
static int fetch(pb_op *op) {
	uint64_t k = op->finished, round = op->before + k + 1;
	if (k >= op->reduced)
		return 0;
	if (op->gets && op->taken < op->n - 1) {
		pb_row row = now(op, &op->get[0], k);
		int64_t n, from;
		int i = (op->me + 1 + op->taken) % op->n;
		if (!has(op, i, &op->block[i]->reduced, round))
			return 0;
		from = slice(op, i, row.bytes, &n);
		copy_out(op, row.at + from, result_of(op, i, round), n);
		op->taken++;
	}
	if (!op->gets || op->taken == op->n - 1) {
		op->finished++;
		op->taken = 0;
		store(&op->block[op->me]->finished.round, round);
	}
	return 1;
}

/* take copies what another rank has for this one, beginning with this rank's own part. In that
 * order no tensor is overwritten that is not published yet. */
static int take(pb_op *op) {
	uint64_t k = op->finished, round = op->before + k + 1;
	int lane = lane_of(op);
	if (op->gives && k >= op->published)
		return 0;
	while (op->taken < op->n) {
		int i = (op->me + op->taken) % op->n;
		pb_row to;
		if (is_giver(op, i)) {
			if (i != op->me && !has(op, i, &op->block[i]->published, round))
				return 0;
			to = now(op, &op->get[i], k);
			copy_out(op, to.at,
					 i == op->me ? now(op, &op->give[lane], k).at
								 : window_of(op, i, round) + lane * op->step,
					 to.bytes);
			op->taken++;
			break;
		}
		op->taken++;
	}
	if (op->taken == op->n)
		finish(op);
	return 1;
}

/* reduce reduces a window of what all givers have for this rank. */
static int reduce(pb_op *op) {
	uint64_t k = op->finished;
	pb_row to;
	void *at;
	if ((op->gives && k >= op->published) || !sources(op, k, lane_of(op), 0))
		return 0;
	to = now(op, &op->get[0], k);
	at = to.at;
	if (to.bytes > 0)
		op->run(&op->fold, &at, 1, op->src, op->last - op->first, to.bytes / op->elem);
	finish(op);
	return 1;
}

/* step does one thing, if it can. What others wait for comes first. */
static int step(pb_op *op) {
	if (op->lends)
		return pb_step_cma(op);
	if (op->gives && publish(op))
		return 1;
	if (op->finished == op->rounds)
		return 0;
	switch (op->kind) {
	case PB_SLICED:
		return (op->reduced < op->rounds && reduce_slice(op)) || fetch(op);
	case PB_REDUCE:
		return reduce(op);
	}
	return take(op);
}

static int is_over(pb_op *op) {
	if (op->lends && op->gives && !all_finished(op, op->before + op->rounds))
		return 0;
	return op->finished == op->rounds && (!op->gives || op->published == op->rounds);
}

void pb_begin(pb_op *op) {
	op->published = op->reduced = op->finished = op->passed = 0;
	op->seen = op->taken = op->damaged = op->unreadable = op->gone = 0;
	op->at = 0;
	if (!op->gets && op->kind != PB_SLICED) { /* it looks at no slot */
		op->finished = op->rounds;
		store(&op->block[op->me]->finished.round, op->before + op->rounds);
	}
}

int pb_run(pb_op *op, int most, int spin, int yield_every) {
	int left = most;
	for (int paused = 0;;) {
		if (is_over(op)) {
			store(&op->block[op->me]->ended.round, op->before + op->rounds);
			return PB_DONE;
		}
		if (left <= 0)
			return PB_MOVING;
		if (step(op)) {
			left -= op->lends ? PB_PIECE_STEPS : 1;
			paused = 0;
			continue;
		}
		if (op->damaged)
			return PB_DAMAGED;
		if (op->unreadable)
			return PB_UNREADABLE;
		if (paused++ >= spin)
			return left < most ? PB_MOVING : PB_PENDING;
		pmpi_pause();
		if (yield_every > 0 && pmpi_yield_due(paused, yield_every))
			pmpi_yield();
	}
}

/* behind returns a rank of [first, last) whose counter is behind `round`, -1 if there is none.
 * which is the offset of the counter in a block. */
static int behind(const pb_op *op, int first, int last, size_t which, uint64_t round) {
	for (int i = first; i < last; i++) {
		const pb_counter *counter = (const pb_counter *)((const char *)op->block[i] + which);
		if (i != op->me && load(&counter->round) < round)
			return i;
	}
	return -1;
}

/* awaited is pb_awaited for the ranks from `from` on, before `to`. */
static int awaited(const pb_op *op, int from, int to) {
	uint64_t round = op->before + op->finished + 1;
	int who = -1;
	if (op->finished < op->rounds) {
		if (op->kind != PB_SLICED || op->reduced <= op->finished)
			who = behind(op, from > op->first ? from : op->first, to < op->last ? to : op->last,
						 offsetof(pb_head, published), round);
		else if (op->gets)
			who = behind(op, from, to, offsetof(pb_head, reduced), round);
	}
	round = op->before + op->published + 1;
	if (who < 0 && op->gives && op->published < op->rounds && round > (uint64_t)op->slots)
		who = behind(op, from, to, offsetof(pb_head, finished), round - (uint64_t)op->slots);
	if (who < 0 && op->lends && op->gives && op->published == op->rounds)
		who = behind(op, from, to, offsetof(pb_head, finished), op->before + op->rounds);
	return who;
}

int pb_awaited(const pb_op *op) {
	return op->gone ? op->gone - 1 : awaited(op, 0, op->n);
}

int pb_awaits(const pb_op *op, int i) {
	return op->gone == i + 1 || awaited(op, i, i + 1) == i;
}

int pb_has_ended(const pb_head *block, uint64_t round) {
	return load(&block->ended.round) >= round;
}

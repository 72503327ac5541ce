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

/* A batch is what the threads of a rank do at once: some rounds from k on. In each there are some
 * units of at most `bytes` bytes, which are cut into pieces of whole lines. */
typedef struct batch batch;
struct batch {
	pb_op *op;
	void (*piece)(const batch *b, int worker, uint64_t k, int unit, int64_t from, int64_t to);
	uint64_t k;
	int rounds, units;
	int64_t bytes;
	int turn; /* the unit that comes first */
	int cuts; /* of a unit */
	int next; /* piece that no thread has claimed */
};

enum { PIECE = 32 << 10 /* bytes that are worth a claim */ };

static void share(void *of, int worker) {
	batch *b = of;
	const int total = b->rounds * b->units * b->cuts;
	for (int i; (i = __atomic_fetch_add(&b->next, 1, __ATOMIC_RELAXED)) < total;) {
		const int cut = i % b->cuts, unit = i / b->cuts % b->units;
		const int64_t all = (b->bytes + 63) / 64;
		b->piece(b, worker, b->k + (uint64_t)(i / b->cuts / b->units), unit,
				 all * cut / b->cuts * 64, least(all * (cut + 1) / b->cuts * 64, b->bytes));
	}
}

/* carry_out does a batch. weight is how many bytes a thread reads for one of a unit. Returns the
 * number of steps. */
static int carry_out(batch b, int weight, int more) {
	pb_op *op = b.op;
	const int64_t pieces = op->threads > 1 ? b.bytes * weight / PIECE : 1;
	b.cuts = pieces > 1 ? (int)pieces : 1;
	const int total = b.rounds * b.units * b.cuts;
	if (op->threads > 1 && total > 1 && b.rounds * b.units * b.bytes * weight >= 2 * PIECE)
		op->spread(share, &b, least(op->threads, total), more);
	else
		share(&b, 0);
	return b.rounds;
}

/* batch_from returns how many rounds from k on this rank does at once, but not round `to`. Threads
 * wait for each other after each batch, so it has two rounds for each; and others go on with the
 * other half of the slots. */
static int batch_from(const pb_op *op, uint64_t k, uint64_t to) {
	const int64_t most = op->threads > 1 ? least(2 * op->threads, op->slots / 2) : 1;
	return k < to ? (int)least(most, (int64_t)(to - k)) : 0;
}

/* copy_window copies a part of the window of round k into its slot. */
static void copy_window(const batch *b, int worker, uint64_t k, int unit, int64_t from,
						int64_t to) {
	const pb_op *op = b->op;
	char *slot = window_of(op, op->me, op->before + k + 1);
	(void)unit;
	for (int64_t i = op->step ? from / op->step : 0; i < op->lanes && i * op->step < to; i++) {
		const pb_row row = now(op, &op->give[i], k);
		const int64_t at = i * op->step, low = from > at ? from - at : 0,
					  high = least(to - at, row.bytes);
		if (op->kind == PB_SLICED) { /* all but its own slice */
			int64_t n, own = slice(op, op->me, row.bytes, &n);
			pmpi_copy_far(&op->far[worker], slot + low, row.at + low, least(high, own) - low);
			const int64_t behind = low > own + n ? low : own + n;
			pmpi_copy_far(&op->far[worker], slot + behind, row.at + behind, high - behind);
		} else if (op->lanes == 1 || i != op->me) {
			pmpi_copy_far(&op->far[worker], slot + at + low, row.at + low, high - low);
		}
	}
}

/* publish copies the next windows of this rank's rows into their slots. */
static int publish(pb_op *op) {
	const uint64_t k = op->published;
	int m = 0;
	const uint64_t to = op->finished + (uint64_t)op->ahead;
	int most = batch_from(op, k, to < op->rounds ? to : op->rounds);
	while (m < most && slot_is_free(op, op->before + k + (uint64_t)m + 1))
		m++;
	if (m == 0)
		return 0;
	carry_out((batch){op, copy_window, k, m, 1, op->lanes * op->step}, 1,
			  op->finished < op->rounds || k + (uint64_t)m < op->rounds);
	op->published += (uint64_t)m;
	show(&op->block[op->me]->published, op->before + op->published);
	return m;
}

/* all_at returns how many rounds from k on, `rounds` at most, the ranks of [first, last) have come
 * to by a counter. which is its offset in a block. */
static int all_at(pb_op *op, int first, int last, size_t which, uint64_t k, int rounds) {
	const uint64_t before = op->before + k;
	for (int i = first; i < last; i++) {
		const pb_counter *counter = counter_of(op, i, which);
		if (i == op->me)
			continue;
		if (!has(op, i, counter, before + 1))
			return 0;
		const uint64_t ahead = load(&counter->round) - before; /* may be damaged by now */
		if (ahead < (uint64_t)rounds)
			rounds = ahead > 0 ? (int)ahead : 1;
	}
	return rounds;
}

/* have_come returns how many rounds from k on, `rounds` at most, the givers have published. */
static int have_come(pb_op *op, uint64_t k, int rounds) {
	for (; op->seen < op->last - op->first; op->seen++) {
		int i = op->first + op->seen;
		if (i != op->me && !has(op, i, &op->block[i]->published, op->before + k + 1))
			return 0;
	}
	return rounds < 2 ? rounds
					  : all_at(op, op->first, op->last, offsetof(pb_head, published), k, rounds);
}

/* sources returns where the givers have `from` bytes into what they have for this rank in round k.
 */
static const void **sources(const pb_op *op, int worker, uint64_t k, int lane, int64_t from) {
	const void **src = op->src + (int64_t)worker * op->n;
	for (int i = op->first; i < op->last; i++)
		src[i - op->first] = i == op->me
								 ? now(op, &op->give[lane], k).at + from
								 : window_of(op, i, op->before + k + 1) + lane * op->step + from;
	return src;
}

/* reduce_slice_part reduces a part of this rank's slice. */
static void reduce_slice_part(const batch *b, int worker, uint64_t k, int unit, int64_t from,
							  int64_t to) {
	const pb_op *op = b->op;
	int64_t n, at = slice(op, op->me, now(op, &op->give[0], k).bytes, &n) + from;
	void *dst[2] = {result_of(op, op->me, op->before + k + 1) + from};
	(void)unit;
	if (least(to, n) <= from)
		return;
	if (op->gets)
		dst[1] = now(op, &op->get[0], k).at + at;
	op->run(&op->fold, dst, op->gets ? 2 : 1, sources(op, worker, k, 0, at), op->last - op->first,
			(least(to, n) - from) / op->elem);
}

/* reduce_slice reduces this rank's slices of the next windows into their slots, and into its
 * result. */
static int reduce_slice(pb_op *op) {
	const uint64_t k = op->reduced;
	int m = batch_from(op, k, op->published);
	if (m == 0 || (m = have_come(op, k, m)) == 0)
		return 0;
	carry_out((batch){op, reduce_slice_part, k, m, 1, slice_bytes(op->n, op->step)},
			  op->last - op->first, 1);
	op->reduced += (uint64_t)m;
	op->seen = 0;
	show(&op->block[op->me]->reduced, op->before + op->reduced);
	return m;
}

/* fetch_part copies a part of a slice of another rank. Units are the ranks behind this one. */
static void fetch_part(const batch *b, int worker, uint64_t k, int unit, int64_t from, int64_t to) {
	const pb_op *op = b->op;
	const int i = (op->me + 1 + unit) % op->n;
	const pb_row row = now(op, &op->get[0], k);
	int64_t n, at = slice(op, i, row.bytes, &n);
	(void)worker;
	copy_out(op, row.at + at + from, result_of(op, i, op->before + k + 1) + from,
			 least(to, n) - from);
}

/* fetch copies the slices of other ranks: of one, or of all where several threads do that. */
static int fetch(pb_op *op) {
	const uint64_t k = op->finished, round = op->before + k + 1;
	const int64_t bytes = slice_bytes(op->n, op->step);
	int m = batch_from(op, k, op->reduced);
	if (m == 0)
		return 0;
	if (!op->gets || op->n == 1) {
		finish(op, 1);
		return 1;
	}
	if (op->threads > 1 && op->taken == 0 &&
		(m = all_at(op, 0, op->n, offsetof(pb_head, reduced), k, m)) > 0) {
		carry_out((batch){op, fetch_part, k, m, op->n - 1, bytes}, 1, k + (uint64_t)m < op->rounds);
		finish(op, m);
		return m;
	}
	const int i = (op->me + 1 + op->taken) % op->n;
	if (!has(op, i, &op->block[i]->reduced, round))
		return 0;
	fetch_part(&(batch){.op = op}, 0, k, op->taken, 0, bytes);
	if (++op->taken == op->n - 1)
		finish(op, 1);
	return 1;
}

/* take_part copies a part of what a giver has for this rank. */
static void take_part(const batch *b, int worker, uint64_t k, int unit, int64_t from, int64_t to) {
	const pb_op *op = b->op;
	const int i = op->first + (b->turn + unit) % (op->last - op->first), lane = lane_of(op);
	const pb_row row = now(op, &op->get[i], k);
	(void)worker;
	if (least(to, row.bytes) <= from)
		return;
	copy_out(op, row.at + from,
			 from + (i == op->me ? now(op, &op->give[lane], k).at
								 : window_of(op, i, op->before + k + 1) + lane * op->step),
			 least(to, row.bytes) - from);
}

/* take copies what another rank has for this one, beginning with this rank's own part; or all that
 * all have, on several threads. No tensor is overwritten that is not published yet. */
static int take(pb_op *op) {
	const uint64_t k = op->finished;
	const int givers = op->last - op->first;
	int m = batch_from(op, k, op->gives ? op->published : op->rounds);
	if (m == 0)
		return 0;
	if (op->threads > 1 && op->taken == 0 &&
		(m = all_at(op, op->first, op->last, offsetof(pb_head, published), k, m)) > 0) {
		carry_out((batch){op, take_part, k, m, givers, op->step, op->me}, 1,
				  k + (uint64_t)m < op->rounds);
		finish(op, m);
		return m * givers;
	}
	for (; op->taken < op->n; op->taken++) {
		const int i = (op->me + op->taken) % op->n;
		if (!is_giver(op, i))
			continue;
		if (i != op->me && !has(op, i, &op->block[i]->published, op->before + k + 1))
			return 0;
		take_part(&(batch){.op = op}, 0, k, i - op->first, 0, op->step);
		op->taken++;
		break;
	}
	if (op->taken == op->n)
		finish(op, 1);
	return 1;
}

/* reduce_part reduces a part of a window. */
static void reduce_part(const batch *b, int worker, uint64_t k, int unit, int64_t from,
						int64_t to) {
	const pb_op *op = b->op;
	const pb_row row = now(op, &op->get[0], k);
	void *at = row.at + from;
	(void)unit;
	if (least(to, row.bytes) > from)
		op->run(&op->fold, &at, 1, sources(op, worker, k, lane_of(op), from), op->last - op->first,
				(least(to, row.bytes) - from) / op->elem);
}

/* reduce reduces the next windows of what all givers have for this rank. */
static int reduce(pb_op *op) {
	const uint64_t k = op->finished;
	int m = batch_from(op, k, op->gives ? op->published : op->rounds);
	if (m == 0 || (m = have_come(op, k, m)) == 0)
		return 0;
	carry_out((batch){op, reduce_part, k, m, 1, op->step}, op->last - op->first,
			  k + (uint64_t)m < op->rounds);
	op->seen = 0;
	finish(op, m);
	return m;
}

/* step does something, if it can, and returns how many steps that were. What others wait for comes
 * first. */
static int step(pb_op *op) {
	int did;
	if (op->lends)
		return pb_step_cma(op);
	if (op->gives && (did = publish(op)) > 0)
		return did;
	if (op->finished == op->rounds)
		return 0;
	switch (op->kind) {
	case PB_SLICED:
		did = op->reduced < op->rounds ? reduce_slice(op) : 0;
		return did ? did : fetch(op);
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
		show(&op->block[op->me]->finished, op->before + op->rounds);
	}
}

int pb_run(pb_op *op, int most, int spin, int yield_every) {
	int left = most;
	for (int paused = 0;;) {
		if (is_over(op)) {
			show(&op->block[op->me]->ended, op->before + op->rounds);
			return PB_DONE;
		}
		if (left <= 0)
			return PB_MOVING;
		const int did = step(op);
		if (did > 0) {
			left -= did;
			paused = 0;
			continue;
		}
		if (op->damaged)
			return PB_DAMAGED;
		if (op->unreadable)
			return PB_UNREADABLE;
		if (paused++ >= spin)
			return left < most ? PB_MOVING : PB_PENDING;
		if (pmpi_linger(paused, yield_every))
			spin = 0;
	}
}

/* behind returns a rank of [first, last) whose counter is behind `round`, -1 if there is none. */
static int behind(const pb_op *op, int first, int last, size_t which, uint64_t round) {
	for (int i = first; i < last; i++) {
		if (i != op->me && load(&counter_of(op, i, which)->round) < round)
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

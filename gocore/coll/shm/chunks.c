#define _GNU_SOURCE
#include "chunks.h"

#include <sched.h>
#include <stddef.h>

/* A word: sequence number (44 bits), owner (16), state (4). At 2 us each, 2^44 collectives take
 * more than a year. */
enum { CLAIMED = 1, DONE = 2, CLOSED = 3, LEFT = 4 };

static inline uint64_t word(uint64_t seq, int owner, int state) {
	return seq << 20 | (uint64_t)owner << 4 | (uint64_t)state;
}

static inline uint64_t seq_of(uint64_t w) {
	return w >> 20;
}

static inline int owner_of(uint64_t w) {
	return (int)(w >> 4 & 0xffff);
}

static inline int state_of(uint64_t w) {
	return (int)(w & 0xf);
}

static inline void pause_core(void) {
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ __volatile__("yield");
#endif
}

static int chunks(const sm_op *op) {
	return op->pieces * op->cuts;
}

/* take sets the word of a chunk that nobody has claimed for op. Returns 1 if this call did. */
static int take(sm_op *op, int chunk, int state) {
	uint64_t old = __atomic_load_n(&op->words[chunk], __ATOMIC_ACQUIRE);
	return seq_of(old) < op->seq &&
		   __atomic_compare_exchange_n(&op->words[chunk], &old, word(op->seq, op->me, state), 0,
									   __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
}

/* work does one chunk: the elements [from, from + m) of a piece. */
static void work(sm_op *op, int chunk) {
	const int piece = chunk / op->cuts, cut = chunk % op->cuts, n = op->n;
	/* Boundaries are multiples of a cache line where the piece is, so that two ranks do not write
	 * to one line. */
	const int64_t line = op->elem < 64 ? 64 / op->elem : 1;
	const int64_t lines = (op->count + line - 1) / line;
	const int64_t from = lines * cut / op->cuts * line;
	int64_t to = lines * (cut + 1) / op->cuts * line;
	if (to > op->count)
		to = op->count;
	const int64_t m = to - from;
	if (m <= 0)
		return;
	const int64_t at = from * op->elem, share = op->count * op->elem, shift = piece * share;
#define IN(r, offset)  ((const char *)op->in[r] + (offset) + at)
#define OUT(r, offset) ((char *)op->out[r] + (offset) + at)
	int nsrc = 1, ndst = 1;
	switch (op->kind) {
	case SM_ALL_REDUCE:
	case SM_REDUCE:
	case SM_REDUCE_SCATTER:
		for (nsrc = 0; nsrc < n; nsrc++)
			op->src[nsrc] = IN(nsrc, op->kind == SM_REDUCE_SCATTER ? shift : 0);
		if (op->kind == SM_ALL_REDUCE)
			for (ndst = 0; ndst < n; ndst++)
				op->dst[ndst] = OUT(ndst, 0);
		else
			op->dst[0] = OUT(op->kind == SM_REDUCE ? op->root : piece, 0);
		break;
	case SM_BROADCAST:
		op->src[0] = IN(op->root, 0);
		ndst = 0;
		for (int r = 0; r < n; r++)
			if (r != op->root)
				op->dst[ndst++] = OUT(r, 0);
		break;
	case SM_ALL_GATHER:
		op->src[0] = IN(piece, 0);
		for (ndst = 0; ndst < n; ndst++)
			op->dst[ndst] = OUT(ndst, shift);
		break;
	case SM_GATHER:
		op->src[0] = IN(piece, 0);
		op->dst[0] = OUT(op->root, shift);
		break;
	case SM_SCATTER:
		op->src[0] = IN(op->root, shift);
		op->dst[0] = OUT(piece, 0);
		break;
	case SM_ALL_TO_ALL:
		for (int r = 0; r < n; r++) {
			op->src[0] = IN(r, shift);
			op->dst[0] = OUT(piece, r * share);
			op->run(&op->fold, op->dst, 1, op->src, 1, m);
		}
		return;
	}
	op->run(&op->fold, op->dst, ndst, op->src, nsrc, m);
}

int sm_work(sm_op *op, int most) {
	const int total = chunks(op), first = (int)((int64_t)op->me * total / op->n);
	int did = 0;
	if (op->blind)
		return 0;
	for (int i = 0; i < total && did < most; i++) {
		const int chunk = first + i < total ? first + i : first + i - total;
		if (take(op, chunk, CLAIMED)) {
			work(op, chunk);
			uint64_t mine = word(op->seq, op->me, CLAIMED), done = word(op->seq, op->me, DONE);
			if (!__atomic_compare_exchange_n(&op->words[chunk], &mine, done, 0, __ATOMIC_RELEASE,
											 __ATOMIC_RELAXED)) /* a rank has left */
				__atomic_store_n(&op->words[chunk], word(op->seq, op->me, CLOSED),
								 __ATOMIC_RELEASE);
			did++;
		}
	}
	return did;
}

void sm_blind(sm_op *op) {
	uint64_t old = __atomic_load_n(op->blind_ranks, __ATOMIC_ACQUIRE), new;
	do
		new = seq_of(old) == op->seq ? old + 1 : word(op->seq, 0, 1);
	while (!__atomic_compare_exchange_n(op->blind_ranks, &old, new, 0, __ATOMIC_ACQ_REL,
										__ATOMIC_ACQUIRE));
	op->blind = 1;
}

static int all_blind(const sm_op *op) {
	uint64_t w = __atomic_load_n(op->blind_ranks, __ATOMIC_ACQUIRE);
	return seq_of(w) == op->seq && (int)(w & 0xfffff) == op->n;
}

int sm_state(sm_op *op, int spin, int yield_every) {
	const int total = chunks(op);
	int paused = 0;
	if (op->blind && all_blind(op))
		return SM_BLIND;
	while (op->next < total) {
		uint64_t w = __atomic_load_n(&op->words[op->next], __ATOMIC_ACQUIRE);
		if (seq_of(w) == op->seq) {
			if (state_of(w) == DONE) {
				op->next++;
				continue;
			}
			if (state_of(w) == CLOSED || state_of(w) == LEFT)
				return sm_close(op);
		}
		if (spin-- <= 0)
			return SM_PENDING;
		if (yield_every && ++paused % yield_every == 0)
			sched_yield();
		else
			pause_core();
	}
	return SM_DONE;
}

int sm_close(sm_op *op) {
	const int total = chunks(op);
	int closed = 0, working = 0;
	for (int i = 0; i < total; i++) {
		take(op, i, CLOSED);
		uint64_t w = __atomic_load_n(&op->words[i], __ATOMIC_ACQUIRE);
		closed |= state_of(w) == CLOSED || state_of(w) == LEFT;
		working |= state_of(w) == CLAIMED || state_of(w) == LEFT;
	}
	if (closed)
		return working ? SM_CLOSING : SM_CLOSED;
	return working ? SM_PENDING : SM_DONE;
}

int sm_leave(sm_op *op) {
	for (int i = 0; i < chunks(op); i++) {
		take(op, i, CLOSED);
		uint64_t w = __atomic_load_n(&op->words[i], __ATOMIC_ACQUIRE);
		if (state_of(w) == CLAIMED)
			__atomic_compare_exchange_n(&op->words[i], &w, word(op->seq, owner_of(w), LEFT), 0,
										__ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
	}
	return sm_close(op);
}

int sm_worker(const sm_op *op) {
	for (int i = 0; i < chunks(op); i++) {
		uint64_t w = __atomic_load_n(&op->words[i], __ATOMIC_ACQUIRE);
		if (seq_of(w) == op->seq && (state_of(w) == CLAIMED || state_of(w) == LEFT))
			return owner_of(w);
	}
	return -1;
}

int sm_closer(const sm_op *op, int *from) {
	for (int i = *from + 1; i < chunks(op); i++) {
		uint64_t w = __atomic_load_n(&op->words[i], __ATOMIC_ACQUIRE);
		if (seq_of(w) == op->seq && state_of(w) == CLOSED) {
			*from = i;
			return owner_of(w);
		}
	}
	return -1;
}

int sm_bury(sm_op *op, int rank) {
	int found = 0;
	for (int i = 0; i < chunks(op); i++)
		for (int state = CLAIMED; state <= LEFT; state += LEFT - CLAIMED) {
			uint64_t its = word(op->seq, rank, state);
			found += __atomic_compare_exchange_n(&op->words[i], &its, word(op->seq, rank, CLOSED),
												 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
		}
	return found;
}

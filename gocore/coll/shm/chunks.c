#define _GNU_SOURCE
#include "chunks.h"

#include "../../primitives/doorbells.h"
#include "../../primitives/kill.h"
#include "../../primitives/words.h"
#include "../../primitives/yield.h"

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

/* is_possible tells whether some rank writes such a word, while this rank is at op and works on no
 * chunk. */
static inline int is_possible(const sm_op *op, uint64_t w) {
	if (seq_of(w) != op->seq)
		return seq_of(w) < op->seq;
	const int state = state_of(w), owner = owner_of(w);
	return state >= CLAIMED && state <= LEFT && owner < op->n &&
		   !(owner == op->me && (state == CLAIMED || state == LEFT));
}

/* take sets the word of a chunk that nobody has claimed for op. Returns 1 if this call did. */
static int take(sm_op *op, int chunk, int state) {
	uint64_t old = sw_read64(&op->words[chunk]);
	return seq_of(old) < op->seq &&
		   sw_swap64(&op->words[chunk], &old, word(op->seq, op->me, state));
}

/* A strip is a part of the result that has the same ranks on both sides. */
typedef struct strip {
	int from, to;          /* ranks; EVERY stands for all that have the side */
	int64_t in_at, out_at; /* where it begins on their sides */
	int64_t length;
} strip;

enum { EVERY = -1 };

/* piece_at returns which of n pieces has an element, which is less than begin[n]. Empty pieces have
 * none. */
static int piece_at(const int64_t *begin, int n, int64_t element) {
	int low = 0;
	while (n - low > 1) {
		const int middle = low + (n - low) / 2;
		if (begin[middle] <= element)
			low = middle;
		else
			n = middle;
	}
	return low;
}

/* strip_at returns the rest of a strip, from an element of the whole result on. */
static strip strip_at(const sm_op *op, int64_t element) {
	const int p = piece_at(op->begin, op->pieces, element);
	const int64_t k = element - op->begin[p];
	strip s = {.from = EVERY, .to = EVERY, .in_at = element, .out_at = element};
	s.length = op->begin[p + 1] - element;
	switch (op->kind) {
	case SM_ALL_REDUCE:
		break;
	case SM_REDUCE:
		s.to = op->root;
		break;
	case SM_BROADCAST:
		s.from = op->root;
		break;
	case SM_REDUCE_SCATTER:
		s.to = p, s.out_at = k;
		break;
	case SM_ALL_GATHER:
		s.from = p, s.in_at = k;
		break;
	case SM_GATHER:
		s.from = p, s.in_at = k, s.to = op->root;
		break;
	case SM_SCATTER:
		s.from = op->root, s.to = p, s.out_at = k;
		break;
	case SM_ALL_TO_ALL: {
		const int64_t *shares = op->receives + p * op->stride;
		const int r = piece_at(shares, op->n, k);
		s.from = r, s.in_at = op->sends[r * op->stride + p] + k - shares[r];
		s.to = p, s.out_at = k;
		s.length = shares[r + 1] - k;
	}
	}
	return s;
}

/* within returns where an element of a side is. It lowers *m to the number of elements that follow
 * it in the same part. */
static char *within(const sm_side *side, int64_t element, int64_t elem, int64_t *m) {
	const sm_part *part = side->part;
	int64_t low = 0, high = side->parts;
	while (high - low > 1) { /* the first part that ends after the element */
		const int64_t middle = low + (high - low) / 2;
		if (part[middle - 1].end <= element)
			low = middle;
		else
			high = middle;
	}
	if (part[low].end - element < *m)
		*m = part[low].end - element;
	return part[low].at + (element - (low ? part[low - 1].end : 0)) * elem;
}

/* fold runs op on m elements at src and dst. With kill points, there is one in the middle. */
static void fold(const sm_op *op, void **dst, int ndst, const void **src, int nsrc, int64_t m) {
#ifdef PADDLEMPI_KILL_POINTS
	const int64_t half = m / 2;
	op->run(&op->fold, dst, ndst, src, nsrc, half);
	PMPI_KILL_POINT("half-written");
	for (int i = 0; i < ndst; i++)
		dst[i] = (char *)dst[i] + half * op->out_elem;
	for (int i = 0; i < nsrc; i++)
		src[i] = (const char *)src[i] + half * op->elem;
	m -= half;
#endif
	op->run(&op->fold, dst, ndst, src, nsrc, m);
}

/* work does one chunk: some elements of the result, strip by strip, and within a strip as long as
 * no rank's part ends. */
static void work(const sm_op *op, int worker, int chunk) {
	const void **src = op->src + (int64_t)worker * op->n;
	void **dst = op->dst + (int64_t)worker * op->n;
	/* Boundaries are multiples of a cache line, so that two ranks do not write to one line where
	 * the tensors begin at one. */
	const int64_t line = op->elem < 64 ? 64 / op->elem : 1, total = op->begin[op->pieces];
	const int64_t lines = (total + line - 1) / line;
	int64_t at = lines * chunk / op->chunks * line, to = lines * (chunk + 1) / op->chunks * line;
	if (to > total)
		to = total;
	while (at < to) {
		const strip s = strip_at(op, at);
		int64_t m = s.length < to - at ? s.length : to - at;
		int nsrc = 0, ndst = 0;
		for (int r = s.from == EVERY ? 0 : s.from; r < (s.from == EVERY ? op->n : s.from + 1); r++)
			src[nsrc++] = within(&op->in[r], s.in_at, op->elem, &m);
		for (int r = s.to == EVERY ? 0 : s.to; r < (s.to == EVERY ? op->n : s.to + 1); r++)
			if (op->out[r].parts > 0)
				dst[ndst++] = within(&op->out[r], s.out_at, op->out_elem, &m);
		fold(op, dst, ndst, src, nsrc, m);
		at += m;
	}
}

/* A pass is what one call of sm_work does, on one or more threads. */
typedef struct pass {
	sm_op *op;
	int threads, most;
	int did; /* chunks, by all of them */
} pass;

/* claim claims and does chunks. The threads of a rank begin in different parts of its share. */
static void claim(void *of, int worker) {
	pass *p = of;
	sm_op *op = p->op;
	const int64_t total = op->chunks, parts = (int64_t)op->n * p->threads;
	const int first = (int)(((int64_t)op->me * p->threads + worker) * total / parts);
	int did = 0;
	for (int i = 0; i < total && did < p->most; i++) {
		const int chunk = first + i < total ? first + i : first + i - (int)total;
		PMPI_KILL_POINT("before-claim");
		if (take(op, chunk, CLAIMED)) {
			PMPI_KILL_POINT("after-claim");
			work(op, worker, chunk);
			PMPI_KILL_POINT("before-done");
			uint64_t mine = word(op->seq, op->me, CLAIMED), done = word(op->seq, op->me, DONE);
			if (!sw_publish64(&op->words[chunk], &mine, done)) { /* a rank has left */
				PMPI_KILL_POINT("before-fail");
				sw_write64(&op->words[chunk], word(op->seq, op->me, CLOSED));
			}
			PMPI_KILL_POINT("after-done");
			did++;
		}
	}
	if (did)
		__atomic_fetch_add(&p->did, did, __ATOMIC_RELAXED);
}

/* unclaimed returns how many chunks nobody has claimed, `most` at most. */
static int unclaimed(const sm_op *op, int most) {
	int found = 0;
	for (int i = 0; i < op->chunks && found < most; i++)
		found += seq_of(sw_read64(&op->words[i])) < op->seq;
	return found;
}

int sm_work(sm_op *op, int most) {
	pass p = {.op = op, .threads = 1, .most = most};
	if (op->blind)
		return 0;
	if (op->threads > 1 && most >= op->chunks)
		p.threads = unclaimed(op, op->threads);
	if (p.threads > 1)
		op->spread(claim, &p, p.threads, 0);
	else if (p.threads == 1)
		claim(&p, 0);
	if (p.did) /* others wait for the last chunk of all */
		pmpi_ring();
	return p.did;
}

void sm_blind(sm_op *op) {
	uint64_t old = sw_read64(op->blind_ranks), new;
	do
		new = seq_of(old) == op->seq ? old + 1 : word(op->seq, 0, 1);
	while (!sw_swap64(op->blind_ranks, &old, new));
	op->blind = 1;
	PMPI_KILL_POINT("after-blind");
	pmpi_ring();
}

static int all_blind(const sm_op *op) {
	uint64_t w = sw_read64(op->blind_ranks);
	return seq_of(w) == op->seq && (int)(w & 0xfffff) == op->n;
}

int sm_state(sm_op *op, int spin, int yield_every) {
	const int total = op->chunks;
	int paused = 0;
	if (op->blind && all_blind(op))
		return SM_BLIND;
	if (op->damaged)
		return sm_close(op);
	while (op->next < total) {
		uint64_t w = sw_read64(&op->words[op->next]);
		if (seq_of(w) == op->seq) {
			if (state_of(w) == DONE) {
				op->next++;
				continue;
			}
			if (state_of(w) == CLOSED || state_of(w) == LEFT)
				return sm_close(op);
		}
		if (__builtin_expect(!is_possible(op, w), 0)) {
			op->damaged = 1;
			return sm_close(op);
		}
		if (spin-- <= 0)
			return SM_PENDING;
		if (pmpi_linger(++paused, yield_every))
			spin = 0;
	}
	PMPI_KILL_POINT("all-done");
	return SM_DONE;
}

int sm_close(sm_op *op) {
	const int total = op->chunks;
	int closed = op->damaged, working = 0, took = 0;
	for (int i = 0; i < total; i++) {
		if (take(op, i, CLOSED)) {
			PMPI_KILL_POINT("in-close-chunks");
			took = 1;
		}
		uint64_t w = sw_read64(&op->words[i]);
		if (!is_possible(op, w)) {
			closed = op->damaged = 1;
			continue;
		}
		closed |= state_of(w) == CLOSED || state_of(w) == LEFT;
		working |= state_of(w) == CLAIMED || state_of(w) == LEFT;
	}
	if (took)
		pmpi_ring();
	if (closed)
		return working ? SM_CLOSING : SM_CLOSED;
	return working ? SM_PENDING : SM_DONE;
}

int sm_leave(sm_op *op) {
	for (int i = 0; i < op->chunks; i++) {
		take(op, i, CLOSED);
		uint64_t w = sw_read64(&op->words[i]);
		if (state_of(w) == CLAIMED && is_possible(op, w))
			sw_swap64(&op->words[i], &w, word(op->seq, owner_of(w), LEFT));
		PMPI_KILL_POINT("in-leave");
	}
	pmpi_ring();
	return sm_close(op);
}

int sm_worker(const sm_op *op) {
	for (int i = 0; i < op->chunks; i++) {
		uint64_t w = sw_read64(&op->words[i]);
		if (seq_of(w) == op->seq && (state_of(w) == CLAIMED || state_of(w) == LEFT) &&
			is_possible(op, w))
			return owner_of(w);
	}
	return -1;
}

int sm_closer(const sm_op *op, int *from) {
	for (int i = *from + 1; i < op->chunks; i++) {
		uint64_t w = sw_read64(&op->words[i]);
		if (seq_of(w) == op->seq && state_of(w) == CLOSED && owner_of(w) < op->n) {
			*from = i;
			return owner_of(w);
		}
	}
	return -1;
}

int sm_fail_peer(sm_op *op, int rank) {
	int found = 0;
	for (int i = 0; i < op->chunks; i++)
		for (int state = CLAIMED; state <= LEFT; state += LEFT - CLAIMED) {
			uint64_t its = word(op->seq, rank, state);
			found += sw_swap64(&op->words[i], &its, word(op->seq, rank, CLOSED));
		}
	PMPI_KILL_POINT("after-bury");
	pmpi_ring();
	return found;
}

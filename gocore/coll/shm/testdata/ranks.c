/* The ranks of a node as threads of one process, for ThreadSanitizer. They go through collectives:
 * arrive (lines.c), some ahead of their turn, share out the chunks (chunks.c), and now and then
 * refuse or give up. Every tensor, note and result is plain memory, so ThreadSanitizer reports
 * whoever touches one too early. argv: ranks, collectives, a seed, 1 if ranks may give up, and how
 * many collectives a rank may have announced. Prints how the collectives ended. */
#define _GNU_SOURCE
#include "../../../arrive/lines.h"
#include "../chunks.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 8, COUNT = 3000 };

static int n, rounds, gives_up, ahead;
static unsigned seed;
static pa_member *lines;
static int32_t *tensors[MOST][PA_SLOTS]; /* by rank, and by collective % ahead */
static int done[MOST], given_up[MOST], refused[MOST];

static int32_t *tensor(int rank, uint64_t seq) {
	return tensors[rank][seq % (uint64_t)ahead];
}

static int32_t input(int rank, uint64_t seq) {
	return (int32_t)(rank * 1000 + seq);
}

/* What a note carries: long ones lie in an area of their own. */
typedef struct note {
	uint64_t seq, filling[7];
	int32_t rank;
} note;

static void wrong(const char *what, int me, uint64_t seq) {
	fprintf(stderr, "rank %d, collective %llu: %s\n", me, (unsigned long long)seq, what);
	exit(1);
}

/* A reduction without vector code: ThreadSanitizer sees every access. */
static void add(const pmpi_fold *f, void *const *dst, int ndst, const void *const *src, int nsrc,
				int64_t m) {
	(void)f;
	for (int64_t i = 0; i < m; i++) {
		int32_t sum = 0;
		for (int r = 0; r < nsrc; r++)
			sum += ((const int32_t *)src[r])[i];
		for (int r = 0; r < ndst; r++)
			((int32_t *)dst[r])[i] = sum;
	}
}

static int over(sm_op *op, unsigned *random) {
	for (;;) {
		sm_work(op, 1 + rand_r(random) % 4);
		int state = sm_state(op, 10, 2);
		if (state == SM_CLOSING)
			state = sm_close(op);
		if (state == SM_DONE || state == SM_CLOSED)
			return state;
		sched_yield();
	}
}

/* announce announces seq for rank me: in its turn, or ahead of it. */
static void announce(int me, uint64_t seq) {
	int32_t *t = tensor(me, seq);
	for (int i = 0; i < COUNT; i++)
		t[i] = input(me, seq);
	uint64_t word[PA_WORDS] = {1, seq, 2};
	note told = {.seq = seq, .rank = me};
	pa_announce(lines, n, me, seq, word, 0, (uint8_t *)&told, seq % 2 ? sizeof told : 8);
}

/* give_back is what a caller does with the tensors of calls that have failed. */
static void give_back(int me, uint64_t seq, uint64_t announced) {
	for (; seq <= announced; seq++)
		memset(tensor(me, seq), 0, COUNT * 4);
}

/* leave_all withdraws rank me from the collectives that it has announced after seq. */
static void leave_all(int me, uint64_t seq, uint64_t announced) {
	while (seq++ < announced)
		if (!pa_close(lines, n, me, seq, 7)) /* all have announced it, and none gets to it */
			pa_stop(lines, me, seq, 7);
	if (seq <= PA_SLOTS || pa_may_announce(lines, n, seq))
		pa_close(lines, n, me, seq, 7);
}

static void *rank(void *arg) {
	const int me = (int)(intptr_t)arg;
	unsigned random = seed * 16 + (unsigned)me;
	const void *in[MOST], *src[MOST];
	void *out[MOST], *dst[MOST];
	uint64_t announced = 0, refuses = 0; /* refuses: the newest that this rank has refused late */
	for (uint64_t seq = 1; seq <= (uint64_t)rounds; seq++) {
		pa_turn(lines, me, seq);
		if (announced < seq)
			announce(me, announced = seq);
		while (announced < (uint64_t)rounds && announced < seq + (uint64_t)ahead - 1 &&
			   rand_r(&random) % 4 && pa_may_announce(lines, n, announced + 1)) {
			announce(me, ++announced);
			if (rand_r(&random) % 16 == 0 && pa_refuse(lines, n, me, announced)) {
				refuses = announced;
				memset(tensor(me, announced), 0, COUNT * 4); /* the call has failed */
			}
		}
		const uint32_t bytes = seq % 2 ? sizeof(note) : 8;
		uint32_t all, any, diff;
		int from = 0, state = PA_PENDING;
		while (state == PA_PENDING) {
			if (gives_up && rand_r(&random) % 4000 == 0 && pa_close(lines, n, me, seq, 7))
				state = PA_CLOSED;
			else
				state = pa_poll(lines, n, me, seq, 5, 2, &from, &all, &any, &diff);
		}
		if (state == PA_CLOSED) {
			leave_all(me, seq, announced);
			give_back(me, seq, announced);
			given_up[me] = (int)seq;
			return 0;
		}
		if (state != PA_AGREED)
			wrong("the words differ", me, seq);
		if (any & PA_REFUSED) {
			refused[me]++;
			continue;
		}
		if (seq == refuses)
			wrong("the refusal was not seen", me, seq);
		for (int r = 0; r < n; r++) {
			const note *got = pa_note(lines, n, r, seq);
			if (got->seq != seq || (bytes > 8 && got->rank != r))
				wrong("the note is of another collective", me, seq);
			in[r] = out[r] = tensor(r, seq);
		}
		uint64_t *words = pa_chunks(lines, n, seq);
		sm_op op = {.seq = seq,
					.words = words + 1,
					.blind_ranks = words,
					.n = n,
					.me = me,
					.kind = SM_ALL_REDUCE,
					.pieces = 1,
					.cuts = 24,
					.count = COUNT,
					.elem = 4,
					.run = add,
					.in = in,
					.out = out,
					.src = src,
					.dst = dst};
		if (seq % 5 == 0 && me == (int)(seq / 5) % n && n > 1)
			sm_blind(&op);
		if (gives_up && rand_r(&random) % 64 == 0) {
			sm_work(&op, rand_r(&random) % 8);
			sm_close(&op);
		}
		if (over(&op, &random) == SM_CLOSED) {
			leave_all(me, seq, announced);
			give_back(me, seq, announced);
			given_up[me] = (int)seq;
			return 0;
		}
		int32_t want = 0;
		for (int r = 0; r < n; r++)
			want += input(r, seq);
		for (int i = 0; i < COUNT; i++)
			if (tensor(me, seq)[i] != want)
				wrong("the result is wrong", me, seq);
		done[me] = (int)seq;
	}
	return 0;
}

int main(int argc, char **argv) {
	if (argc != 6)
		return 2;
	n = atoi(argv[1]), rounds = atoi(argv[2]), seed = (unsigned)atoi(argv[3]),
	gives_up = atoi(argv[4]), ahead = atoi(argv[5]);
	lines = aligned_alloc(64, ((size_t)pa_size(n) + 63) / 64 * 64);
	memset(lines, 0, (size_t)pa_size(n));
	pthread_t threads[MOST];
	for (int r = 0; r < n; r++)
		for (int i = 0; i < ahead; i++)
			tensors[r][i] = aligned_alloc(64, (COUNT * 4 + 63) / 64 * 64);
	for (int r = 0; r < n; r++)
		pthread_create(&threads[r], 0, rank, (void *)(intptr_t)r);
	for (int r = 0; r < n; r++)
		pthread_join(threads[r], 0);
	for (int r = 1; r < n; r++)
		if (done[r] != done[0] || given_up[r] != given_up[0] || refused[r] != refused[0])
			wrong("it ended otherwise than for rank 0", r, (uint64_t)done[r]);
	printf("%d refused, given up at %d\n", refused[0], given_up[0]);
	return 0;
}

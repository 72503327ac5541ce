/* Two ends of a ring. `rings pass SEED` sends messages of all lengths from one thread to another
 * one, and checks each. `rings damage SEED` writes anything into the ring, its words and its bulk,
 * and receives: nothing may be read or written outside of them. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "../rings.h"

enum { MESSAGES = 30000, BULK = 2 << 20, LARGE = 2 << 20, YIELD_EVERY = 256 };

static uint64_t state;

/* any returns a number below n. */
static uint64_t any(uint64_t *of, uint64_t n) {
	*of ^= *of << 13;
	*of ^= *of >> 7;
	*of ^= *of << 17;
	return *of % n;
}

/* Blocks of their own, so that AddressSanitizer sees their ends. */
static uint64_t *head, *tail, *bulk_tail, *claims;
static uint32_t *costs;
static char *data, *bulk;
static uint32_t waits, full;

/* made returns an endpoint of two ranks, of which the other one is at the other end. */
static pm_endpoint *made(void) {
	pm_endpoint *o = calloc(1, sizeof *o + 2 * sizeof(pm_pair));
	for (int r = 0; r < 2; r++) {
		pm_end *ends[] = {&o->pairs[r].out, &o->pairs[r].in};
		for (int i = 0; i < 2; i++)
			*ends[i] =
				(pm_end){.head = head,
						 .tail = tail,
						 .data = data,
						 .waits = &waits,
						 .full = &full,
						 .bulk = {.tail = bulk_tail, .costs = costs, .data = bulk, .bytes = BULK}};
	}
	return o;
}

static int64_t length_of(uint64_t *seed) {
	static const int64_t some[] = {0, 1, 16, 24, 25, 100, 4095, 4096, 4097, 16384, 16385, 65536};
	const uint64_t kind = any(seed, 1000);
	if (kind == 0)
		return PM_MOST + 1 + (int64_t)any(seed, LARGE - PM_MOST);
	if (kind < 20)
		return some[any(seed, sizeof some / sizeof *some)];
	return (int64_t)any(seed, kind < 23 ? PM_MOST + 1 : kind < 40 ? 5 * PM_PIECE : 200);
}

static void *sender(void *seed_of) {
	uint64_t seed = *(uint64_t *)seed_of;
	pm_endpoint *o = made();
	char *message = malloc(LARGE + 1);
	for (int i = 0; i < MESSAGES; i++) {
		const int64_t n = length_of(&seed);
		memset(message, 'a' + i % 26, (size_t)n + 1);
		if (n <= PM_MOST)
			for (int k = 1; pm_send(o, 1, 7, i, message, (uint64_t)n, 0); k++)
				pmpi_linger(k, YIELD_EVERY);
		else /* the receiver has set the claims once they are those of this message */
			for (int k = 1; sw_read64(claims) >> PM_CLAIM_BITS != (uint64_t)i ||
							pm_stream(o, 1, claims, (uint64_t)i, message, 0, n,
									  1 + (uint64_t)i % (PM_MOST_OF_LONG / PM_PIECE), 10) == 0;
				 k++)
				pmpi_linger(k, YIELD_EVERY);
	}
	free(message);
	free(o);
	return NULL;
}

static int pass(uint64_t seed) {
	pthread_t other;
	pm_endpoint *o = made();
	char *room = malloc(LARGE + 1);
	pthread_create(&other, NULL, sender, &seed);
	uint64_t own = seed;
	for (int i = 0; i < MESSAGES; i++) {
		const int64_t n = length_of(&own);
		memset(room, 0, (size_t)n + 1);
		if (any(&state, 1000) == 0)
			nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL); /* the ring becomes full */
		if (n <= PM_MOST) {
			sw_write32(&waits, pm_sought(7, i));
			for (int k = 1; pm_receive(o, 0, 7, i, room, (uint64_t)n, (int)any(&state, 100)); k++)
				pmpi_linger(k, YIELD_EVERY);
		} else {
			sw_write64(claims, (uint64_t)i << PM_CLAIM_BITS);
			int64_t left = n;
			for (int k = 1; left > 0; k++) {
				left -= pm_drain(o, 0, (uint64_t)i, room, n, left, i % 2, 10);
				pmpi_linger(k, YIELD_EVERY);
			}
		}
		/* The first is right, and all others are equal to the one before: a look at each takes most
		 * of the time under ThreadSanitizer. */
		if (room[n] == 0 &&
			(n == 0 || (room[0] == 'a' + i % 26 && memcmp(room, room + 1, (size_t)n - 1) == 0)))
			continue;
		for (int64_t at = 0; at <= n; at++)
			if (room[at] != (at < n ? 'a' + i % 26 : 0)) {
				printf("message %d of %lld bytes: %d at %lld\n", i, (long long)n, room[at],
					   (long long)at);
				return 1;
			}
	}
	pthread_join(other, NULL);
	free(room);
	free(o);
	return 0;
}

static int damage(void) {
	pm_endpoint *o = made();
	for (int i = 0; i < 50000; i++) {
		pm_end *e = &o->pairs[0].in;
		const int64_t n = i % 2 ? length_of(&state) : PM_PIECE + (int64_t)any(&state, 9 * PM_PIECE);
		char *room = malloc((size_t)n);
		e->bulk.mine = PM_LINE * any(&state, 1 << 20);
		for (int k = 0; k < 3; k++) {
			const pm_packet p = {
				.kind = (uint32_t)(any(&state, 7) | any(&state, UINT64_C(1) << 24) << 8),
				.tag = (int32_t)any(&state, 2),
				.context = any(&state, 2),
				.bytes = any(&state, 2) ? n : (int64_t)any(&state, UINT64_C(1) << 63),
				.number = any(&state, 2),
				.answer = any(&state, 2) ? PM_PIECE * any(&state, 10) : any(&state, ~UINT64_C(0))};
			memcpy(data + (e->mine + PM_LINE * any(&state, 3)) % PM_RING, &p, sizeof p);
		}
		*head = any(&state, 8) ? e->mine + PM_LINE * any(&state, 70) : any(&state, ~UINT64_C(0));
		if (i % 2)
			pm_receive(o, 0, any(&state, 2), (int32_t)any(&state, 2), room, (uint64_t)n, 2);
		else
			pm_drain(o, 0, any(&state, 2), room, n, n, i % 4 / 2, 2);
		*tail = any(&state, 4) ? o->pairs[1].out.mine : any(&state, ~UINT64_C(0));
		*bulk_tail = any(&state, 4) ? o->pairs[1].out.bulk.mine : any(&state, ~UINT64_C(0));
		if (i % 2)
			pm_send(o, 1, 1, 1, room, (uint64_t)n, (int)any(&state, 2));
		else
			pm_stream(o, 1, claims, any(&state, 2), room, 0, n, 1 + any(&state, 4), 2);
		*claims = any(&state, 100);
		free(room);
	}
	free(o);
	return 0;
}

int main(int argc, char **argv) {
	if (argc != 3)
		return 2;
	state = strtoull(argv[2], NULL, 10);
	head = calloc(1, sizeof *head), tail = calloc(1, sizeof *tail);
	bulk_tail = calloc(1, sizeof *bulk_tail), claims = calloc(1, sizeof *claims);
	costs = calloc(PM_WAYS, sizeof *costs);
	data = aligned_alloc(PM_LINE, PM_RING), bulk = aligned_alloc(PM_LINE, BULK);
	memset(data, 0, PM_RING);
	memset(bulk, 0, BULK);
	return strcmp(argv[1], "pass") == 0 ? pass(state) : damage();
}

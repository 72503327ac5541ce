/* Threads pull, look up, push, read and list one table, and write it, for ThreadSanitizer and
 * AddressSanitizer. Arguments: threads, calls of each thread, ids, isa, seed, and with a sixth that
 * is not 0 ids come and go. */
#include "table.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DIM = 21, N = 300 };

static pt_table *table;
static int calls, ids, seed, live;
static int64_t pushes; /* atomic */

static uint64_t next(uint64_t *state) {
	*state = *state * 6364136223846793005u + 1442695040888963407u;
	return *state >> 33;
}

/* A push that two threads share. */
typedef struct shared {
	pt_batch *batch;
	void *scratch;
	int rc;
} shared;

static void *share(void *argument) {
	shared *s = argument;
	s->rc = pt_push_share(table, s->batch, s->scratch);
	return NULL;
}

/* both lets two threads take part in a push. */
static int both(shared *mine, shared *others) {
	pthread_t other;
	pthread_create(&other, NULL, share, others);
	share(mine);
	pthread_join(other, NULL);
	return mine->rc ? mine->rc : others->rc;
}

static int push_by_two(pt_batch *b) {
	size_t bytes = (size_t)pt_share(table, b);
	void *scratch;
	if (posix_memalign(&scratch, 64, 2 * bytes))
		exit(3);
	shared mine = {b, scratch, 0}, others = {b, (char *)scratch + bytes, 0};
	int rc = both(&mine, &others);
	if (rc == PT_OK && pt_admit(table, b) > 0)
		rc = both(&mine, &others);
	pt_settle(table, b);
	free(scratch);
	return rc;
}

/* list_and_write reads rows and writes them back. Those of ids that come and go may be gone then.
 */
static int list_and_write(pt_batch *b, int64_t *batch, uint8_t *there) {
	int64_t n = b->n < 50 ? b->n : 50;
	b->n = pt_ids(table, batch, n, b->oldest) < n ? 0 : n;
	b->there = live ? there : NULL;
	int wrong = (live ? pt_find(table, b) : pt_read(table, b)) != PT_OK;
	for (int64_t i = 0; live && i < b->n; i++)
		if (!there[i])
			b->n = 0;
	b->there = NULL;
	wrong += pt_read_states(table, b) != PT_OK || pt_write_states(table, b) != PT_OK;
	wrong += pt_write(table, b) != PT_OK || pt_bytes(table) < pt_index_bytes(table);
	int64_t rows = pt_live_rows(table, b->oldest);
	return wrong + (rows > ids || (live && rows > table->c.max_rows));
}

static void *work(void *argument) {
	uint64_t random = (uint64_t)(intptr_t)argument * 77 + (uint64_t)seed;
	int64_t *batch = malloc(N * sizeof *batch);
	float *values = malloc(N * DIM * sizeof *values);
	float *states = malloc(N * DIM * 2 * sizeof *states);
	int64_t stamps[50];
	uint8_t there[50];
	void *scratch;
	if (posix_memalign(&scratch, 64, (size_t)pt_scratch(table, N)))
		exit(3);
	intptr_t wrong = 0;
	for (int call = 0; call < calls; call++) {
		pt_batch b = {.ids = batch,
					  .n = 1 + (int64_t)(next(&random) % N),
					  .id_bytes = 8,
					  .dtype = PT_FLOAT32,
					  .values = values,
					  .scratch = scratch,
					  .step = {.rate = 1,
							   .shrink = 1,
							   .clip_value = INFINITY,
							   .clip_norm = INFINITY,
							   .most = INFINITY,
							   .momentum = 0.5f}};
		for (int i = 0; i < b.n; i++)
			batch[i] = (int64_t)(next(&random) % (uint64_t)ids);
		if (live) {
			b.now = __atomic_add_fetch(&pushes, 1, __ATOMIC_RELAXED);
			b.oldest = b.now - 1 - table->c.expire_after;
		}
		switch (next(&random) % 5) {
		case 0:
		case 1:
			for (int i = 0; i < b.n * DIM; i++)
				values[i] = 1;
			wrong += pt_finite(table, &b) != PT_OK ||
					 (call % 16 ? pt_push(table, &b) : push_by_two(&b)) != PT_OK;
			break;
		case 2:
		case 3: /* all elements of a row are the same, unless it is seen half updated */
			wrong += (live || call % 2 == 0 ? pt_look(table, &b, call % 4) : pt_pull(table, &b)) !=
					 PT_OK;
			for (int i = 0; i < b.n; i++)
				for (int j = 1; j < DIM; j++)
					wrong += values[i * DIM + j] != values[i * DIM];
			break;
		case 4:
			b.states = states;
			b.stamps = live ? stamps : NULL;
			wrong += list_and_write(&b, batch, there);
			break;
		}
	}
	free(batch);
	free(values);
	free(states);
	free(scratch);
	return (void *)wrong;
}

int main(int argc, char **argv) {
	if (argc < 6)
		return 2;
	int threads = atoi(argv[1]);
	calls = atoi(argv[2]);
	ids = atoi(argv[3]);
	seed = atoi(argv[5]);
	live = argc > 6 && atoi(argv[6]);
	pt_config c = {.dim = DIM,
				   .secret = {(uint64_t)seed, 0x9e3779b97f4a7c15u},
				   .optimizer = PT_MOMENTUM,
				   .isa = atoi(argv[4])};
	if (live) {
		c.admit_after = 2;
		c.expire_after = 40;
		c.max_rows = 1 + ids / 2;
	}
	table = pt_new(&c);
	pthread_t thread[16];
	for (int i = 0; i < threads; i++)
		pthread_create(&thread[i], NULL, work, (void *)(intptr_t)i);
	intptr_t wrong = 0;
	for (int i = 0; i < threads; i++) {
		void *result;
		pthread_join(thread[i], &result);
		wrong += (intptr_t)result;
	}
	wrong += table->claims != 0;
	printf("%ld wrong, %s\n", (long)wrong, pt_rows(table) > 0 ? "some rows" : "no rows");
	pt_free(table);
	return wrong != 0;
}

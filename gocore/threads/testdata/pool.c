/* Callers, which are threads, spread work over the helpers of one pool, and count who did what.
 * argv: callers, calls of each, a seed. Prints how many parts helpers did. The work of a call is on
 * its stack and is overwritten when pt_spread has returned: ThreadSanitizer reports a helper that
 * looks at it later, or too early. */
#define _GNU_SOURCE
#include "../pool.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PARTS = 40 };

static int calls, helped;
static unsigned seed;

typedef struct job {
	int next, workers;
	int done[PARTS];
	int inside[PT_MOST]; /* threads that have this number */
} job;

static void wrong(const char *what) {
	fprintf(stderr, "%s\n", what);
	exit(1);
}

static void do_parts(void *of, int worker) {
	job *j = of;
	if (worker < 0 || worker >= j->workers)
		wrong("a worker has a number that no worker of this call has");
	if (__atomic_add_fetch(&j->inside[worker], 1, __ATOMIC_RELAXED) != 1)
		wrong("two workers have one number");
	for (int i; (i = __atomic_fetch_add(&j->next, 1, __ATOMIC_RELAXED)) < PARTS;) {
		j->done[i]++;
		if (worker > 0)
			__atomic_fetch_add(&helped, 1, __ATOMIC_RELAXED);
		if (i % 4 == 0)
			sched_yield();
	}
}

static void *caller(void *number) {
	unsigned random = seed + (unsigned)(size_t)number;
	for (int k = 0; k < calls; k++) {
		job j = {.workers = 1 + rand_r(&random) % 5};
		pt_spread(do_parts, &j, j.workers, rand_r(&random) % 2);
		for (int i = 0; i < PARTS; i++)
			if (j.done[i] != 1)
				wrong("a part was not done once");
		memset(&j, 0xa5, sizeof j);
		for (int i = rand_r(&random) % 300; i > 0; i--) /* helpers go to sleep meanwhile */
			sched_yield();
	}
	return NULL;
}

int main(int argc, char **argv) {
	pthread_t threads[8];
	if (argc != 4 || atoi(argv[1]) > 8)
		return 2;
	calls = atoi(argv[2]);
	seed = (unsigned)atoi(argv[3]);
	for (int i = 0; i < atoi(argv[1]); i++)
		pthread_create(&threads[i], NULL, caller, (void *)(size_t)i);
	for (int i = 0; i < atoi(argv[1]); i++)
		pthread_join(threads[i], NULL);
	char from[300000], to[sizeof from];
	for (size_t i = 0; i < sizeof from; i++)
		from[i] = (char)(i * 7);
	pt_copy(to, from, sizeof from, 3);
	if (memcmp(to, from, sizeof from) != 0)
		wrong("a copy is wrong");
	printf("helpers did %s\n", helped ? "some" : "none");
	return 0;
}

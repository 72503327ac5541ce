/* Copies of XLA's tensors. After an error MPI may use the memory of a call for as long as it likes
 * (pmpi_submit), while XLA frees its buffers when the call has returned. So between nodes the core
 * gets copies, and those of a call that failed are left behind. On one node only messages can
 * outlive their call, and end soon after it (wait_for_memory).
 *
 * The system would clear the pages of a large block each time, so a few blocks are kept. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "trampoline.h"

enum { KEPT = 8, LARGEST_KEPT = 64 << 20 };

static copy kept[KEPT];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

copy copy_new(int64_t bytes, const void *from) {
	copy c = {0};
	int best = -1;
	pthread_mutex_lock(&lock);
	for (int i = 0; i < KEPT; i++)
		if (kept[i].data != NULL && kept[i].room >= bytes &&
			(best < 0 || kept[i].room < kept[best].room))
			best = i;
	if (best >= 0) {
		c = kept[best];
		kept[best] = (copy){0};
	}
	pthread_mutex_unlock(&lock);
	if (c.data == NULL)
		c = (copy){.data = malloc(bytes + 1), .room = bytes};
	if (c.data != NULL && from != NULL && bytes > 0)
		memcpy(c.data, from, bytes);
	return c;
}

void copy_free(copy c) {
	if (c.data != NULL && c.room <= LARGEST_KEPT) {
		pthread_mutex_lock(&lock);
		int least = 0;
		for (int i = 1; i < KEPT; i++)
			if (kept[i].room < kept[least].room)
				least = i;
		if (kept[least].room < c.room) { /* keep the larger one */
			copy old = kept[least];
			kept[least] = c;
			c = old;
		}
		pthread_mutex_unlock(&lock);
	}
	free(c.data);
}

/* A batch, sorted by shards, in its scratch memory. */
#include "table.h"

#include <string.h>

static int64_t lines(int64_t bytes) {
	return (bytes + 63) / 64 * 64;
}

/* One portion may have all n ids of a batch. Its hash table of rows (hot.h) then has less than 4 n
 * places: the least power of 2 that is at least 2 n. */
static int64_t work_words(int64_t n) {
	return (PT_WORK + 4) * n + 128;
}

int64_t pt_sums_bytes(const pt_table *t) {
	return 3 * lines(4 * t->c.dim + 64);
}

int64_t pt_scratch(const pt_table *t, int64_t n) {
	return lines(sizeof(pt_sorted)) + lines(8 * n) + lines(4 * n) + lines(n) +
		   lines(4 * work_words(n)) + pt_sums_bytes(t);
}

/* pt_sort is a counting sort, so ids of one shard stay in order of appearance. Each call
 * begins at another shard than the call before it. */
pt_sorted *pt_sort(pt_table *t, const pt_batch *b) {
	char *scratch = b->scratch;
	pt_sorted *s = (pt_sorted *)scratch;
	scratch += lines(sizeof *s);
	s->ids = (int64_t *)scratch;
	scratch += lines(8 * b->n);
	s->at = (uint32_t *)scratch;
	scratch += lines(4 * b->n);
	uint8_t *shards = (uint8_t *)scratch;
	scratch += lines(b->n);
	s->sum = (float *)scratch;
	scratch += pt_sums_bytes(t);
	s->work = (uint32_t *)scratch;
	uint32_t count[PT_SHARDS] = {0}, next[PT_SHARDS];
	for (int64_t i = 0; i < b->n; i++) {
		uint32_t shard = pt_shard_of(pt_hash(&t->c, pt_id_at(b, i)));
		shards[i] = (uint8_t)shard;
		count[shard]++;
	}
	uint32_t sum = 0;
	for (int i = 0; i < PT_SHARDS; i++) {
		s->begin[i] = next[i] = sum;
		s->end[i] = sum += count[i];
	}
	for (int64_t i = 0; i < b->n; i++) {
		uint32_t to = next[shards[i]]++;
		s->ids[to] = pt_id_at(b, i);
		s->at[to] = (uint32_t)i;
	}
	s->first = __atomic_fetch_add(&t->turn, PT_SHARDS / 8 + 1, __ATOMIC_RELAXED) % PT_SHARDS;
	s->taken = s->failed = s->made = 0;
	s->state = NULL;
	if (t->stamped)
		s->state = memset(shards, PT_FOUND, (size_t)b->n);
	return s;
}

int64_t pt_share(pt_table *t, pt_batch *b) {
	const pt_sorted *s = pt_sort(t, b);
	uint32_t most = 0;
	for (int i = 0; i < PT_SHARDS; i++)
		if (s->end[i] - s->begin[i] > most)
			most = s->end[i] - s->begin[i];
	return pt_sums_bytes(t) + lines(4 * work_words(most));
}

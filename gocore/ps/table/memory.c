/* The memory of a table: blocks, slabs and indexes. */
#include "table.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
	HUGE = 2 << 20,
	MOST_BLOCK = 64 << 20,
	SLAB = 32 << 10, /* the aim for the bytes of a slab */
	FIRST_BINS = 4
};

/* take counts bytes against the limit, less what others have reserved. It counts first and then
 * reads what is reserved; pt_reserve reserves first and then reads the bytes. So if both happen at
 * the same time, at least one of them sees the other. */
static int take(pt_table *t, int64_t bytes, int reserved) {
	int64_t limit = t->c.memory_limit, now = __atomic_add_fetch(&t->bytes, bytes, __ATOMIC_SEQ_CST);
	if (limit == 0)
		return PT_OK;
	int64_t others = reserved ? 0 : __atomic_load_n(&t->reserved, __ATOMIC_SEQ_CST);
	if (now + others <= limit)
		return PT_OK;
	__atomic_sub_fetch(&t->bytes, bytes, __ATOMIC_SEQ_CST);
	if (now > limit)
		return PT_OVER_LIMIT;
	/* Pushes reserve more than they take. Whoever waits for them must not wait for ever. */
	__atomic_store_n(&t->tight, 1, __ATOMIC_SEQ_CST);
	return PT_BUSY;
}

static void give(pt_table *t, int64_t bytes) {
	__atomic_sub_fetch(&t->bytes, bytes, __ATOMIC_RELAXED);
}

/* map_block maps memory of zeros. It is aligned to a huge page if it is at least as long. */
static void *map_block(size_t size) {
	size_t extra = size >= HUGE ? HUGE : 0;
	char *at = mmap(NULL, size + extra, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (at == MAP_FAILED)
		return NULL;
	if (extra) {
		size_t before = (HUGE - ((uintptr_t)at & (HUGE - 1))) & (HUGE - 1);
		if (before)
			munmap(at, before);
		if (extra > before)
			munmap(at + before + size, extra - before);
		at += before;
		madvise(at, size, MADV_HUGEPAGE); /* a wish */
	}
	return at;
}

/* new_block maps the next block: an eighth of all blocks so far, and a slab at least, so that a
 * small table is small; less if the limit leaves less. The caller holds the lock of the blocks. */
static int new_block(pt_table *t, int reserved) {
	int64_t least = t->slab_bytes + 64, want = t->block_bytes / 8;
	want = want > MOST_BLOCK ? MOST_BLOCK : want;
	if (want < least)
		want = least;
	int rc;
	for (;;) {
		int64_t unit = want >= HUGE ? HUGE : sysconf(_SC_PAGESIZE);
		int64_t size = (want + unit - 1) / unit * unit;
		rc = take(t, size, reserved);
		if (rc == PT_OK) {
			pt_block *b = map_block((size_t)size);
			if (b) {
				b->next = t->blocks;
				b->mapped = (size_t)size;
				t->blocks = b;
				t->block_bytes += size;
				t->free_at = (char *)b + 64;
				t->free_end = (char *)b + size;
				return PT_OK;
			}
			give(t, size);
			rc = PT_NO_MEMORY;
		}
		if (want == least)
			return rc;
		want = want / 2 < least ? least : want / 2;
	}
}

/* new_slab returns a slab of zeros. */
static int new_slab(pt_table *t, int reserved, char **slab) {
	int rc = PT_OK;
	pthread_mutex_lock(&t->lock);
	if (t->free_end - t->free_at < t->slab_bytes)
		rc = new_block(t, reserved);
	if (rc == PT_OK) {
		*slab = t->free_at;
		t->free_at += t->slab_bytes;
	}
	pthread_mutex_unlock(&t->lock);
	return rc;
}

static int add_slab(pt_table *t, pt_shard *s, int reserved) {
	if (s->n_slabs == s->slab_room) {
		uint32_t room = s->slab_room ? s->slab_room * 2 : 8;
		int64_t more = (int64_t)(room - s->slab_room) * (int64_t)sizeof(char *);
		int rc = take(t, more, reserved);
		if (rc)
			return rc;
		char **slabs = realloc(s->slabs, room * sizeof *slabs);
		if (slabs == NULL) {
			give(t, more);
			return PT_NO_MEMORY;
		}
		s->slabs = slabs;
		s->slab_room = room;
	}
	int rc = new_slab(t, reserved, &s->slabs[s->n_slabs]);
	if (rc == PT_OK)
		s->n_slabs++;
	return rc;
}

static void put(pt_bin *bins, uint32_t n, int64_t id, uint64_t hash, uint32_t row) {
	uint32_t at = pt_bin_of(hash, n);
	while (bins[at].used == PT_LANES)
		at = at + 1 == n ? 0 : at + 1;
	pt_bin *b = &bins[at];
	b->id[b->used] = id;
	b->row[b->used] = row;
	b->used++;
}

static pt_bin *new_bins(uint32_t n) {
	void *p;
	if (posix_memalign(&p, sizeof(pt_bin), n * sizeof(pt_bin)))
		return NULL;
	memset(p, 0, n * sizeof(pt_bin));
	return p;
}

/* grow makes the index of a shard larger by half. At most four fifths of it are in use. */
static int grow(pt_table *t, pt_shard *s, int reserved) {
	uint64_t n = s->n_bins ? s->n_bins + (uint64_t)s->n_bins / 2 : FIRST_BINS;
	if (n * PT_LANES > UINT32_MAX)
		return PT_NO_MEMORY;
	int64_t more = (int64_t)n * (int64_t)sizeof(pt_bin);
	int rc = take(t, more, reserved);
	if (rc)
		return rc;
	pt_bin *bins = new_bins((uint32_t)n);
	if (bins == NULL) {
		give(t, more);
		return PT_NO_MEMORY;
	}
	for (uint32_t i = 0; i < s->n_bins; i++) {
		const pt_bin *b = &s->bins[i];
		for (uint32_t l = 0; l < b->used; l++)
			put(bins, (uint32_t)n, b->id[l], pt_hash(&t->c, b->id[l]), b->row[l]);
	}
	free(s->bins);
	give(t, (int64_t)s->n_bins * (int64_t)sizeof(pt_bin));
	s->bins = bins;
	s->n_bins = (uint32_t)n;
	s->most = (uint32_t)(n * PT_LANES * 4 / 5);
	return PT_OK;
}

int pt_provide(pt_table *t, pt_shard *s, uint64_t rows, int reserved) {
	int rc = PT_OK;
	while (rc == PT_OK && rows > s->most)
		rc = grow(t, s, reserved);
	while (rc == PT_OK && rows > (uint64_t)s->n_slabs << t->slab_shift)
		rc = add_slab(t, s, reserved);
	return rc;
}

/* take_row returns a row of zeros: the one that was removed last, or a new one. */
static uint32_t take_row(const pt_table *t, pt_shard *s) {
	if (s->unused == 0)
		return s->top++;
	uint32_t row = s->unused - 1;
	char *at = pt_row(t, s, row);
	memcpy(&s->unused, at, sizeof s->unused);
	memset(at, 0, (size_t)t->row_bytes);
	memset(pt_state(t, s, row), 0, (size_t)t->state_bytes);
	return row;
}

/* take_claim takes one of the places that pt_admit has given to a push, if one is left. */
static int take_claim(pt_table *t, pt_batch *b) {
	if (__atomic_fetch_sub(&b->claims, 1, __ATOMIC_RELAXED) <= 0) {
		__atomic_add_fetch(&b->claims, 1, __ATOMIC_RELAXED);
		return 0;
	}
	__atomic_sub_fetch(&t->claims, 1, __ATOMIC_RELAXED);
	return 1;
}

int64_t pt_row_of(const pt_table *t, const pt_shard *s, int64_t id) {
	if (s->n_bins == 0)
		return -1;
	for (uint32_t at = pt_bin_of(pt_hash(&t->c, id), s->n_bins);;) {
		const pt_bin *b = &s->bins[at];
		for (uint32_t l = 0; l < b->used; l++)
			if (b->id[l] == id)
				return b->row[l];
		if (b->used < PT_LANES)
			return -1;
		at = at + 1 == s->n_bins ? 0 : at + 1;
	}
}

int64_t pt_live(const pt_table *t, const pt_shard *s, const pt_batch *b, int64_t id) {
	int64_t row = pt_row_of(t, s, id);
	return row >= 0 && t->stamped && *pt_stamp(t, s, (uint32_t)row) < b->oldest ? -1 : row;
}

int pt_insert(pt_table *t, pt_shard *s, pt_batch *b, int64_t id, uint64_t hash, uint32_t *row) {
	uint32_t *mine = &b->promised[s - t->shard], promised = *mine > 0;
	uint64_t rows = (uint64_t)s->rows + s->promised - promised + 1;
	int rc = pt_provide(t, s, rows, b->reserved != 0);
	if (rc)
		return rc;
	if (t->c.max_rows && !take_claim(t, b))
		return PT_FULL;
	*mine -= promised;
	s->promised -= promised;
	*row = take_row(t, s);
	pt_initialise(&t->c, id, pt_row(t, s, *row));
	float *state = pt_state(t, s, *row);
	for (int64_t i = 0; t->c.initial_state != 0 && i * 4 < t->state_bytes; i++)
		state[i] = t->c.initial_state; /* else the state is zero */
	if (t->stamped)
		*pt_stamp(t, s, *row) = b->now;
	put(s->bins, s->n_bins, id, hash, *row);
	__atomic_store_n(&s->rows, s->rows + 1,
					 __ATOMIC_RELAXED); /* pt_rows reads it without the lock */
	return PT_OK;
}

/* take_out removes a lane of a bin, and tells whether the bin was full. */
static int take_out(pt_bin *b, uint32_t lane) {
	uint32_t last = --b->used;
	b->id[lane] = b->id[last];
	b->row[lane] = b->row[last];
	return last + 1 == PT_LANES;
}

/* passed returns a lane of bin j with an id that was put there because bin i was full, or
 * PT_LANES. */
static uint32_t passed(const pt_table *t, const pt_shard *s, uint32_t i, uint32_t j) {
	const pt_bin *b = &s->bins[j];
	uint32_t n = s->n_bins, apart = j >= i ? j - i : j + n - i, lane;
	for (lane = 0; lane < b->used; lane++) {
		uint32_t home = pt_bin_of(pt_hash(&t->c, b->id[lane]), n);
		if ((j >= home ? j - home : j + n - home) >= apart)
			return lane;
	}
	return PT_LANES;
}

void pt_remove_at(pt_table *t, pt_shard *s, uint32_t bin, uint32_t lane) {
	uint32_t row = s->bins[bin].row[lane];
	memcpy(pt_row(t, s, row), &s->unused, sizeof s->unused);
	s->unused = row + 1;
	__atomic_store_n(&s->rows, s->rows - 1, __ATOMIC_RELAXED);
	if (!take_out(&s->bins[bin], lane))
		return;
	/* A search ends at a bin that is not full. So an id that passed this bin moves into it. */
	for (uint32_t i = bin, j = bin;;) {
		j = j + 1 == s->n_bins ? 0 : j + 1;
		pt_bin *from = &s->bins[j], *to = &s->bins[i];
		int full = from->used == PT_LANES;
		if ((lane = passed(t, s, i, j)) < PT_LANES) {
			to->id[to->used] = from->id[lane];
			to->row[to->used] = from->row[lane];
			to->used++;
			take_out(from, lane);
			i = j;
		}
		if (!full)
			return;
	}
}

void pt_expire(pt_table *t, pt_shard *s, int64_t id) {
	__atomic_add_fetch(&t->expired, 1, __ATOMIC_RELAXED);
	for (uint32_t at = pt_bin_of(pt_hash(&t->c, id), s->n_bins);;
		 at = at + 1 == s->n_bins ? 0 : at + 1)
		for (uint32_t lane = 0; lane < s->bins[at].used; lane++)
			if (s->bins[at].id[lane] == id) {
				pt_remove_at(t, s, at, lane);
				return;
			}
}

int64_t pt_state_bytes(int32_t optimizer, int64_t dim) {
	switch (optimizer) {
	case PT_SGD:
		return 0;
	case PT_ROW_WISE_ADAGRAD:
		return 4;
	case PT_ADAM:
		return 8 * dim;
	case PT_ADAM_BY_ROW:
		return 8 * dim + 4;
	}
	return 4 * dim;
}

pt_table *pt_new(const pt_config *c) {
	pt_table *t;
	if (posix_memalign((void **)&t, 128, sizeof *t))
		return NULL;
	memset(t, 0, sizeof *t);
	t->c = *c;
	int64_t element = c->dtype == PT_FLOAT32 ? 4 : 2;
	t->row_bytes = (c->dim * element + 3) / 4 * 4;
	t->state_bytes = pt_state_bytes(c->optimizer, c->dim);
	/* As many as fit, and where the ids are few no more than a quarter of a shard's share of them:
	 * a slab of each shard is filled in part. */
	int64_t few = c->ids && (c->max_rows == 0 || c->ids < c->max_rows) ? c->ids : c->max_rows;
	int64_t rows = 1, share = few ? few / (4 * PT_SHARDS) : SLAB;
	t->stamped = c->admit_after > 1 || c->expire_after || c->max_rows;
	while (rows * 2 * (t->row_bytes + t->state_bytes) <= SLAB && rows * 2 <= share) {
		rows *= 2;
		t->slab_shift++;
	}
	t->state_offset = (rows * t->row_bytes + 63) / 64 * 64;
	t->stamp_offset = (t->state_offset + rows * t->state_bytes + 7) / 8 * 8;
	t->slab_bytes = (t->stamp_offset + (t->stamped ? rows * 8 : 0) + 63) / 64 * 64;
	t->bytes = sizeof *t;
	if (c->admit_after > 1 && pt_sketch_new(t)) {
		free(t);
		return NULL;
	}
	pthread_mutex_init(&t->sweeping, NULL);
	pthread_mutex_init(&t->lock, NULL);
	/* Writers first: else pulls, which hold many locks for reading, could keep a push waiting. */
	pthread_rwlockattr_t writers_first;
	pthread_rwlockattr_init(&writers_first);
	pthread_rwlockattr_setkind_np(&writers_first, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
	for (int i = 0; i < PT_SHARDS; i++)
		pthread_rwlock_init(&t->shard[i].lock, &writers_first);
	pthread_rwlock_init(&t->life, &writers_first);
	pthread_rwlockattr_destroy(&writers_first);
	return t;
}

void pt_free(pt_table *t) {
	if (t == NULL)
		return;
	for (int i = 0; i < PT_SHARDS; i++) {
		free(t->shard[i].bins);
		free(t->shard[i].slabs);
		pthread_rwlock_destroy(&t->shard[i].lock);
	}
	while (t->blocks) {
		pt_block *b = t->blocks;
		t->blocks = b->next;
		munmap(b, b->mapped);
	}
	if (t->sketch)
		munmap(t->sketch, PT_SKETCH_BYTES);
	pthread_rwlock_destroy(&t->life);
	pthread_mutex_destroy(&t->sweeping);
	pthread_mutex_destroy(&t->lock);
	free(t);
}

int64_t pt_rows(pt_table *t) {
	int64_t rows = 0;
	for (int i = 0; i < PT_SHARDS; i++)
		rows += __atomic_load_n(&t->shard[i].rows, __ATOMIC_RELAXED);
	return rows;
}

int64_t pt_index_bytes(pt_table *t) {
	int64_t bytes = 0;
	for (int i = 0; i < PT_SHARDS; i++) {
		pthread_rwlock_rdlock(&t->shard[i].lock);
		bytes += (int64_t)t->shard[i].n_bins * (int64_t)sizeof(pt_bin);
		pthread_rwlock_unlock(&t->shard[i].lock);
	}
	return bytes;
}

int64_t pt_bytes(pt_table *t) {
	return __atomic_load_n(&t->bytes, __ATOMIC_RELAXED);
}

int pt_reserve(pt_table *t, pt_batch *b) {
	int64_t n = b->n;
	b->reserved = 0;
	if (t->c.memory_limit == 0)
		return 1;
	if (__atomic_load_n(&t->tight, __ATOMIC_SEQ_CST))
		return 0;
	int64_t now = pt_bytes(t), index = n * (int64_t)sizeof(pt_bin), slab = t->slab_bytes;
	/* Rows, a slab begun in every shard, old and new indexes together, lists of slabs, a block. */
	int64_t worst = n * (t->row_bytes + t->state_bytes + 72) + PT_SHARDS * (slab + 256) + index +
					2 * now / 3 + MOST_BLOCK / 8;
	int64_t all = __atomic_add_fetch(&t->reserved, worst, __ATOMIC_SEQ_CST);
	now = __atomic_load_n(&t->bytes, __ATOMIC_SEQ_CST);
	if (all < t->c.memory_limit - now) {
		b->reserved = worst;
		return 1;
	}
	__atomic_sub_fetch(&t->reserved, worst, __ATOMIC_SEQ_CST);
	return 0;
}

void pt_unreserve(pt_table *t, pt_batch *b) {
	if (b->reserved)
		__atomic_sub_fetch(&t->reserved, b->reserved, __ATOMIC_SEQ_CST);
	b->reserved = 0;
	for (int i = 0; i < PT_SHARDS; i++) {
		if (b->promised[i] == 0)
			continue;
		pthread_rwlock_wrlock(&t->shard[i].lock);
		t->shard[i].promised -= b->promised[i];
		b->promised[i] = 0;
		pthread_rwlock_unlock(&t->shard[i].lock);
	}
}

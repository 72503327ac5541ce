/* The calls of a table. Each call sorts its batch by shards, and passes the ids of a shard to the
 * code that was built for this processor. */
#include "../../reduce/float16.h"
#include "table.h"

#include <float.h>
#include <string.h>

typedef int (*pt_worker)(pt_table *t, pt_shard *s, pt_batch *b, const pt_portion *p);

enum { PULLED = 8192 }; /* a pull takes the locks for this many ids at a time */

int pt_check(pt_table *t, pt_batch *b) {
	if (t->c.ids == 0)
		return PT_OK;
	for (int64_t i = 0; i < b->n; i++) {
		int64_t id = pt_id_at(b, i);
		if ((uint64_t)id >= (uint64_t)t->c.ids) {
			b->fault = i;
			b->value = id;
			return PT_OUT_OF_RANGE;
		}
	}
	return PT_OK;
}

static int in_shard(pt_table *t, pt_batch *b, pt_sorted *s, const pt_portion *scratch,
					uint32_t shard, pt_worker work) {
	pt_portion portion = *scratch;
	portion.ids = s->ids + s->begin[shard];
	portion.at = s->at + s->begin[shard];
	portion.n = s->end[shard] - s->begin[shard];
	portion.state = s->state;
	int rc = work(t, &t->shard[shard], b, &portion);
	pthread_rwlock_unlock(&t->shard[shard].lock);
	if (rc)
		__atomic_store_n(&s->failed, 1, __ATOMIC_RELAXED);
	return rc;
}

/* each_shard calls work once for each shard of a sorted batch, with the lock of that shard. Several
 * threads may share the shards: each of them calls it, with scratch memory of its own. It first
 * takes the shards that no other thread holds. */
static int each_shard(pt_table *t, pt_batch *b, pt_sorted *s, const pt_portion *scratch,
					  pt_worker work) {
	uint32_t left[PT_SHARDS], n = 0, i;
	int rc = PT_OK;
	while (rc == PT_OK && !__atomic_load_n(&s->failed, __ATOMIC_RELAXED) &&
		   (i = __atomic_fetch_add(&s->taken, 1, __ATOMIC_RELAXED)) < PT_SHARDS) {
		uint32_t shard = (s->first + i) % PT_SHARDS;
		if (s->begin[shard] == s->end[shard])
			continue;
		if (pthread_rwlock_trywrlock(&t->shard[shard].lock))
			left[n++] = shard;
		else
			rc = in_shard(t, b, s, scratch, shard, work);
	}
	while (n > 0 && rc == PT_OK) {
		uint32_t busy = 0;
		for (i = 0; i < n && rc == PT_OK; i++) {
			if (pthread_rwlock_trywrlock(&t->shard[left[i]].lock))
				left[busy++] = left[i];
			else
				rc = in_shard(t, b, s, scratch, left[i], work);
		}
		if (busy == n && rc == PT_OK) {
			pthread_rwlock_wrlock(&t->shard[left[0]].lock);
			rc = in_shard(t, b, s, scratch, left[0], work);
			memmove(left, left + 1, (size_t)--busy * sizeof *left);
		}
		n = busy;
	}
	return rc;
}

/* alone does all shards on the calling thread. */
static int alone(pt_table *t, pt_batch *b, pt_worker work) {
	if (b->n == 0)
		return PT_OK;
	pt_sorted *s = pt_sort(t, b);
	const pt_portion scratch = {.work = s->work, .sum = s->sum};
	return each_shard(t, b, s, &scratch, work);
}

#define CHOOSE(function, isa)                                                                      \
	((isa) == PT_AVX512 ? function##_avx512                                                        \
	 : (isa) == PT_AVX2 ? function##_avx2                                                          \
						: function##_portable)

/* push_part updates rows of a sorted batch. Rows of a table whose ids come and go are removed by
 * nobody else at that time, but for those that are too old. */
static int push_part(pt_table *t, pt_batch *b, const pt_portion *scratch) {
	if (t->stamped)
		pthread_rwlock_rdlock(&t->life);
	int rc = each_shard(t, b, b->scratch, scratch, CHOOSE(pt_push, t->c.isa));
	if (t->stamped)
		pthread_rwlock_unlock(&t->life);
	return rc;
}

int pt_push(pt_table *t, pt_batch *b) {
	if (b->n == 0)
		return PT_OK;
	const pt_sorted *s = pt_sort(t, b);
	const pt_portion scratch = {.work = s->work, .sum = s->sum};
	int rc = push_part(t, b, &scratch);
	if (rc == PT_OK && pt_admit(t, b) > 0)
		rc = push_part(t, b, &scratch);
	pt_settle(t, b);
	return rc;
}

int pt_push_share(pt_table *t, pt_batch *b, void *scratch) {
	const pt_portion mine = {.sum = scratch,
							 .work = (uint32_t *)((char *)scratch + pt_sums_bytes(t))};
	return push_part(t, b, &mine);
}

int pt_finite(pt_table *t, pt_batch *b) {
	b->fault = CHOOSE(pt_finite, t->c.isa)(b->values, b->dtype, b->n * t->c.dim);
	return b->fault < 0 ? PT_OK : PT_NOT_FINITE;
}

/* convert copies a row of 16-bit floats of the table to float32 (into = 0), or float32 to such a
 * row. */
static void convert(const pt_table *t, uint16_t *mine, float *theirs, int into) {
	int bf16 = t->c.dtype == PT_BFLOAT16;
	for (int64_t j = 0; j < t->c.dim; j++) {
		if (into)
			mine[j] = bf16 ? store_bf16(theirs[j]) : store_f16(theirs[j]);
		else
			theirs[j] = bf16 ? load_bf16(mine[j]) : load_f16(mine[j]);
	}
}

/* copy_row copies a row and its state out of the table (into = 0) or into it. */
static void copy_row(pt_table *t, pt_shard *s, pt_batch *b, uint32_t at, uint32_t row, int into) {
	size_t row_bytes = (size_t)t->c.dim * (b->dtype == PT_FLOAT32 ? 4 : 2);
	size_t state_bytes = (size_t)t->state_bytes;
	if (b->values) {
		char *mine = pt_row(t, s, row), *theirs = (char *)b->values + at * row_bytes;
		if (b->dtype != t->c.dtype)
			convert(t, (uint16_t *)mine, (float *)theirs, into);
		else
			memcpy(into ? mine : theirs, into ? theirs : mine, row_bytes);
	}
	if (b->states && state_bytes) {
		char *state = (char *)pt_state(t, s, row), *its = (char *)b->states + at * state_bytes;
		memcpy(into ? state : its, into ? its : state, state_bytes);
	}
}

static int read_portion(pt_table *t, pt_shard *s, pt_batch *b, const pt_portion *p) {
	for (uint32_t k = 0; k < p->n; k++) {
		int64_t row = pt_live(t, s, b, p->ids[k]);
		if (b->there)
			b->there[p->at[k]] = row >= 0;
		if (row >= 0) {
			copy_row(t, s, b, p->at[k], (uint32_t)row, 0);
			if (b->stamps)
				b->stamps[p->at[k]] = *pt_stamp(t, s, (uint32_t)row);
		} else if (b->there == NULL) {
			b->fault = p->at[k];
			b->value = p->ids[k];
			return PT_ABSENT;
		}
	}
	return PT_OK;
}

/* write_portion sets rows. With p->state it makes none, and notes what is missing. */
static int write_portion(pt_table *t, pt_shard *s, pt_batch *b, const pt_portion *p) {
	for (uint32_t k = 0; k < p->n; k++) {
		int64_t found = pt_row_of(t, s, p->ids[k]);
		if (found >= 0 && pt_live(t, s, b, p->ids[k]) < 0) {
			pt_expire(t, s, p->ids[k]);
			found = -1;
		}
		uint32_t row = (uint32_t)found;
		if (found < 0 && p->state) {
			p->state[p->at[k]] = PT_MISSING;
			continue;
		}
		int rc = found < 0 ? pt_insert(t, s, b, p->ids[k], pt_hash(&t->c, p->ids[k]), &row) : PT_OK;
		if (rc)
			return rc;
		copy_row(t, s, b, p->at[k], row, 1);
		if (t->stamped) {
			int64_t stamp = pt_stamp_of(b, p->at[k]);
			*pt_stamp(t, s, row) = stamp;
			if (stamp < b->oldest)
				pt_expire(t, s, p->ids[k]);
		}
	}
	return PT_OK;
}

/* make makes the rows of those ids that have none. */
static int make(pt_table *t, pt_shard *s, pt_batch *b, const pt_portion *p) {
	for (uint32_t k = 0; k < p->n; k++) {
		uint32_t row;
		int rc = pt_row_of(t, s, p->ids[k]) < 0
					 ? pt_insert(t, s, b, p->ids[k], pt_hash(&t->c, p->ids[k]), &row)
					 : PT_OK;
		if (rc)
			return rc;
	}
	return PT_OK;
}

/* pull_missing copies the rows of the ids at some places of the batch. It makes rows that are
 * missing. */
static int pull_missing(pt_table *t, pt_batch *b, const uint32_t *places, uint32_t n) {
	size_t row_bytes = (size_t)t->c.dim * (b->dtype == PT_FLOAT32 ? 4 : 2);
	for (uint32_t k = 0; k < n; k++) {
		int64_t id = pt_id_at(b, places[k]);
		uint64_t hash = pt_hash(&t->c, id);
		pt_shard *s = &t->shard[pt_shard_of(hash)];
		pthread_rwlock_wrlock(&s->lock);
		int64_t found = pt_row_of(t, s, id);
		uint32_t row = (uint32_t)found;
		int rc = found < 0 ? pt_insert(t, s, b, id, hash, &row) : PT_OK;
		if (rc == PT_OK) {
			char *to = (char *)b->values + places[k] * row_bytes, *from = pt_row(t, s, row);
			if (b->dtype != t->c.dtype)
				convert(t, (uint16_t *)from, (float *)to, 0);
			else
				memcpy(to, from, row_bytes);
		}
		pthread_rwlock_unlock(&s->lock);
		if (rc)
			return rc;
	}
	return PT_OK;
}

/* shards_of returns the shards of some ids, as a set of bits. */
static uint64_t shards_of(const pt_table *t, const pt_batch *b, int64_t from, int64_t to) {
	uint64_t shards = 0;
	for (int64_t i = from; i < to; i++)
		shards |= 1ull << pt_shard_of(pt_hash(&t->c, pt_id_at(b, i)));
	return shards;
}

/* copy_there copies those rows of some ids that are there, lists the places of the others, and
 * returns how many these are. */
static uint32_t copy_there(pt_table *t, pt_batch *b, int64_t from, int64_t to, uint32_t *missing) {
	uint64_t shards = shards_of(t, b, from, to);
	for (uint64_t left = shards; left; left &= left - 1)
		pthread_rwlock_rdlock(&t->shard[__builtin_ctzll(left)].lock);
	uint32_t n = CHOOSE(pt_pull, t->c.isa)(t, b, (uint32_t)from, (uint32_t)to, missing);
	for (uint64_t left = shards; left; left &= left - 1)
		pthread_rwlock_unlock(&t->shard[__builtin_ctzll(left)].lock);
	return n;
}

int pt_pull(pt_table *t, pt_batch *b) {
	if (b->values == NULL)
		return alone(t, b, make);
	uint32_t *missing = b->scratch;
	int rc = PT_OK;
	for (int64_t from = 0; from < b->n && rc == PT_OK; from += PULLED) {
		int64_t to = b->n < from + PULLED ? b->n : from + PULLED;
		uint32_t n = copy_there(t, b, from, to, missing);
		rc = pull_missing(t, b, missing, n);
	}
	return rc;
}

int pt_look(pt_table *t, pt_batch *b, int zeros) {
	size_t row_bytes = (size_t)t->c.dim * (b->dtype == PT_FLOAT32 ? 4 : 2);
	uint32_t *missing = b->scratch;
	for (int64_t from = 0; from < b->n; from += PULLED) {
		int64_t to = b->n < from + PULLED ? b->n : from + PULLED;
		uint32_t n = copy_there(t, b, from, to, missing);
		for (uint32_t k = 0; k < n; k++) {
			char *out = (char *)b->values + missing[k] * row_bytes;
			if (zeros || t->c.initializer == PT_ZEROS)
				memset(out, 0, row_bytes);
			else
				pt_first_values(&t->c, pt_id_at(b, missing[k]), b->dtype, out);
		}
	}
	return PT_OK;
}

int pt_read(pt_table *t, pt_batch *b) {
	return alone(t, b, read_portion);
}

int pt_find(pt_table *t, pt_batch *b) {
	return alone(t, b, read_portion);
}

void pt_delta(float *now, const float *before, float parts, int64_t n) {
	for (int64_t i = 0; i < n; i++) {
		double d = ((double)now[i] - (double)before[i]) / (double)parts;
		float most = d > FLT_MAX ? FLT_MAX : d < -FLT_MAX ? -FLT_MAX : (float)d;
		now[i] = __builtin_isfinite(now[i]) && __builtin_isfinite(before[i]) ? most : (float)d;
	}
}

void pt_compensate(float *g, const float *row, const float *before, const uint8_t *there,
				   float *squares, float lambda, float decay, int64_t n, int64_t dim) {
	for (int64_t i = 0; i < n; i++, g += dim, row += dim, before += dim) {
		if (squares) {
			for (int64_t j = 0; j < dim; j++) {
				float mean = decay * squares[j] + (1 - decay) * (g[j] * g[j]);
				float by = lambda / (float)pt_square_root(mean + 1e-7f);
				if (there[i])
					g[j] += by * g[j] * g[j] * (row[j] - before[j]);
				squares[j] = mean;
			}
			squares += dim;
			continue;
		}
		if (!there[i])
			continue;
		for (int64_t j = 0; j < dim; j++)
			g[j] += lambda * g[j] * g[j] * (row[j] - before[j]);
	}
}

int pt_write(pt_table *t, pt_batch *b) {
	if (!t->stamped || b->n == 0)
		return alone(t, b, write_portion);
	pthread_rwlock_wrlock(&t->life);
	pt_sorted *s = pt_sort(t, b);
	const pt_portion scratch = {.work = s->work, .sum = s->sum};
	int rc = each_shard(t, b, s, &scratch, write_portion);
	if (rc == PT_OK) {
		pt_choose(t, b);
		rc = each_shard(t, b, s, &scratch, write_portion);
	}
	__atomic_sub_fetch(&t->claims, b->claims, __ATOMIC_RELAXED);
	b->claims = 0;
	pthread_rwlock_unlock(&t->life);
	return rc;
}

int64_t pt_ids(pt_table *t, int64_t *out, int64_t n, int64_t oldest) {
	int64_t rows = 0;
	for (int i = 0; i < PT_SHARDS; i++) {
		pt_shard *s = &t->shard[i];
		pthread_rwlock_rdlock(&s->lock);
		for (uint32_t k = 0; k < s->n_bins; k++) {
			const pt_bin *b = &s->bins[k];
			for (uint32_t l = 0; l < b->used; l++) {
				if (t->stamped && *pt_stamp(t, s, b->row[l]) < oldest)
					continue;
				if (rows < n)
					out[rows] = b->id[l];
				rows++;
			}
		}
		pthread_rwlock_unlock(&s->lock);
	}
	return rows;
}

static int read_states(pt_table *t, pt_shard *s, pt_batch *b, const pt_portion *p) {
	size_t floats = (size_t)t->state_bytes / sizeof(float);
	for (uint32_t k = 0; k < p->n; k++) {
		int64_t row = pt_live(t, s, b, p->ids[k]);
		float *to = b->states + p->at[k] * floats;
		if (row >= 0)
			memcpy(to, pt_state(t, s, (uint32_t)row), floats * sizeof(float));
		for (size_t i = 0; row < 0 && i < floats; i++)
			to[i] = t->c.initial_state;
	}
	return PT_OK;
}

int pt_read_states(pt_table *t, pt_batch *b) {
	return t->state_bytes ? alone(t, b, read_states) : PT_OK;
}

int pt_write_states(pt_table *t, pt_batch *b) {
	if (t->state_bytes == 0)
		return PT_OK;
	void *values = b->values;
	b->values = NULL; /* a write of states alone */
	int rc = pt_write(t, b);
	b->values = values;
	return rc;
}

/* What a batch does in one shard, for one instruction set. hot_*.c include it, after they have
 * defined
 *   TARGET               the function attribute
 *   FN(name)             the name of a function
 *   LANES                how many floats a vector has
 *   LANE(b, id)          the lane of an id in a bin of which all lanes may be compared, as a set of
 *                        bits
 *   ROOT(v)              the square root of a vec
 *   WIDEN16(to, p, bf)   writes the 16 16-bit floats at p as float32 to to
 *   NARROW16(p, from, bf)  the reverse
 * All of them do the same operations of float32 in the same order. A vec is one register: the
 * compiler keeps longer ones in memory. */
#include "table.h"

#include "../../reduce/float16.h"

#ifdef __clang__
#pragma STDC FP_CONTRACT OFF
#endif

#define INLINE static inline __attribute__((always_inline)) TARGET

typedef float vec __attribute__((vector_size(4 * LANES)));
typedef float vec_u __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t ivec __attribute__((vector_size(4 * LANES)));
typedef int32_t ivec_u __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

enum {
	BLOCK = 32,         /* ids that are searched before their rows are used */
	MOST_FETCHED = 512, /* bytes of a row that are fetched ahead; the processor goes on by itself */
	FETCHED = 4096      /* bytes of rows that are fetched ahead */
};

INLINE void FN(fetch)(const void *p, int64_t bytes) {
	for (int64_t at = 0; at < bytes && at < MOST_FETCHED; at += 64)
		__builtin_prefetch((const char *)p + at, 0, 3);
	__builtin_prefetch((const char *)p + (bytes < MOST_FETCHED ? bytes : MOST_FETCHED) - 1, 0, 3);
}

INLINE void FN(fetch_to_write)(const void *p, int64_t bytes) {
	for (int64_t at = 0; at < bytes && at < MOST_FETCHED; at += 64)
		__builtin_prefetch((const char *)p + at, 1, 3);
	__builtin_prefetch((const char *)p + (bytes < MOST_FETCHED ? bytes : MOST_FETCHED) - 1, 1, 3);
}

/* load reads a vector of a row, of which so many elements are left; a short one ends with zeros. */
INLINE vec FN(load)(const float *p, int64_t left) {
	if (__builtin_expect(left >= LANES, 1))
		return *(const vec_u *)p;
	float short_of[LANES] = {0};
	for (int64_t i = 0; i < left; i++)
		short_of[i] = p[i];
	return *(const vec_u *)short_of;
}

INLINE void FN(store)(float *p, vec v, int64_t left) {
	if (__builtin_expect(left >= LANES, 1)) {
		*(vec_u *)p = v;
		return;
	}
	float short_of[LANES];
	*(vec_u *)short_of = v;
	for (int64_t i = 0; i < left; i++)
		p[i] = short_of[i];
}

/* squares returns the sum of the squares: 16 sums, which are then added in a fixed order. */
INLINE float FN(squares)(const float *g, int64_t dim) {
	vec sum[16 / LANES] = {{0}};
	for (int64_t j = 0; j < dim; j += 16)
		for (int k = 0; k < 16 / LANES; k++) {
			const int64_t at = j + k * LANES;
			const vec v = FN(load)(g + at, dim - at);
			sum[k] += v * v;
		}
	float a[16];
	memcpy(a, sum, sizeof a);
	for (int half = 8; half > 0; half /= 2)
		for (int i = 0; i < half; i++)
			a[i] += a[i + half];
	return a[0];
}

INLINE void FN(widen)(float *to, const uint16_t *from, int64_t n, int bf16) {
	int64_t j = 0;
	for (; j + 16 <= n; j += 16)
		WIDEN16(to + j, from + j, bf16);
	for (; j < n; j++)
		to[j] = bf16 ? load_bf16(from[j]) : load_f16(from[j]);
}

INLINE void FN(narrow)(uint16_t *to, const float *from, int64_t n, int bf16) {
	int64_t j = 0;
	for (; j + 16 <= n; j += 16)
		NARROW16(to + j, from + j, bf16);
	for (; j < n; j++)
		to[j] = bf16 ? store_bf16(from[j]) : store_f16(from[j]);
}

INLINE float FN(root1)(float x) {
	const vec v = {x};
	return ROOT(v)[0];
}

#include "optimizers.h"

enum { NONE = UINT32_MAX };

/* locate returns the row of an id, or NONE. */
INLINE uint32_t FN(locate)(const pt_shard *s, int64_t id, uint64_t hash) {
	uint32_t n = s->n_bins;
	if (__builtin_expect(n == 0, 0))
		return NONE;
	for (uint32_t at = pt_bin_of(hash, n);;) {
		const pt_bin *b = &s->bins[at];
		uint32_t there = LANE(b, id) & ((1u << b->used) - 1);
		if (__builtin_expect(there != 0, 1))
			return b->row[__builtin_ctz(there)];
		if (b->used < PT_LANES)
			return NONE;
		at = at + 1 == n ? 0 : at + 1;
	}
}

INLINE void FN(copy)(char *to, const char *from, int64_t bytes) {
	int64_t at = 0;
	for (; at + 4 * LANES <= bytes; at += 4 * LANES)
		*(vec_u *)(to + at) = *(const vec_u *)(from + at);
	if (at < bytes)
		memcpy(to + at, from + at, (size_t)(bytes - at));
}

/* While the rows of one block are copied, those of the next are fetched, and the bins of the one
 * after that. */
INLINE uint32_t FN(pull)(pt_table *t, pt_batch *b, uint32_t from, uint32_t to, uint32_t *missing,
						 const int expires) {
	int64_t dim = t->c.dim, kept = t->c.dtype == PT_FLOAT32 ? 4 * dim : 2 * dim;
	int widens = b->dtype != t->c.dtype, bf16 = t->c.dtype == PT_BFLOAT16;
	int64_t given = widens ? 4 * dim : kept;
	const char *rows[2][BLOCK];
	const int64_t *stamps[2][BLOCK];
	struct {
		int64_t id;
		uint64_t hash;
	} next[2][BLOCK];
	uint32_t lost = 0;
	for (uint32_t i = from; i < to + 2 * BLOCK; i += BLOCK) {
		int even = i / BLOCK & 1;
		for (uint32_t k = 0; i + k < to && k < BLOCK; k++) {
			int64_t id = pt_id_at(b, i + k);
			uint64_t hash = pt_hash(&t->c, id);
			const pt_shard *s = &t->shard[pt_shard_of(hash)];
			next[even][k].id = id;
			next[even][k].hash = hash;
			__builtin_prefetch(s->bins + pt_bin_of(hash, s->n_bins));
		}
		if (i >= from + 2 * BLOCK) {
			uint32_t before = i - 2 * BLOCK;
			for (uint32_t k = 0; before + k < to && k < BLOCK; k++) {
				const char *row = rows[even][k];
				char *out = (char *)b->values + (int64_t)(before + k) * given;
				if (__builtin_expect(expires && row && *stamps[even][k] < b->oldest, 0))
					row = NULL;
				if (__builtin_expect(row == NULL, 0))
					missing[lost++] = before + k;
				else if (widens)
					FN(widen)((float *)out, (const uint16_t *)row, dim, bf16);
				else
					FN(copy)(out, row, kept);
			}
		}
		if (i >= from + BLOCK) {
			for (uint32_t k = 0; i - BLOCK + k < to && k < BLOCK; k++) {
				int64_t id = next[!even][k].id;
				uint64_t hash = next[!even][k].hash;
				const pt_shard *s = &t->shard[pt_shard_of(hash)];
				uint32_t row = FN(locate)(s, id, hash);
				rows[!even][k] = row == NONE ? NULL : pt_row(t, s, row);
				if (__builtin_expect(row != NONE, 1)) {
					FN(fetch)(rows[!even][k], kept);
					if (expires) {
						stamps[!even][k] = pt_stamp(t, s, row);
						__builtin_prefetch(stamps[!even][k]);
					}
				}
			}
		}
	}
	return lost;
}

/* A table whose rows stay needs no look at stamps. */
TARGET uint32_t FN(pt_pull)(pt_table *t, pt_batch *b, uint32_t from, uint32_t to,
							uint32_t *missing) {
	return t->c.expire_after ? FN(pull)(t, b, from, to, missing, 1)
							 : FN(pull)(t, b, from, to, missing, 0);
}

/* A unique id of a portion: its row, and the list of its places in order of appearance. */
typedef struct FN(chain) {
	uint32_t row, first, last;
} FN(chain);

/* chains lists the rows of a portion, each once. next leads from a place to the next one with the
 * same row. some says that places may be without a row: they are left out. table has room for a
 * power of 2 above twice the places. Returns how many rows there are. */
INLINE uint32_t FN(chains)(const uint32_t *rows, uint32_t n, FN(chain) * list, uint32_t *next,
						   uint32_t *table, const int some) {
	uint32_t bits = 1, found = 0;
	while ((1u << bits) < 2 * n)
		bits++;
	memset(table, 0, sizeof *table << bits);
	for (uint32_t k = 0; k < n; k++) {
		if (__builtin_expect(some && rows[k] == NONE, 0))
			continue;
		uint32_t at = rows[k] * 0x9e3779b9u >> (32 - bits);
		while (table[at] && list[table[at] - 1].row != rows[k])
			at = (at + 1) & ((1u << bits) - 1);
		next[k] = NONE;
		if (table[at]) {
			FN(chain) *c = &list[table[at] - 1];
			next[c->last] = k;
			c->last = k;
		} else {
			list[found] = (FN(chain)){rows[k], k, k};
			table[at] = ++found;
		}
	}
	return found;
}

/* merged returns the sum of the gradients of a chain, in sum if it has several or they are of 16
 * bits. */
INLINE const float *FN(merged)(const pt_batch *b, const pt_portion *p, const FN(chain) * c,
							   const uint32_t *next, uint32_t fetched, int64_t dim, float *sum) {
	if (b->dtype == PT_FLOAT32) {
		const float *values = b->values;
		const float *g = values + (int64_t)p->at[c->first] * dim;
		if (next[c->first] == NONE)
			return g;
		uint32_t k = next[c->first], ahead = k;
		for (uint32_t i = 0; i < fetched && ahead != NONE; i++)
			ahead = next[ahead];
		const float *h = values + (int64_t)p->at[k] * dim;
		for (int64_t j = 0; j < dim; j += LANES)
			*(vec *)(sum + j) = FN(load)(g + j, dim - j) + FN(load)(h + j, dim - j);
		while ((k = next[k]) != NONE) {
			if (ahead != NONE) {
				FN(fetch)(values + (int64_t)p->at[ahead] * dim, 4 * dim);
				ahead = next[ahead];
			}
			h = values + (int64_t)p->at[k] * dim;
			for (int64_t j = 0; j < dim; j += LANES)
				*(vec *)(sum + j) += FN(load)(h + j, dim - j);
		}
		return sum;
	}
	const uint16_t *values = b->values;
	int bf16 = b->dtype == PT_BFLOAT16;
	FN(widen)(sum, values + (int64_t)p->at[c->first] * dim, dim, bf16);
	for (uint32_t k = c->first; (k = next[k]) != NONE;)
		for (int64_t j = 0; j < dim; j++) {
			uint16_t h = values[(int64_t)p->at[k] * dim + j];
			sum[j] += bf16 ? load_bf16(h) : load_f16(h);
		}
	return sum;
}

/* used notes the use of a row, or removes one that is too old and returns 0: its places are
 * missing then. */
INLINE int FN(used)(pt_table *t, pt_shard *s, const pt_batch *b, const pt_portion *p,
					const FN(chain) * c, const uint32_t *next) {
	int64_t *stamp = pt_stamp(t, s, c->row);
	if (__builtin_expect(p->state && *stamp < b->oldest, 0)) {
		for (uint32_t k = c->first; k != NONE; k = next[k])
			p->state[p->at[k]] = PT_MISSING;
		pt_expire(t, s, p->ids[c->first]);
		return 0;
	}
	if (*stamp < b->now) /* another push may be further */
		*stamp = b->now;
	return 1;
}

INLINE int FN(push)(pt_table *t, pt_shard *s, pt_batch *b, const pt_portion *p, const int stamped) {
	uint32_t *rows = p->work, *next = rows + p->n, *table = next + p->n + 3 * p->n;
	FN(chain) *list = (FN(chain) *)(next + p->n);
	for (uint32_t i = 0; i < p->n + BLOCK; i++) {
		if (i < p->n && s->n_bins)
			__builtin_prefetch(&s->bins[pt_bin_of(pt_hash(&t->c, p->ids[i]), s->n_bins)]);
		if (i < BLOCK)
			continue;
		int64_t id = p->ids[i - BLOCK];
		uint64_t hash = pt_hash(&t->c, id);
		uint32_t row = FN(locate)(s, id, hash);
		if (__builtin_expect(row == NONE, 0)) {
			int rc = PT_OK;
			if (stamped && p->state)
				p->state[p->at[i - BLOCK]] = PT_MISSING;
			else
				rc = pt_insert(t, s, b, id, hash, &row);
			if (rc == PT_FULL) /* another push removed a row that pt_admit has seen */
				__atomic_add_fetch(&t->dropped, 1, __ATOMIC_RELAXED);
			else if (rc)
				return rc;
		}
		rows[i - BLOCK] = row;
	}
	uint32_t unique = FN(chains)(rows, p->n, list, next, table, stamped);
	int optimizer = b->step.adds ? PT_SGD : t->c.optimizer;
	int64_t dim = t->c.dim, kept = t->c.dtype == PT_FLOAT32 ? 4 * dim : 2 * dim;
	int64_t given = b->dtype == PT_FLOAT32 ? 4 * dim : 2 * dim, padded = (dim + 15) / 16 * 16;
	int64_t all = kept + given + t->state_bytes;
	uint32_t ahead = all * 16 <= FETCHED ? 16 : all * 4 >= FETCHED ? 4 : (uint32_t)(FETCHED / all);
	float *wide = p->sum + padded;
	int bf16 = t->c.dtype == PT_BFLOAT16;
	for (uint32_t u = 0; u < unique + ahead; u++) {
		if (u < unique) {
			const FN(chain) *c = &list[u];
			uint32_t k = c->first;
			for (uint32_t i = 0; i < ahead && k != NONE; i++, k = next[k])
				FN(fetch)((const char *)b->values + (int64_t)p->at[k] * given, given);
			FN(fetch_to_write)(pt_row(t, s, c->row), kept);
			if (t->state_bytes)
				FN(fetch_to_write)(pt_state(t, s, c->row), t->state_bytes);
			if (stamped)
				__builtin_prefetch(pt_stamp(t, s, c->row), 1, 3);
		}
		if (u < ahead)
			continue;
		const FN(chain) *c = &list[u - ahead];
		if (stamped && !FN(used)(t, s, b, p, c, next))
			continue;
		const float *g = FN(merged)(b, p, c, next, ahead, dim, p->sum);
		char *row = pt_row(t, s, c->row);
		float *state = pt_state(t, s, c->row);
		if (t->c.dtype == PT_FLOAT32) {
			FN(update)(optimizer, &b->step, (float *)row, state, g, p->sum, dim);
		} else {
			FN(widen)(wide, (const uint16_t *)row, dim, bf16);
			FN(update)(optimizer, &b->step, wide, state, g, p->sum, dim);
			FN(narrow)((uint16_t *)row, wide, dim, bf16);
		}
	}
	return PT_OK;
}

/* As with pulls. */
TARGET int FN(pt_push)(pt_table *t, pt_shard *s, pt_batch *b, const pt_portion *p) {
	return t->stamped ? FN(push)(t, s, b, p, 1) : FN(push)(t, s, b, p, 0);
}

/* A number is not finite if all bits of its exponent are set. */
TARGET int64_t FN(pt_finite)(const void *values, int dtype, int64_t n) {
	int64_t i = 0;
	if (dtype == PT_FLOAT32) {
		const uint32_t *v = values;
		enum { AT_ONCE = 16 * LANES };
		for (; i + AT_ONCE <= n; i += AT_ONCE) {
			ivec bad = {0};
			for (int j = 0; j < AT_ONCE; j += LANES)
				bad |= (*(const ivec_u *)(v + i + j) & 0x7f800000) == 0x7f800000;
			int32_t any[LANES], found = 0;
			memcpy(any, &bad, sizeof any);
			for (int j = 0; j < LANES; j++)
				found |= any[j];
			if (__builtin_expect(found, 0))
				break;
		}
		for (; i < n; i++)
			if ((v[i] & 0x7f800000) == 0x7f800000)
				return i;
		return -1;
	}
	const uint16_t *v = values, exponent = dtype == PT_BFLOAT16 ? 0x7f80 : 0x7c00;
	for (; i < n; i++)
		if ((v[i] & exponent) == exponent)
			return i;
	return -1;
}

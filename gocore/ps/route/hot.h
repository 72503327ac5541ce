/* What touches every element of a batch, for one instruction set. hot_*.c include it, after they
 * have defined
 *   TARGET             the function attribute
 *   FN(name)           the name of a function
 *   WIDEN16(v, p, bf)  reads the 16 16-bit floats at p into the v16 at v
 * All of them do the same operations of float32 in the same order. */
#include "../../reduce/float16.h"
#include "route.h"

#ifdef __clang__
#pragma STDC FP_CONTRACT OFF
#endif

#define INLINE static inline __attribute__((always_inline)) TARGET

typedef float v16 __attribute__((vector_size(64)));
typedef float v16u __attribute__((vector_size(64), aligned(4), may_alias));
typedef char c64u __attribute__((vector_size(64), aligned(1), may_alias));

enum {
	AHEAD = 4096,      /* bytes of rows that are fetched ahead */
	MOST_FETCHED = 512 /* bytes of one row that are; the processor goes on by itself */
};

/* ahead returns how many rows before its turn a row of so many bytes is fetched. */
INLINE int64_t FN(ahead)(int64_t bytes) {
	return bytes * 32 <= AHEAD ? 32 : bytes * 4 >= AHEAD ? 4 : AHEAD / bytes;
}

/* copy copies one row. Its end is copied by vectors that overlap. */
INLINE void FN(copy)(char *to, const char *from, int64_t bytes) {
	if (bytes >= 64) {
		for (int64_t at = 0; at + 64 < bytes; at += 64)
			*(c64u *)(to + at) = *(const c64u *)(from + at);
		*(c64u *)(to + bytes - 64) = *(const c64u *)(from + bytes - 64);
		return;
	}
#define TWICE(size)                                                                                \
	if (bytes >= size) {                                                                           \
		char a[size], b[size];                                                                     \
		memcpy(a, from, size), memcpy(b, from + bytes - size, size);                               \
		memcpy(to, a, size), memcpy(to + bytes - size, b, size);                                   \
		return;                                                                                    \
	}
	TWICE(32)
	TWICE(16)
	TWICE(8)
	TWICE(4)
	for (int64_t at = 0; at < bytes; at++)
		to[at] = from[at];
}

TARGET void FN(pr_gather)(char *out, const char *rows, int64_t row_bytes, const int32_t *inverse,
						  int64_t n) {
	const int64_t ahead = FN(ahead)(row_bytes);
	const int64_t fetched = row_bytes < MOST_FETCHED ? row_bytes : MOST_FETCHED;
	for (int64_t i = 0; i < n; i++) {
		if (i + ahead < n) {
			const char *next = rows + inverse[i + ahead] * row_bytes;
			for (int64_t at = 0; at < fetched; at += 64)
				__builtin_prefetch(next + at, 0, 3);
		}
		FN(copy)(out + i * row_bytes, rows + inverse[i] * row_bytes, row_bytes);
	}
}

/* add adds one row of gradients to a row of sums, or sets it. */
INLINE void FN(add)(float *sum, const char *row, int32_t dtype, int64_t dim, int set) {
	const float *f = (const float *)row;
	const uint16_t *h = (const uint16_t *)row;
	int64_t j = 0;
	for (; j + 16 <= dim; j += 16) {
		v16 v;
		if (dtype == PR_FLOAT32)
			v = *(const v16u *)(f + j);
		else
			WIDEN16(&v, h + j, dtype == PR_BFLOAT16);
		if (!set)
			v = *(const v16u *)(sum + j) + v;
		*(v16u *)(sum + j) = v;
	}
	for (; j < dim; j++) {
		float v = dtype == PR_FLOAT32    ? f[j]
				  : dtype == PR_BFLOAT16 ? load_bf16(h[j])
										 : load_f16(h[j]);
		sum[j] = set ? v : sum[j] + v;
	}
}

INLINE void FN(sum_of)(float *sums, const char *gradients, int32_t dtype, int64_t dim,
					   const int32_t *inverse, const uint8_t *first, int64_t n) {
	const int64_t given = dim * (dtype == PR_FLOAT32 ? 4 : 2), kept = dim * 4;
	const int64_t ahead = FN(ahead)(kept), fetched = kept < MOST_FETCHED ? kept : MOST_FETCHED;
	for (int64_t i = 0; i < n; i++) {
		if (i + ahead < n) {
			const char *next = (const char *)(sums + inverse[i + ahead] * dim);
			for (int64_t at = 0; at < fetched; at += 64)
				__builtin_prefetch(next + at, 1, 3);
		}
		float *sum = sums + inverse[i] * dim;
		if (first[i])
			FN(add)(sum, gradients + i * given, dtype, dim, 1);
		else
			FN(add)(sum, gradients + i * given, dtype, dim, 0);
	}
}

TARGET void FN(pr_sum)(float *sums, const void *gradients, int32_t dtype, int64_t dim,
					   const int32_t *inverse, const uint8_t *first, int64_t n) {
	if (dtype == PR_FLOAT32)
		FN(sum_of)(sums, gradients, PR_FLOAT32, dim, inverse, first, n);
	else if (dtype == PR_BFLOAT16)
		FN(sum_of)(sums, gradients, PR_BFLOAT16, dim, inverse, first, n);
	else
		FN(sum_of)(sums, gradients, PR_FLOAT16, dim, inverse, first, n);
}

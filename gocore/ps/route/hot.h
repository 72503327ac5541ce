/* What touches every element of a batch, for one instruction set. hot_*.c include it, after they
 * have defined
 *   TARGET           the function attribute
 *   FN(name)         the name of a function
 *   LANES            how many floats a vector has
 *   WIDEN(p, bf16)   reads the LANES 16-bit floats at p as a vec
 *   WIDEN4(p, bf16)  the same for 4, as a vec4
 * All of them do the same operations of float32 in the same order. */
#include "../../reduce/float16.h"
#include "route.h"

#ifdef __clang__
#pragma STDC FP_CONTRACT OFF
#endif

/* Copying of a row, and adding, is inlined for the lengths that are most common, as constants. */
#define INLINE static inline __attribute__((always_inline)) TARGET

typedef uint32_t bits_vec __attribute__((vector_size(4 * LANES)));
typedef float vec_u __attribute__((vector_size(4 * LANES), aligned(1), may_alias));
typedef uint32_t bits_vec4 __attribute__((vector_size(16)));
typedef int32_t ivec __attribute__((vector_size(4 * LANES)));
typedef int32_t ivec4 __attribute__((vector_size(16)));
typedef float vec4_u __attribute__((vector_size(16), aligned(1), may_alias));

enum {
	AHEAD = 8192,         /* bytes of rows that are fetched ahead */
	MOST_FETCHED = 512,   /* bytes of one row that are; the processor goes on by itself */
	EXPONENT = 0x7f800000 /* the bits that are all set in what is not finite */
};

/* ahead returns how many rows before its turn a row of so many bytes is fetched. */
INLINE int64_t FN(ahead)(int64_t bytes) {
	return bytes * 32 <= AHEAD ? 32 : bytes * 4 >= AHEAD ? 4 : AHEAD / bytes;
}

/* copy copies one row. Its end is copied by two vectors that overlap. */
INLINE void FN(copy)(char *to, const char *from, int64_t bytes) {
	const int64_t size = 4 * LANES;
	if (bytes >= size) {
		for (int64_t at = 0; at + size < bytes; at += size)
			*(vec_u *)(to + at) = *(const vec_u *)(from + at);
		*(vec_u *)(to + bytes - size) = *(const vec_u *)(from + bytes - size);
		return;
	}
#define TWICE(half)                                                                                \
	if (bytes >= half) {                                                                           \
		char a[half], b[half];                                                                     \
		memcpy(a, from, half), memcpy(b, from + bytes - half, half);                               \
		memcpy(to, a, half), memcpy(to + bytes - half, b, half);                                   \
		return;                                                                                    \
	}
	TWICE(32)
	TWICE(16)
	TWICE(8)
	TWICE(4)
#undef TWICE
	for (int64_t at = 0; at < bytes; at++)
		to[at] = from[at];
}

INLINE void FN(gather_of)(char *out, const char *rows, int64_t row_bytes, const int32_t *inverse,
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

TARGET void FN(pr_gather)(char *out, const char *rows, int64_t row_bytes, const int32_t *inverse,
						  int64_t n) {
	switch (row_bytes) {
	case 4:
		FN(gather_of)(out, rows, 4, inverse, n);
		break;
	case 8:
		FN(gather_of)(out, rows, 8, inverse, n);
		break;
	case 16:
		FN(gather_of)(out, rows, 16, inverse, n);
		break;
	case 32:
		FN(gather_of)(out, rows, 32, inverse, n);
		break;
	case 64:
		FN(gather_of)(out, rows, 64, inverse, n);
		break;
	default:
		FN(gather_of)(out, rows, row_bytes, inverse, n);
	}
}

INLINE void FN(widen_row)(float *out, const uint16_t *row, int bf16, int64_t dim) {
	int64_t j = 0;
	for (; j + LANES <= dim; j += LANES)
		*(vec_u *)(out + j) = WIDEN(row + j, bf16);
	for (; j + 4 <= dim; j += 4)
		*(vec4_u *)(out + j) = WIDEN4(row + j, bf16);
	for (; j < dim; j++)
		out[j] = bf16 ? load_bf16(row[j]) : load_f16(row[j]);
}

INLINE void FN(widen_of)(float *out, const uint16_t *rows, int bf16, int64_t dim,
						 const int32_t *inverse, int64_t n) {
	const int64_t ahead = FN(ahead)(2 * dim);
	const int64_t fetched = 2 * dim < MOST_FETCHED ? 2 * dim : MOST_FETCHED;
	for (int64_t i = 0; i < n; i++) {
		if (i + ahead < n) {
			const char *next = (const char *)(rows + inverse[i + ahead] * dim);
			for (int64_t at = 0; at < fetched; at += 64)
				__builtin_prefetch(next + at, 0, 3);
		}
		FN(widen_row)(out + i * dim, rows + inverse[i] * dim, bf16, dim);
	}
}

TARGET void FN(pr_widen)(float *out, const uint16_t *rows, int32_t dtype, int64_t dim,
						 const int32_t *inverse, int64_t n) {
	if (dtype == PR_BFLOAT16)
		FN(widen_of)(out, rows, 1, dim, inverse, n);
	else
		FN(widen_of)(out, rows, 0, dim, inverse, n);
}

/* What was seen of infinite and NaN sums, for vectors of each length: not 0 if there was one. */
typedef struct FN(seen) {
	ivec lanes;
	ivec4 four;
	uint32_t one;
} FN(seen);

/* add adds one row of gradients to a row of sums. The first one of its id is added to -0, which
 * changes no number: whether it is the first one, no processor can guess, so that is no branch. */
INLINE void FN(add)(float *sum, const char *row, int32_t dtype, int64_t dim, uint8_t first,
					FN(seen) * wrong) {
	const float *f = (const float *)row;
	const uint16_t *h = (const uint16_t *)row;
	const uint32_t keep = (uint32_t)first - 1, zero = (uint32_t)first << 31;
	int64_t j = 0;
#define ADD(lanes, type, bits_type, widen, seen)                                                   \
	for (; j + lanes <= dim; j += lanes) {                                                         \
		type before = (type)(((bits_type) * (const type *)(sum + j) & keep) | zero);               \
		if (dtype == PR_FLOAT32)                                                                   \
			before += *(const type *)(f + j);                                                      \
		else                                                                                       \
			before += widen(h + j, dtype == PR_BFLOAT16);                                          \
		*(type *)(sum + j) = before;                                                               \
		seen |= ((bits_type)before & EXPONENT) == EXPONENT;                                        \
	}
	ADD(LANES, vec_u, bits_vec, WIDEN, wrong->lanes)
	ADD(4, vec4_u, bits_vec4, WIDEN4, wrong->four)
#undef ADD
	for (; j < dim; j++) {
		const float before = from_bits((bits(sum[j]) & keep) | zero);
		sum[j] = before + (dtype == PR_FLOAT32    ? f[j]
						   : dtype == PR_BFLOAT16 ? load_bf16(h[j])
												  : load_f16(h[j]));
		wrong->one |= (bits(sum[j]) & EXPONENT) == EXPONENT;
	}
}

INLINE uint32_t FN(sum_of)(float *sums, const char *gradients, int32_t dtype, int64_t dim,
						   const int32_t *inverse, const uint8_t *first, int64_t n) {
	const int64_t given = dim * (dtype == PR_FLOAT32 ? 4 : 2), kept = dim * 4;
	const int64_t ahead = FN(ahead)(kept), fetched = kept < MOST_FETCHED ? kept : MOST_FETCHED;
	FN(seen) wrong = {{0}, {0}, 0};
	for (int64_t i = 0; i < n; i++) {
		if (i + ahead < n) {
			const char *next = (const char *)(sums + inverse[i + ahead] * dim);
			for (int64_t at = 0; at < fetched; at += 64)
				__builtin_prefetch(next + at, 1, 3);
		}
		FN(add)(sums + inverse[i] * dim, gradients + i * given, dtype, dim, first[i], &wrong);
	}
	for (int k = 0; k < LANES; k++)
		wrong.one |= (uint32_t)wrong.lanes[k];
	for (int k = 0; k < 4; k++)
		wrong.one |= (uint32_t)wrong.four[k];
	return wrong.one;
}

INLINE uint32_t FN(sum_by_dim)(float *sums, const char *gradients, int32_t dtype, int64_t dim,
							   const int32_t *inverse, const uint8_t *first, int64_t n) {
	switch (dim) {
	case 1:
		return FN(sum_of)(sums, gradients, dtype, 1, inverse, first, n);
	case 4:
		return FN(sum_of)(sums, gradients, dtype, 4, inverse, first, n);
	case 8:
		return FN(sum_of)(sums, gradients, dtype, 8, inverse, first, n);
	case 16:
		return FN(sum_of)(sums, gradients, dtype, 16, inverse, first, n);
	default:
		return FN(sum_of)(sums, gradients, dtype, dim, inverse, first, n);
	}
}

TARGET uint32_t FN(pr_sum)(float *sums, const void *gradients, int32_t dtype, int64_t dim,
						   const int32_t *inverse, const uint8_t *first, int64_t n) {
	if (dtype == PR_FLOAT32)
		return FN(sum_by_dim)(sums, gradients, PR_FLOAT32, dim, inverse, first, n);
	if (dtype == PR_BFLOAT16)
		return FN(sum_by_dim)(sums, gradients, PR_BFLOAT16, dim, inverse, first, n);
	return FN(sum_by_dim)(sums, gradients, PR_FLOAT16, dim, inverse, first, n);
}

// Atomic updates of elements. Each has the result that gocore/reduce/combine.c has: integers wrap,
// any byte other than 0 is true in a bool, 16-bit floats are combined in float32, NaN stays.
#define _GNU_SOURCE
#include "access.h"

#include "../primitives/words.h"

#include <string.h>

#include "../op/op_gen.h"
#include "../reduce/float16.h"

#define MIN2(a, b) ((a) < (b) || (a) != (a) ? (a) : (b))
#define MAX2(a, b) ((a) > (b) || (a) != (a) ? (a) : (b))

typedef void (*kernel)(char *at, int64_t step, const char *x, char *old, int64_t n);

// A kernel of elements of type T, whose bits are a W. The caller's elements need no alignment. GET
// makes a number of a W, PUT the opposite.
#define KERNEL(name, W, T, GET, PUT, expr)                                                         \
	static void name(char *at, int64_t step, const char *x, char *old, int64_t n) {                \
		for (int64_t i = 0; i < n; i++, at += step * (int64_t)sizeof(W)) {                         \
			W raw, now, was = __atomic_load_n((W *)at, __ATOMIC_RELAXED);                          \
			memcpy(&raw, x + i * (int64_t)sizeof(W), sizeof raw);                                  \
			T b = GET(raw);                                                                        \
			do {                                                                                   \
				T a = GET(was);                                                                    \
				now = PUT(expr);                                                                   \
			} while (!__atomic_compare_exchange_n((W *)at, &was, now, 1, __ATOMIC_ACQ_REL,         \
												  __ATOMIC_RELAXED));                              \
			if (old)                                                                               \
				memcpy(old + i * (int64_t)sizeof(W), &was, sizeof was);                            \
		}                                                                                          \
	}

// The processor has an instruction for these.
#define FETCH(name, W, fetch)                                                                      \
	static void name(char *at, int64_t step, const char *x, char *old, int64_t n) {                \
		for (int64_t i = 0; i < n; i++, at += step * (int64_t)sizeof(W)) {                         \
			W b;                                                                                   \
			memcpy(&b, x + i * (int64_t)sizeof(W), sizeof b);                                      \
			W was = fetch((W *)at, b, __ATOMIC_ACQ_REL);                                           \
			if (old)                                                                               \
				memcpy(old + i * (int64_t)sizeof(W), &was, sizeof was);                            \
		}                                                                                          \
	}

#define LOAD(name, W)                                                                              \
	static void name(char *at, int64_t step, const char *x, char *old, int64_t n) {                \
		(void)x;                                                                                   \
		for (int64_t i = 0; old && i < n; i++, at += step * (int64_t)sizeof(W)) {                  \
			W was = __atomic_load_n((W *)at, __ATOMIC_ACQUIRE);                                    \
			memcpy(old + i * (int64_t)sizeof(W), &was, sizeof was);                                \
		}                                                                                          \
	}

#define SAME(v) (v)

#define BITS(W, n)                                                                                 \
	FETCH(replace##n, W, __atomic_exchange_n)                                                      \
	LOAD(load##n, W)                                                                               \
	FETCH(sum##n, W, __atomic_fetch_add)                                                           \
	FETCH(and##n, W, __atomic_fetch_and)                                                           \
	FETCH(or##n, W, __atomic_fetch_or)                                                             \
	FETCH(xor##n, W, __atomic_fetch_xor)                                                           \
	KERNEL(land##n, W, W, SAME, (W), a != 0 && b != 0)                                             \
	KERNEL(lor##n, W, W, SAME, (W), a != 0 || b != 0)                                              \
	KERNEL(lxor##n, W, W, SAME, (W), (a != 0) != (b != 0))

BITS(uint8_t, 8)
BITS(uint16_t, 16)
BITS(uint32_t, 32)
BITS(uint64_t, 64)

// Products are made in an unsigned type no narrower than int, in which wrapping is defined.
#define INTEGER(name, W, T, U)                                                                     \
	KERNEL(product_##name, W, T, (T), (W), (U)a *(U)b)                                             \
	KERNEL(min_##name, W, T, (T), (W), a < b ? a : b)                                              \
	KERNEL(max_##name, W, T, (T), (W), a > b ? a : b)

INTEGER(i8, uint8_t, int8_t, uint32_t)
INTEGER(u8, uint8_t, uint8_t, uint32_t)
INTEGER(i16, uint16_t, int16_t, uint32_t)
INTEGER(u16, uint16_t, uint16_t, uint32_t)
INTEGER(i32, uint32_t, int32_t, uint32_t)
INTEGER(u32, uint32_t, uint32_t, uint32_t)
INTEGER(i64, uint64_t, int64_t, uint64_t)
INTEGER(u64, uint64_t, uint64_t, uint64_t)

static inline double double_of(uint64_t w) {
	double d;
	memcpy(&d, &w, sizeof d);
	return d;
}

static inline uint64_t bits_of_double(double d) {
	uint64_t w;
	memcpy(&w, &d, sizeof w);
	return w;
}

#define FLOATING(name, W, T, GET, PUT)                                                             \
	KERNEL(sum_##name, W, T, GET, PUT, a + b)                                                      \
	KERNEL(product_##name, W, T, GET, PUT, a *b)                                                   \
	KERNEL(min_##name, W, T, GET, PUT, MIN2(a, b))                                                 \
	KERNEL(max_##name, W, T, GET, PUT, MAX2(a, b))

FLOATING(f32, uint32_t, float, from_bits, bits)
FLOATING(f64, uint64_t, double, double_of, bits_of_double)
FLOATING(f16, uint16_t, float, load_f16, store_f16)
FLOATING(bf16, uint16_t, float, load_bf16, store_bf16)

typedef struct {
	float re, im;
} complex64;

static inline complex64 complex_of(uint64_t w) {
	complex64 c;
	memcpy(&c, &w, sizeof c);
	return c;
}

static inline uint64_t bits_of_complex(complex64 c) {
	uint64_t w;
	memcpy(&w, &c, sizeof w);
	return w;
}

static inline complex64 complex_sum(complex64 a, complex64 b) {
	return (complex64){a.re + b.re, a.im + b.im};
}

static inline complex64 complex_product(complex64 a, complex64 b) {
	return (complex64){a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}

KERNEL(sum_c64, uint64_t, complex64, complex_of, bits_of_complex, complex_sum(a, b))
KERNEL(product_c64, uint64_t, complex64, complex_of, bits_of_complex, complex_product(a, b))

// Under a lock. An element that is copied in the meantime may have parts of two states.
#define WIDE(name, change)                                                                         \
	static void name(char *at, int64_t step, const char *x, char *old, int64_t n) {                \
		for (int64_t i = 0; i < n; i++, at += step * 16) {                                         \
			double a[2], b[2];                                                                     \
			memcpy(a, at, sizeof a);                                                               \
			if (old)                                                                               \
				memcpy(old + i * 16, a, sizeof a);                                                 \
			if (x) {                                                                               \
				memcpy(b, x + i * 16, sizeof b);                                                   \
				change;                                                                            \
				memcpy(at, a, sizeof a);                                                           \
			}                                                                                      \
		}                                                                                          \
	}

WIDE(sum_c128, (a[0] += b[0], a[1] += b[1]))
WIDE(product_c128, {
	double re = a[0] * b[0] - a[1] * b[1];
	a[1] = a[0] * b[1] + a[1] * b[0];
	a[0] = re;
})
WIDE(replace128, memcpy(a, b, sizeof a))

// The rows: by what an element is combined. Row 0 is of no dtype.
enum { ROWS = 12 };

static int row_of(int32_t reduce) {
	if (reduce >= OP_REDUCE_SUM && reduce <= OP_REDUCE_MAX)
		return reduce - OP_REDUCE_SUM;
	if (reduce >= OP_REDUCE_BAND && reduce <= OP_REDUCE_BXOR)
		return 4 + reduce - OP_REDUCE_BAND;
	if (reduce >= PW_REPLACE && reduce <= PW_LXOR)
		return 7 + reduce - PW_REPLACE;
	return ROWS;
}

//                  SUM PRODUCT MIN MAX BAND BOR BXOR REPLACE NO_OP LAND LOR LXOR
#define MOVES(n)   replace##n, load##n
#define LOGICAL(n) land##n, lor##n, lxor##n
#define INT(t, n)                                                                                  \
	{sum##n, product_##t, min_##t, max_##t, and##n, or##n, xor##n, MOVES(n), LOGICAL(n)}
#define FLOAT(t, n) {sum_##t, product_##t, min_##t, max_##t, 0, 0, 0, MOVES(n)}
#define BYTES(n)    {0, 0, 0, 0, 0, 0, 0, MOVES(n)}

static const kernel kernels[][ROWS + 1] = {
	[OP_BOOL] = {lor8, land8, land8, lor8, land8, lor8, lxor8, MOVES(8), LOGICAL(8)},
	[OP_INT8] = INT(i8, 8),
	[OP_UINT8] = INT(u8, 8),
	[OP_INT16] = INT(i16, 16),
	[OP_UINT16] = INT(u16, 16),
	[OP_INT32] = INT(i32, 32),
	[OP_UINT32] = INT(u32, 32),
	[OP_INT64] = INT(i64, 64),
	[OP_UINT64] = INT(u64, 64),
	[OP_FLOAT16] = FLOAT(f16, 16),
	[OP_BFLOAT16] = FLOAT(bf16, 16),
	[OP_FLOAT32] = FLOAT(f32, 32),
	[OP_FLOAT64] = FLOAT(f64, 64),
	[OP_COMPLEX64] = {sum_c64, product_c64, 0, 0, 0, 0, 0, MOVES(64)},
	[OP_COMPLEX128] = {sum_c128, product_c128, 0, 0, 0, 0, 0, replace128, replace128},
	[OP_FLOAT8_E4M3FN] = BYTES(8),
	[OP_FLOAT8_E5M2] = BYTES(8),
	[OP_FLOAT8_E4M3FNUZ] = BYTES(8),
	[OP_FLOAT8_E5M2FNUZ] = BYTES(8),
	[OP_FLOAT8_E8M0FNU] = BYTES(8),
};

static kernel kernel_of(int32_t dtype, int32_t reduce) {
	if (dtype <= 0 || dtype >= (int32_t)(sizeof kernels / sizeof kernels[0]))
		return 0;
	return kernels[dtype][row_of(reduce)];
}

int pw_defined(int32_t dtype, int32_t reduce) {
	return kernel_of(dtype, reduce) != 0;
}

// So many elements are changed while the lock is held once: others wait for a short time only.
enum { WIDE_AT_ONCE = 1024 };

static int take(pw_control *c, uint32_t holder) {
	return sw_lock32(&c->wide, holder);
}

static void give(pw_control *c) {
	sw_write32(&c->wide, 0);
}

int64_t pw_combine(pw_control *c, uint32_t holder, int32_t dtype, int32_t reduce, char *at,
				   int64_t step, const char *x, char *old, int64_t n) {
	kernel f = kernel_of(dtype, reduce);
	if (f == 0)
		return -1;
	if (reduce == PW_NO_OP)
		x = 0;
	if (dtype != OP_COMPLEX128) {
		f(at, step, x, old, n);
		return n;
	}
	for (int64_t done = 0; done < n;) {
		int64_t some = n - done < WIDE_AT_ONCE ? n - done : WIDE_AT_ONCE;
		if (!take(c, holder))
			return done;
		f(at + done * step * 16, step, x ? x + done * 16 : 0, old ? old + done * 16 : 0, some);
		give(c);
		done += some;
	}
	return n;
}

#define SWAP(W)                                                                                    \
	{                                                                                              \
		W was, now;                                                                                \
		memcpy(&was, expected, sizeof was);                                                        \
		memcpy(&now, value, sizeof now);                                                           \
		__atomic_compare_exchange_n((W *)at, &was, now, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);    \
		memcpy(old, &was, sizeof was);                                                             \
		return 1;                                                                                  \
	}

int pw_swap(pw_control *c, uint32_t holder, int32_t itemsize, char *at, const char *expected,
			const char *value, char *old) {
	switch (itemsize) {
	case 1:
		SWAP(uint8_t)
	case 2:
		SWAP(uint16_t)
	case 4:
		SWAP(uint32_t)
	case 8:
		SWAP(uint64_t)
	}
	if (!take(c, holder))
		return 0;
	char was[16];
	memcpy(was, at, sizeof was);
	if (memcmp(was, expected, sizeof was) == 0)
		memcpy(at, value, sizeof was);
	memcpy(old, was, sizeof was);
	give(c);
	return 1;
}

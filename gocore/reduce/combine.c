// Two-operand reductions of every type except the 16-bit floats, and scaling.
#include "kernels.h"

#define MIN2(a, b) ((a) < (b) || (a) != (a) ? (a) : (b))
#define MAX2(a, b) ((a) > (b) || (a) != (a) ? (a) : (b))

#define CASE(name, expr)                                                                           \
	case PMPI_K_##name:                                                                            \
		for (int64_t i = 0; i < n; i++) {                                                          \
			T a = d[i], b = s[i];                                                                  \
			d[i] = (T)(expr);                                                                      \
		}                                                                                          \
		return 0;

// Sums and products of integers are computed in an unsigned type no narrower than int, in which
// wrapping is defined.
#define DEFINE_INT(name, type, utype)                                                              \
	static int name(void *dst, const void *src, int64_t n, int op) {                               \
		typedef type T;                                                                            \
		typedef utype U;                                                                           \
		T *d = dst;                                                                                \
		const T *s = src;                                                                          \
		switch (op) {                                                                              \
			CASE(SUM, (U)a + (U)b)                                                                 \
			CASE(PRODUCT, (U)a * (U)b)                                                             \
			CASE(MIN, a < b ? a : b)                                                               \
			CASE(MAX, a > b ? a : b)                                                               \
			CASE(AND, a & b)                                                                       \
			CASE(OR, a | b)                                                                        \
			CASE(XOR, a ^ b)                                                                       \
		}                                                                                          \
		return -1;                                                                                 \
	}

DEFINE_INT(combine_i8, int8_t, uint32_t)
DEFINE_INT(combine_u8, uint8_t, uint32_t)
DEFINE_INT(combine_i16, int16_t, uint32_t)
DEFINE_INT(combine_u16, uint16_t, uint32_t)
DEFINE_INT(combine_i32, int32_t, uint32_t)
DEFINE_INT(combine_u32, uint32_t, uint32_t)
DEFINE_INT(combine_i64, int64_t, uint64_t)
DEFINE_INT(combine_u64, uint64_t, uint64_t)

#define DEFINE_FLOAT(name, type)                                                                   \
	static int name(void *dst, const void *src, int64_t n, int op) {                               \
		typedef type T;                                                                            \
		T *d = dst;                                                                                \
		const T *s = src;                                                                          \
		switch (op) {                                                                              \
			CASE(SUM, a + b)                                                                       \
			CASE(PRODUCT, a * b)                                                                   \
			CASE(MIN, MIN2(a, b))                                                                  \
			CASE(MAX, MAX2(a, b))                                                                  \
		}                                                                                          \
		return -1;                                                                                 \
	}

DEFINE_FLOAT(combine_f32, float)
DEFINE_FLOAT(combine_f64, double)

// The textbook product, as in NumPy: it does not recover infinities.
#define DEFINE_COMPLEX(name, type, combine_real)                                                   \
	static int name(void *dst, const void *src, int64_t n, int op) {                               \
		if (op == PMPI_K_SUM)                                                                      \
			return combine_real(dst, src, 2 * n, op);                                              \
		if (op != PMPI_K_PRODUCT)                                                                  \
			return -1;                                                                             \
		type *d = dst;                                                                             \
		const type *s = src;                                                                       \
		for (int64_t i = 0; i < 2 * n; i += 2) {                                                   \
			type re = d[i] * s[i] - d[i + 1] * s[i + 1];                                           \
			type im = d[i] * s[i + 1] + d[i + 1] * s[i];                                           \
			d[i] = re;                                                                             \
			d[i + 1] = im;                                                                         \
		}                                                                                          \
		return 0;                                                                                  \
	}

DEFINE_COMPLEX(combine_c64, float, combine_f32)
DEFINE_COMPLEX(combine_c128, double, combine_f64)

// Any byte other than 0 is true. The result is 0 or 1.
static int combine_bool(void *dst, const void *src, int64_t n, int op) {
	typedef uint8_t T;
	T *d = dst;
	const T *s = src;
	switch (op) {
	case PMPI_K_SUM:
	case PMPI_K_MAX:
		CASE(OR, (a | b) != 0)
	case PMPI_K_PRODUCT:
	case PMPI_K_MIN:
		CASE(AND, (a != 0) & (b != 0))
		CASE(XOR, (a != 0) ^ (b != 0))
	}
	return -1;
}

int pmpi_combine(void *dst, const void *src, int64_t n, int type, int op) {
	static int (*const table[])(void *, const void *, int64_t, int) = {
		[PMPI_T_BOOL] = combine_bool, [PMPI_T_I8] = combine_i8,   [PMPI_T_U8] = combine_u8,
		[PMPI_T_I16] = combine_i16,   [PMPI_T_U16] = combine_u16, [PMPI_T_I32] = combine_i32,
		[PMPI_T_U32] = combine_u32,   [PMPI_T_I64] = combine_i64, [PMPI_T_U64] = combine_u64,
		[PMPI_T_F32] = combine_f32,   [PMPI_T_F64] = combine_f64, [PMPI_T_C64] = combine_c64,
		[PMPI_T_C128] = combine_c128,
	};
	return table[type](dst, src, n, op);
}

#define DIVIDE(name, type)                                                                         \
	case PMPI_T_##name:                                                                            \
		for (int64_t i = 0; i < n; i++)                                                            \
			((type *)p)[i] = (type)(((type *)p)[i] / by);                                          \
		return 0;

int pmpi_divide(void *p, int64_t n, int type, int by) {
	switch (type) {
		DIVIDE(I8, int8_t)
		DIVIDE(U8, uint8_t)
		DIVIDE(I16, int16_t)
		DIVIDE(U16, uint16_t)
		DIVIDE(I32, int32_t)
		DIVIDE(U32, uint32_t)
		DIVIDE(I64, int64_t)
		DIVIDE(U64, uint64_t)
	}
	return -1;
}

void pmpi_scale32(float *dst, const float *src, int64_t n, float factor) {
	for (int64_t i = 0; i < n; i++)
		dst[i] = src[i] * factor;
}

void pmpi_scale64(double *dst, const double *src, int64_t n, double factor) {
	for (int64_t i = 0; i < n; i++)
		dst[i] = src[i] * factor;
}

void pmpi_div32(float *dst, const float *src, int64_t n, float by) {
	for (int64_t i = 0; i < n; i++)
		dst[i] = src[i] / by;
}

void pmpi_div64(double *dst, const double *src, int64_t n, double by) {
	for (int64_t i = 0; i < n; i++)
		dst[i] = src[i] / by;
}

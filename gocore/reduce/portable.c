// The kernels for every processor: plain C without branches in the loops, so that the compiler
// turns them into SSE2 or NEON.
#include "float16.h"
#include "kernels.h"

// As MINPS and MAXPS, these return the second operand if neither is smaller (or larger). In
// addition they keep a NaN in a.
#define MIN2(a, b) ((a) < (b) || (a) != (a) ? (a) : (b))
#define MAX2(a, b) ((a) > (b) || (a) != (a) ? (a) : (b))

// A block of float32 accumulators that fits into L1 together with a block of a source.
enum { BLOCK = 1024 };

#define EACH(stmt)                                                                                 \
	for (int64_t i = 0; i < m; i++) {                                                              \
		float a = acc[i], b = LOAD(s[i]);                                                          \
		acc[i] = (stmt);                                                                           \
	}

#define DEFINE_BLOCK(name, type, result)                                                           \
	static void name(const pmpi_floats *k, int64_t at, int64_t m) {                                \
		float acc[BLOCK];                                                                          \
		const type *s = (const type *)k->srcs[0] + at;                                             \
		for (int64_t i = 0; i < m; i++)                                                            \
			acc[i] = LOAD(s[i]);                                                                   \
		if (k->scales)                                                                             \
			for (int64_t i = 0; i < m; i++)                                                        \
				acc[i] *= k->scales[0];                                                            \
		for (int32_t r = 1; r < k->nsrc; r++) {                                                    \
			s = (const type *)k->srcs[r] + at;                                                     \
			switch (k->op) {                                                                       \
			case PMPI_K_SUM:                                                                       \
				if (k->scales) {                                                                   \
					float f = k->scales[r];                                                        \
					EACH(a + b * f)                                                                \
				} else {                                                                           \
					EACH(a + b)                                                                    \
				}                                                                                  \
				break;                                                                             \
			case PMPI_K_PRODUCT:                                                                   \
				EACH(a * b)                                                                        \
				break;                                                                             \
			case PMPI_K_MIN:                                                                       \
				EACH(MIN2(a, b))                                                                   \
				break;                                                                             \
			case PMPI_K_MAX:                                                                       \
				EACH(MAX2(a, b))                                                                   \
				break;                                                                             \
			}                                                                                      \
		}                                                                                          \
		if (k->divisor != 1.0f)                                                                    \
			for (int64_t i = 0; i < m; i++)                                                        \
				acc[i] /= k->divisor;                                                              \
		for (int32_t t = 0; t < k->ndst; t++) {                                                    \
			result *d = (result *)k->dsts[t] + at;                                                 \
			for (int64_t i = 0; i < m; i++)                                                        \
				d[i] = STORE(acc[i]);                                                              \
		}                                                                                          \
	}

// The blocks are named after the type of the sources and that of the results.
#define SAME(x) (x)

#define LOAD  load_bf16
#define STORE store_bf16
DEFINE_BLOCK(block_bf16_bf16, uint16_t, uint16_t)
#undef STORE
#define STORE SAME
DEFINE_BLOCK(block_bf16_f32, uint16_t, float)
#undef LOAD
#define LOAD load_f16
DEFINE_BLOCK(block_f16_f32, uint16_t, float)
#undef STORE
#define STORE store_f16
DEFINE_BLOCK(block_f16_f16, uint16_t, uint16_t)
#undef LOAD
#define LOAD SAME
DEFINE_BLOCK(block_f32_f16, float, uint16_t)
#undef STORE
#define STORE store_bf16
DEFINE_BLOCK(block_f32_bf16, float, uint16_t)
#undef STORE
#define STORE SAME
DEFINE_BLOCK(block_f32_f32, float, float)

typedef void (*block_of)(const pmpi_floats *k, int64_t at, int64_t m);

static block_of block_for(const pmpi_floats *k) {
	const int wide = k->out == PMPI_T_F32;
	switch (k->type) {
	case PMPI_T_BF16:
		return wide ? block_bf16_f32 : block_bf16_bf16;
	case PMPI_T_F16:
		return wide ? block_f16_f32 : block_f16_f16;
	}
	return wide ? block_f32_f32 : k->out == PMPI_T_BF16 ? block_f32_bf16 : block_f32_f16;
}

int64_t pmpi_floats_portable(const pmpi_floats *k, int64_t start) {
	const block_of block = block_for(k);
	for (int64_t at = start; at < k->n; at += BLOCK)
		block(k, at, k->n - at < BLOCK ? k->n - at : BLOCK);
	return k->n;
}

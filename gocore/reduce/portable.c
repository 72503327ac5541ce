// The kernels for every processor: plain C without branches in the loops, so that the compiler
// turns them into SSE2 or NEON.
#include "kernels.h"

#include <string.h>

static inline uint32_t bits(float f) {
	uint32_t u;
	memcpy(&u, &f, sizeof u);
	return u;
}

static inline float from_bits(uint32_t u) {
	float f;
	memcpy(&f, &u, sizeof f);
	return f;
}

// A selection without a branch. Compilers always vectorise it, but they may not vectorise a branch
// around floating-point arithmetic.
static inline uint32_t choose(int condition, uint32_t yes, uint32_t no) {
	uint32_t mask = 0u - (uint32_t)condition;
	return (yes & mask) | (no & ~mask);
}

static inline float load_bf16(uint16_t h) {
	return from_bits((uint32_t)h << 16);
}

static inline uint16_t store_bf16(float f) {
	uint32_t u = bits(f);
	uint32_t r = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
	return (uint16_t)choose(f != f, 0x7fc0, r);
}

#ifdef __aarch64__

static inline float load_f16(uint16_t h) {
	__fp16 v;
	memcpy(&v, &h, sizeof v);
	return (float)v;
}

static inline uint16_t store_f16(float f) {
	__fp16 v = (__fp16)f;
	uint16_t h;
	memcpy(&h, &v, sizeof h);
	return (uint16_t)choose(f != f, 0x7e00, h);
}

#else

static inline float load_f16(uint16_t h) {
	uint32_t sign = (uint32_t)(h & 0x8000) << 16;
	uint32_t em = (uint32_t)(h & 0x7fff) << 13;
	uint32_t normal = em + (112u << 23);
	uint32_t special = em | 0x7f800000;
	// A subnormal becomes the fraction of a normal number, from which its leading one is
	// subtracted. This is exact, and no operand is a float32 subnormal.
	uint32_t subnormal = bits(from_bits(em + (113u << 23)) - from_bits(113u << 23));
	uint32_t r = choose(em >= 0x0f800000, special, choose(em < 0x00800000, subnormal, normal));
	return from_bits(r | sign);
}

static inline uint16_t store_f16(float f) {
	uint32_t u = bits(f);
	uint32_t sign = (u >> 16) & 0x8000;
	u &= 0x7fffffff;
	uint32_t normal = (u - (112u << 23) + 0xfff + ((u >> 13) & 1)) >> 13;
	// Adding 0.5 moves the last bit of a float16 subnormal to the last bit of the float32, so the
	// addition rounds to nearest even.
	uint32_t subnormal = bits(from_bits(u) + 0.5f) - bits(0.5f);
	uint32_t r = choose(u < 0x38800000, subnormal, choose(u >= 0x47800000, 0x7c00, normal));
	return (uint16_t)choose(u > 0x7f800000, 0x7e00, r | sign);
}

#endif

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

#define DEFINE_BLOCK(name)                                                                         \
	static void name(const pmpi_k16 *k, int64_t at, int64_t m) {                                   \
		float acc[BLOCK];                                                                          \
		const uint16_t *s = k->srcs[0] + at;                                                       \
		for (int64_t i = 0; i < m; i++)                                                            \
			acc[i] = LOAD(s[i]);                                                                   \
		if (k->scales)                                                                             \
			for (int64_t i = 0; i < m; i++)                                                        \
				acc[i] *= k->scales[0];                                                            \
		for (int32_t r = 1; r < k->nsrc; r++) {                                                    \
			s = k->srcs[r] + at;                                                                   \
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
		uint16_t *d = k->dst + at;                                                                 \
		for (int64_t i = 0; i < m; i++)                                                            \
			d[i] = STORE(acc[i]);                                                                  \
	}

#define LOAD  load_bf16
#define STORE store_bf16
DEFINE_BLOCK(block_bf16)
#undef LOAD
#undef STORE
#define LOAD  load_f16
#define STORE store_f16
DEFINE_BLOCK(block_f16)

int64_t pmpi_reduce16_portable(const pmpi_k16 *k, int64_t start) {
	for (int64_t at = start; at < k->n; at += BLOCK) {
		int64_t m = k->n - at < BLOCK ? k->n - at : BLOCK;
		if (k->bf16)
			block_bf16(k, at, m);
		else
			block_f16(k, at, m);
	}
	return k->n;
}

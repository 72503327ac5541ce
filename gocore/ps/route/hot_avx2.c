#ifdef __x86_64__

#include <immintrin.h>
#include <stdint.h>

#define TARGET         __attribute__((target("avx2,f16c")))
#define FN(name)       name##_avx2
#define LANES          8
#define WIDEN(p, bf16) widen(p, bf16)

static inline __attribute__((always_inline)) TARGET __m256 widen(const uint16_t *p, int bf16) {
	__m128i h = _mm_loadu_si128((const __m128i *)p);
	return bf16 ? _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16))
				: _mm256_cvtph_ps(h);
}

#include "widen4.h"
#include "hot.h"

#else

#include "route.h"

/* Never chosen on this processor. */
void pr_gather_avx2(char *out, const char *rows, int64_t row_bytes, const int32_t *inverse,
					int64_t n) {
	pr_gather_portable(out, rows, row_bytes, inverse, n);
}

void pr_widen_avx2(float *out, const uint16_t *rows, int32_t dtype, int64_t dim,
				   const int32_t *inverse, int64_t n) {
	pr_widen_portable(out, rows, dtype, dim, inverse, n);
}

uint32_t pr_sum_avx2(float *sums, const void *gradients, int32_t dtype, int64_t dim,
					 const int32_t *inverse, const uint8_t *first, int64_t n) {
	return pr_sum_portable(sums, gradients, dtype, dim, inverse, first, n);
}

#endif

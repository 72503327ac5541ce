#ifdef __x86_64__

#include <immintrin.h>
#include <stdint.h>

#define TARGET         __attribute__((target("avx512f,f16c")))
#define FN(name)       name##_avx512
#define LANES          16
#define WIDEN(p, bf16) widen(p, bf16)

static inline __attribute__((always_inline)) TARGET __m512 widen(const uint16_t *p, int bf16) {
	__m256i h = _mm256_loadu_si256((const __m256i *)p);
	return bf16 ? _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16))
				: _mm512_cvtph_ps(h);
}

#include "widen4.h"
#include "hot.h"

#else

#include "route.h"

/* Never chosen on this processor. */
void pr_gather_avx512(char *out, const char *rows, int64_t row_bytes, const int32_t *inverse,
					  int64_t n) {
	pr_gather_portable(out, rows, row_bytes, inverse, n);
}

void pr_widen_avx512(float *out, const uint16_t *rows, int32_t dtype, int64_t dim,
					 const int32_t *inverse, int64_t n) {
	pr_widen_portable(out, rows, dtype, dim, inverse, n);
}

uint32_t pr_sum_avx512(float *sums, const void *gradients, int32_t dtype, int64_t dim,
					   const int32_t *inverse, const uint8_t *first, int64_t n) {
	return pr_sum_portable(sums, gradients, dtype, dim, inverse, first, n);
}

#endif

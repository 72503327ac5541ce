#ifdef __x86_64__

#include <immintrin.h>

#define TARGET     __attribute__((target("avx512f")))
#define FN(name)   name##_avx512
#define LOAD256(p) _mm256_loadu_si256((const __m256i *)(p))
#define WIDEN16(v, p, bf16)                                                                        \
	(*(v) = (bf16) ? (v16)_mm512_castsi512_ps(                                                     \
						 _mm512_slli_epi32(_mm512_cvtepu16_epi32(LOAD256(p)), 16))                 \
				   : (v16)_mm512_cvtph_ps(LOAD256(p)))

#include "hot.h"

#else

#include "route.h"

/* Never chosen on this processor. */
void pr_gather_avx512(char *out, const char *rows, int64_t row_bytes, const int32_t *inverse,
					  int64_t n) {
	pr_gather_portable(out, rows, row_bytes, inverse, n);
}

void pr_sum_avx512(float *sums, const void *gradients, int32_t dtype, int64_t dim,
				   const int32_t *inverse, const uint8_t *first, int64_t n) {
	pr_sum_portable(sums, gradients, dtype, dim, inverse, first, n);
}

#endif

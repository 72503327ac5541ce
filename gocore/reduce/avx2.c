#include "kernels.h"

#ifdef __x86_64__

#include <immintrin.h>

#define TARGET   __attribute__((target("avx2,f16c")))
#define FN(name) name##_avx2
#define VF       __m256
#define VW       8

static inline __attribute__((always_inline)) TARGET void narrow_avx2(uint16_t *p, __m256 v) {
	// Round to nearest even in integers. A NaN is canonical already, and stays so.
	__m256i u = _mm256_castps_si256(v);
	__m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
	u = _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
	u = _mm256_srli_epi32(u, 16);
	__m128i h = _mm_packus_epi32(_mm256_castsi256_si128(u), _mm256_extracti128_si256(u, 1));
	_mm_storeu_si128((__m128i *)p, h);
}

#define LOAD128(p)   _mm_loadu_si128((const __m128i *)(p))
#define LOAD_BF16(p) _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(LOAD128(p)), 16))
#define LOAD_F16(p)  _mm256_cvtph_ps(LOAD128(p))
#define STORE_BF16(p, v) narrow_avx2(p, v)
#define STORE_F16(p, v)                                                                            \
	_mm_storeu_si128((__m128i *)(p), _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT))
#define SET1(f)   _mm256_set1_ps(f)
#define ADD(a, b) _mm256_add_ps(a, b)
#define MUL(a, b) _mm256_mul_ps(a, b)
#define DIV(a, b) _mm256_div_ps(a, b)
#define MIN(a, b) _mm256_min_ps(a, b)
#define MAX(a, b) _mm256_max_ps(a, b)
#define ISNAN(a)  _mm256_cmp_ps(a, a, _CMP_UNORD_Q)
#define CANON(v)  _mm256_blendv_ps(v, _mm256_castsi256_ps(_mm256_set1_epi32(0x7fc00000)), ISNAN(v))
#define KEEPNAN(a, v) _mm256_blendv_ps(v, a, ISNAN(a))

#include "vector16.h"

#else

// Never chosen on this processor. It leaves all elements to the portable kernel.
int64_t pmpi_reduce16_avx2(const pmpi_k16 *k, int64_t start) {
	(void)k;
	return start;
}

#endif

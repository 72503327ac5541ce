#include "kernels.h"

#ifdef __x86_64__

#include <immintrin.h>

#define TARGET   __attribute__((target("avx2,f16c")))
#define FN(name) name##_avx2
#define VF       __m256
#define VI       __m256i
#define VW       8

#define ISNAN(a)  _mm256_cmp_ps(a, a, _CMP_UNORD_Q)
#define CANON(v)  _mm256_blendv_ps(v, _mm256_castsi256_ps(_mm256_set1_epi32(0x7fc00000)), ISNAN(v))
#define INLINE256 static inline __attribute__((always_inline)) TARGET

// The bits of a bfloat16 in the high half of each lane, and anything in the low half. v is rounded
// to nearest even in integers; a NaN becomes the canonical one.
INLINE256 __m256i round_avx2(__m256 v) {
	const __m256i u = _mm256_castps_si256(CANON(v));
	const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
	return _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
}

INLINE256 void narrow_avx2(char *p, __m256 v) {
	const __m256i u = _mm256_srli_epi32(round_avx2(v), 16);
	__m128i h = _mm_packus_epi32(_mm256_castsi256_si128(u), _mm256_extracti128_si256(u, 1));
	_mm_storeu_si128((__m128i *)p, h);
}

INLINE256 __m256i round2_avx2(__m256 even, __m256 odd) {
	const __m256i low = _mm256_srli_epi32(round_avx2(even), 16);
	return _mm256_blend_epi16(low, round_avx2(odd), 0xaa);
}

#define LOAD128(p)   _mm_loadu_si128((const __m128i *)(p))
#define LOAD_BF16(p) _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(LOAD128(p)), 16))
#define LOAD_F16(p)  _mm256_cvtph_ps(LOAD128(p))
#define LOADI(p)     _mm256_loadu_si256((const __m256i *)(p))
#define EVEN(p)      _mm256_castsi256_ps(_mm256_slli_epi32(LOADI(p), 16))
#define ODD(p) _mm256_castsi256_ps(_mm256_and_si256(LOADI(p), _mm256_set1_epi32((int)0xffff0000)))
#define ROUND2(even, odd) round2_avx2(even, odd)
#define STOREI(p, v)      _mm256_storeu_si256((__m256i *)(p), v)
#define STORE_BF16(p, v)  narrow_avx2(p, v)
#define STORE_F16(p, v)                                                                            \
	_mm_storeu_si128((__m128i *)(p), _mm256_cvtps_ph(CANON(v), _MM_FROUND_TO_NEAREST_INT))
#define LOAD_F32(p)     _mm256_loadu_ps((const float *)(p))
#define STORE_F32(p, v) _mm256_storeu_ps((float *)(p), v)
#define SET1(f)         _mm256_set1_ps(f)
#define ADD(a, b)       _mm256_add_ps(a, b)
#define MUL(a, b)       _mm256_mul_ps(a, b)
#define DIV(a, b)       _mm256_div_ps(a, b)
#define MIN(a, b)       _mm256_min_ps(a, b)
#define MAX(a, b)       _mm256_max_ps(a, b)
#define KEEPNAN(a, v)   _mm256_blendv_ps(v, a, ISNAN(a))

#include "vector.h"

#else

// Never chosen on this processor. It leaves all elements to the portable kernel.
int64_t pmpi_floats_avx2(const pmpi_floats *k, int64_t start) {
	(void)k;
	return start;
}

#endif

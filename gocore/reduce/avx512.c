// This does not use the conversion of AVX512-BF16, which treats subnormals as zero.
#include "kernels.h"

#ifdef __x86_64__

#include <immintrin.h>

#define TARGET   __attribute__((target("avx512f")))
#define FN(name) name##_avx512
#define VF       __m512
#define VI       __m512i
#define VW       16

#define ISNUMBER(a) _mm512_cmp_ps_mask(a, a, _CMP_ORD_Q)
#define INLINE512   static inline __attribute__((always_inline)) TARGET

// The bits of a bfloat16 in the high half of each lane, and anything in the low half. v is rounded
// to nearest even in integers; a NaN becomes the canonical one.
INLINE512 __m512i round_avx512(__m512 v) {
	const __m512i u = _mm512_castps_si512(v);
	const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
	const __m512i up = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
	return _mm512_mask_add_epi32(_mm512_set1_epi32(0x7fc00000), ISNUMBER(v), u, up);
}

INLINE512 void narrow_avx512(char *p, __m512 v) {
	_mm256_storeu_si256((__m256i *)p,
						_mm512_cvtepi32_epi16(_mm512_srli_epi32(round_avx512(v), 16)));
}

INLINE512 __m512i round2_avx512(__m512 even, __m512 odd) {
	const __m512i low = _mm512_srli_epi32(round_avx512(even), 16);
	// Of the three inputs, the third where the mask is set, else the second.
	return _mm512_ternarylogic_epi32(_mm512_set1_epi32((int)0xffff0000), low, round_avx512(odd),
									 0xac);
}

#define LOAD256(p)   _mm256_loadu_si256((const __m256i *)(p))
#define LOAD_BF16(p) _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(LOAD256(p)), 16))
#define LOAD_F16(p)  _mm512_cvtph_ps(LOAD256(p))
#define EVEN(p)      _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(p), 16))
#define ODD(p)                                                                                     \
	_mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(p), _mm512_set1_epi32((int)0xffff0000)))
#define ROUND2(even, odd) round2_avx512(even, odd)
#define STOREI(p, v)      _mm512_storeu_si512(p, v)
#define STORE_BF16(p, v)  narrow_avx512(p, v)
#define CANON(v)                                                                                   \
	_mm512_mask_mov_ps(_mm512_castsi512_ps(_mm512_set1_epi32(0x7fc00000)), ISNUMBER(v), v)
#define STORE_F16(p, v)                                                                            \
	_mm256_storeu_si256((__m256i *)(p), _mm512_cvtps_ph(CANON(v), _MM_FROUND_TO_NEAREST_INT))
#define LOAD_F32(p)     _mm512_loadu_ps((const float *)(p))
#define STORE_F32(p, v) _mm512_storeu_ps((float *)(p), v)
#define SET1(f)         _mm512_set1_ps(f)
#define ADD(a, b)       _mm512_add_ps(a, b)
#define MUL(a, b)       _mm512_mul_ps(a, b)
#define DIV(a, b)       _mm512_div_ps(a, b)
#define MIN(a, b)       _mm512_min_ps(a, b)
#define MAX(a, b)       _mm512_max_ps(a, b)
#define KEEPNAN(a, v)   _mm512_mask_mov_ps(a, ISNUMBER(a), v)

#include "vector.h"

#else

// Never chosen on this processor. It leaves all elements to the portable kernel.
int64_t pmpi_floats_avx512(const pmpi_floats *k, int64_t start) {
	(void)k;
	return start;
}

#endif

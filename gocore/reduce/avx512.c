// This does not use the conversion of AVX512-BF16, which treats subnormals as zero.
#include "kernels.h"

#ifdef __x86_64__

#include <immintrin.h>

#define TARGET   __attribute__((target("avx512f")))
#define FN(name) name##_avx512
#define VF       __m512
#define VW       16

static inline __attribute__((always_inline)) TARGET void narrow_avx512(uint16_t *p, __m512 v) {
	// Round to nearest even in integers. A NaN is canonical already, and stays so.
	__m512i u = _mm512_castps_si512(v);
	__m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
	u = _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
	_mm256_storeu_si256((__m256i *)p, _mm512_cvtepi32_epi16(_mm512_srli_epi32(u, 16)));
}

#define LOAD256(p)   _mm256_loadu_si256((const __m256i *)(p))
#define LOAD_BF16(p) _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(LOAD256(p)), 16))
#define LOAD_F16(p)  _mm512_cvtph_ps(LOAD256(p))
#define STORE_BF16(p, v) narrow_avx512(p, v)
#define STORE_F16(p, v)                                                                            \
	_mm256_storeu_si256((__m256i *)(p), _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT))
#define SET1(f)   _mm512_set1_ps(f)
#define ADD(a, b) _mm512_add_ps(a, b)
#define MUL(a, b) _mm512_mul_ps(a, b)
#define DIV(a, b) _mm512_div_ps(a, b)
#define MIN(a, b) _mm512_min_ps(a, b)
#define MAX(a, b) _mm512_max_ps(a, b)
#define ISNAN(a)  _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q)
#define CANON(v)                                                                                   \
	_mm512_mask_blend_ps(ISNAN(v), v, _mm512_castsi512_ps(_mm512_set1_epi32(0x7fc00000)))
#define KEEPNAN(a, v) _mm512_mask_blend_ps(ISNAN(a), v, a)

#include "vector16.h"

#else

// Never chosen on this processor. It leaves all elements to the portable kernel.
int64_t pmpi_reduce16_avx512(const pmpi_k16 *k, int64_t start) {
	(void)k;
	return start;
}

#endif

#ifdef __x86_64__

#include <immintrin.h>

#define TARGET      __attribute__((target("avx512f")))
#define FN(name)    name##_avx512
#define LANES       16
#define LANE(b, id) _mm512_cmpeq_epi64_mask(_mm512_load_si512(b), _mm512_set1_epi64(id))
#define ROOT(v)     ((vec)_mm512_sqrt_ps((__m512)(v)))
#define LOAD256(p)  _mm256_loadu_si256((const __m256i *)(p))
#define WIDEN16(to, p, bf16)                                                                       \
	_mm512_storeu_ps(                                                                              \
		to, (bf16) ? _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(LOAD256(p)), 16)) \
				   : _mm512_cvtph_ps(LOAD256(p)))
#define NARROW16(p, from, bf16)                                                                    \
	_mm256_storeu_si256((__m256i *)(p), (bf16) ? narrow(_mm512_loadu_ps(from))                     \
											   : _mm512_cvtps_ph(_mm512_loadu_ps(from),            \
																 _MM_FROUND_TO_NEAREST_INT))

/* narrow rounds to the nearest bfloat16, in integers. NaN is the positive quiet one. */
static inline __attribute__((always_inline)) TARGET __m256i narrow(__m512 v) {
	__m512i u = _mm512_castps_si512(v);
	__m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
	u = _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
	u = _mm512_mask_blend_epi32(_mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q), _mm512_srli_epi32(u, 16),
								_mm512_set1_epi32(0x7fc0));
	return _mm512_cvtepi32_epi16(u);
}

#include "hot.h"

#else

#include "table.h"

/* Never chosen on this processor. */
uint32_t pt_pull_avx512(pt_table *t, pt_batch *b, uint32_t from, uint32_t to, uint32_t *missing) {
	return pt_pull_portable(t, b, from, to, missing);
}

int pt_push_avx512(pt_table *t, pt_shard *s, pt_batch *b, const pt_portion *p) {
	return pt_push_portable(t, s, b, p);
}

int64_t pt_finite_avx512(const void *values, int dtype, int64_t n) {
	return pt_finite_portable(values, dtype, n);
}

#endif

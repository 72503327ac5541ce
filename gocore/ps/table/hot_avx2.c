#ifdef __x86_64__

#include <immintrin.h>
#include <string.h>

#define TARGET                  __attribute__((target("avx2,f16c")))
#define FN(name)                name##_avx2
#define LANES                   8
#define LANE(b, id)             lanes(b, id)
#define ROOT(v)                 ((vec)_mm256_sqrt_ps((__m256)(v)))
#define WIDEN16(to, p, bf16)    widen16(to, p, bf16)
#define NARROW16(p, from, bf16) narrow16(p, from, bf16)

#include "table.h"

#define HELPER static inline __attribute__((always_inline)) TARGET

HELPER unsigned lanes(const pt_bin *b, int64_t id) {
	const __m256i *p = (const __m256i *)b;
	__m256i wanted = _mm256_set1_epi64x(id);
	__m256i low = _mm256_cmpeq_epi64(_mm256_load_si256(p), wanted);
	__m256i high = _mm256_cmpeq_epi64(_mm256_load_si256(p + 1), wanted);
	return (unsigned)_mm256_movemask_pd(_mm256_castsi256_pd(low)) |
		   (unsigned)_mm256_movemask_pd(_mm256_castsi256_pd(high)) << 4;
}

HELPER void widen16(float *to, const uint16_t *p, int bf16) {
	for (int i = 0; i < 16; i += 8) {
		__m128i h = _mm_loadu_si128((const __m128i *)(p + i));
		__m256i shifted = _mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16);
		_mm256_storeu_ps(to + i, bf16 ? _mm256_castsi256_ps(shifted) : _mm256_cvtph_ps(h));
	}
}

/* narrow8 rounds to the nearest bfloat16, in integers. NaN is the positive quiet one. */
HELPER __m128i narrow8(__m256 v) {
	__m256i u = _mm256_castps_si256(v);
	__m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
	u = _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
	u = _mm256_blendv_epi8(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(0x7fc0),
						   _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q)));
	return _mm_packus_epi32(_mm256_castsi256_si128(u), _mm256_extracti128_si256(u, 1));
}

HELPER void narrow16(uint16_t *p, const float *from, int bf16) {
	for (int i = 0; i < 16; i += 8) {
		__m256 x = _mm256_loadu_ps(from + i);
		_mm_storeu_si128((__m128i *)(p + i),
						 bf16 ? narrow8(x) : _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
	}
}

#include "hot.h"

#else

#include "table.h"

/* Never chosen on this processor. */
uint32_t pt_pull_avx2(pt_table *t, pt_batch *b, uint32_t from, uint32_t to, uint32_t *missing) {
	return pt_pull_portable(t, b, from, to, missing);
}

int pt_push_avx2(pt_table *t, pt_shard *s, pt_batch *b, const pt_portion *p) {
	return pt_push_portable(t, s, b, p);
}

int64_t pt_finite_avx2(const void *values, int dtype, int64_t n) {
	return pt_finite_portable(values, dtype, n);
}

#endif

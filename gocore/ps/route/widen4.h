/* WIDEN4 of hot.h, for processors with F16C. */
#define WIDEN4(p, bf16) widen4(p, bf16)

static inline __attribute__((always_inline)) TARGET __m128 widen4(const uint16_t *p, int bf16) {
	__m128i h = _mm_loadl_epi64((const __m128i *)p);
	return bf16 ? _mm_castsi128_ps(_mm_slli_epi32(_mm_cvtepu16_epi32(h), 16)) : _mm_cvtph_ps(h);
}

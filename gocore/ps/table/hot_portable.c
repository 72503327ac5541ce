/* For every processor: the vectors become those that it has, such as SSE2's or NEON's. */
#include "../../reduce/float16.h"
#include "table.h"

#ifdef __x86_64__
#include <emmintrin.h>
#elif defined __aarch64__
#include <arm_neon.h>
#else
#include <math.h>
#endif

#define TARGET
#define FN(name)             name##_portable
#define LANE(b, id)          lanes(b, id)
#define ROOT(v)              root16(v)
#define WIDEN16(v, p, bf16)  widen16(v, p, bf16)
#define NARROW16(p, v, bf16) narrow16(p, v, bf16)

#define HELPER static inline __attribute__((always_inline))

HELPER unsigned lanes(const pt_bin *b, int64_t id) {
	unsigned found = 0;
	for (int i = 0; i < PT_LANES; i++)
		found |= (unsigned)(b->id[i] == id) << i;
	return found;
}

HELPER void root16(void *v) {
	float *f = v;
#ifdef __x86_64__
	for (int i = 0; i < 16; i += 4)
		_mm_storeu_ps(f + i, _mm_sqrt_ps(_mm_loadu_ps(f + i)));
#elif defined __aarch64__
	for (int i = 0; i < 16; i += 4)
		vst1q_f32(f + i, vsqrtq_f32(vld1q_f32(f + i)));
#else
	for (int i = 0; i < 16; i++)
		f[i] = sqrtf(f[i]);
#endif
}

HELPER void widen16(void *v, const uint16_t *p, int bf16) {
	float *f = v;
	for (int i = 0; i < 16; i++)
		f[i] = bf16 ? load_bf16(p[i]) : load_f16(p[i]);
}

HELPER void narrow16(uint16_t *p, const void *v, int bf16) {
	const float *f = v;
	for (int i = 0; i < 16; i++)
		p[i] = bf16 ? store_bf16(f[i]) : store_f16(f[i]);
}

#include "hot.h"

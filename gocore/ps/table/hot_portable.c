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
#define FN(name)                name##_portable
#define LANES                   4
#define LANE(b, id)             lanes(b, id)
#define ROOT(v)                 ((vec)root((v4)(v)))
#define WIDEN16(to, p, bf16)    widen16(to, p, bf16)
#define NARROW16(p, from, bf16) narrow16(p, from, bf16)

#define HELPER static inline __attribute__((always_inline))

HELPER unsigned lanes(const pt_bin *b, int64_t id) {
	unsigned found = 0;
	for (int i = 0; i < PT_LANES; i++)
		found |= (unsigned)(b->id[i] == id) << i;
	return found;
}

typedef float v4 __attribute__((vector_size(16)));

HELPER v4 root(v4 v) {
#ifdef __x86_64__
	return (v4)_mm_sqrt_ps((__m128)v);
#elif defined __aarch64__
	return (v4)vsqrtq_f32((float32x4_t)v);
#else
	for (int i = 0; i < 4; i++)
		v[i] = sqrtf(v[i]);
	return v;
#endif
}

HELPER void widen16(float *to, const uint16_t *p, int bf16) {
	for (int i = 0; i < 16; i++)
		to[i] = bf16 ? load_bf16(p[i]) : load_f16(p[i]);
}

HELPER void narrow16(uint16_t *p, const float *from, int bf16) {
	for (int i = 0; i < 16; i++)
		p[i] = bf16 ? store_bf16(from[i]) : store_f16(from[i]);
}

#include "hot.h"

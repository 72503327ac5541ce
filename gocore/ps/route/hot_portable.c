/* For every processor: the vectors become those that it has, such as SSE2's or NEON's. */
#include <stdint.h>
#include <string.h>

#ifdef __aarch64__
#include <arm_neon.h>
#endif

#define TARGET
#define FN(name)        name##_portable
#define LANES           4
#define WIDEN(p, bf16)  widen(p, bf16)
#define WIDEN4(p, bf16) widen(p, bf16)

typedef float f4 __attribute__((vector_size(16)));
typedef int32_t i4 __attribute__((vector_size(16)));
typedef uint16_t h4 __attribute__((vector_size(8)));

static inline __attribute__((always_inline)) f4 widen(const uint16_t *p, int bf16) {
	h4 h;
	memcpy(&h, p, sizeof h);
	const i4 w = __builtin_convertvector(h, i4);
	if (bf16)
		return (f4)(w << 16);
#ifdef __aarch64__
	return (f4)vcvt_f32_f16(vreinterpret_f16_u16((uint16x4_t)h));
#else
	/* load_f16 of float16.h, for a vector. A comparison gives a mask. */
	const i4 em = (w & 0x7fff) << 13, sign = (w & 0x8000) << 16;
	const i4 normal = em + (112 << 23), special = em | 0x7f800000;
	const i4 subnormal = (i4)((f4)(em + (113 << 23)) - 0x1p-14f);
	const i4 large = em >= 0x0f800000, small = em < 0x00800000;
	return (f4)((large & special) | (small & subnormal) | (~(large | small) & normal) | sign);
#endif
}

#include "hot.h"

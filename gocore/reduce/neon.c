#include "kernels.h"

#ifdef __aarch64__

#include <arm_neon.h>

// Every aarch64 processor has these instructions.
#define TARGET
#define FN(name) name##_neon
#define VF       float32x4_t
#define VI       uint32x4_t
#define VW       4

#define INLINE128 static inline __attribute__((always_inline))

// where returns yes in the lanes of the mask, and no in the others.
INLINE128 float32x4_t where(uint32x4_t mask, float32x4_t yes, float32x4_t no) {
	return vbslq_f32(mask, yes, no);
}

// KEEPNAN and CANON select by comparing a vector with itself, which is false where it is NaN.
INLINE128 float32x4_t canon(float32x4_t v) {
	return where(vceqq_f32(v, v), v, vreinterpretq_f32_u32(vdupq_n_u32(0x7fc00000)));
}

// The bits of a bfloat16 in the high half of each lane, and anything in the low half. v is rounded
// to nearest even in integers; a NaN becomes the canonical one.
INLINE128 uint32x4_t round_neon(float32x4_t v) {
	const uint32x4_t u = vreinterpretq_u32_f32(canon(v));
	const uint32x4_t odd = vandq_u32(vshrq_n_u32(u, 16), vdupq_n_u32(1));
	return vaddq_u32(u, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
}

// Loads and stores of bytes, because a caller's tensor may begin anywhere.
#define LOADI(p)      vreinterpretq_u32_u8(vld1q_u8((const uint8_t *)(p)))
#define LOAD64(p)     vreinterpret_u16_u8(vld1_u8((const uint8_t *)(p)))
#define STORE64(p, v) vst1_u8((uint8_t *)(p), vreinterpret_u8_u16(v))
#define STOREI(p, v)  vst1q_u8((uint8_t *)(p), vreinterpretq_u8_u32(v))

#define LOAD_F32(p)      vreinterpretq_f32_u32(LOADI(p))
#define STORE_F32(p, v)  STOREI(p, vreinterpretq_u32_f32(v))
#define LOAD_F16(p)      vcvt_f32_f16(vreinterpret_f16_u16(LOAD64(p)))
#define STORE_F16(p, v)  STORE64(p, vreinterpret_u16_f16(vcvt_f16_f32(canon(v))))
#define LOAD_BF16(p)     vreinterpretq_f32_u32(vshll_n_u16(LOAD64(p), 16))
#define STORE_BF16(p, v) STORE64(p, vshrn_n_u32(round_neon(v), 16))
#define EVEN(p)          vreinterpretq_f32_u32(vshlq_n_u32(LOADI(p), 16))
#define ODD(p)           vreinterpretq_f32_u32(vandq_u32(LOADI(p), vdupq_n_u32(0xffff0000)))
// The high half of odd stays, and the high half of even comes below it.
#define ROUND2(even, odd) vsriq_n_u32(round_neon(odd), round_neon(even), 16)
#define SET1(f)           vdupq_n_f32(f)
#define ADD(a, b)         vaddq_f32(a, b)
#define MUL(a, b)         vmulq_f32(a, b)
#define DIV(a, b)         vdivq_f32(a, b)
// As MINPS and MAXPS of x86: the second one if neither is smaller (or larger). FMIN and FMAX are
// not.
#define MIN(a, b)     where(vcltq_f32(a, b), a, b)
#define MAX(a, b)     where(vcgtq_f32(a, b), a, b)
#define KEEPNAN(a, v) where(vceqq_f32(a, a), v, a)

#include "vector.h"

#else

// Never chosen on this processor. It leaves all elements to the portable kernel.
int64_t pmpi_floats_neon(const pmpi_floats *k, int64_t start) {
	(void)k;
	return start;
}

#endif

// Conversions between float32 and 16-bit floats, for every processor: plain C without branches, so
// that the compiler turns loops of them into SSE2 or NEON. They round to nearest even, and every
// NaN becomes the positive quiet one.
#ifndef PADDLEMPI_REDUCE_FLOAT16_H
#define PADDLEMPI_REDUCE_FLOAT16_H

#include <stdint.h>
#include <string.h>

static inline uint32_t bits(float f) {
	uint32_t u;
	memcpy(&u, &f, sizeof u);
	return u;
}

static inline float from_bits(uint32_t u) {
	float f;
	memcpy(&f, &u, sizeof f);
	return f;
}

// A selection without a branch. Compilers always vectorise it, but they may not vectorise a branch
// around floating-point arithmetic.
static inline uint32_t choose(int condition, uint32_t yes, uint32_t no) {
	uint32_t mask = 0u - (uint32_t)condition;
	return (yes & mask) | (no & ~mask);
}

static inline float load_bf16(uint16_t h) {
	return from_bits((uint32_t)h << 16);
}

static inline uint16_t store_bf16(float f) {
	uint32_t u = bits(f);
	uint32_t r = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
	return (uint16_t)choose(f != f, 0x7fc0, r);
}

#ifdef __aarch64__

static inline float load_f16(uint16_t h) {
	__fp16 v;
	memcpy(&v, &h, sizeof v);
	return (float)v;
}

static inline uint16_t store_f16(float f) {
	__fp16 v = (__fp16)f;
	uint16_t h;
	memcpy(&h, &v, sizeof h);
	return (uint16_t)choose(f != f, 0x7e00, h);
}

#else

static inline float load_f16(uint16_t h) {
	uint32_t sign = (uint32_t)(h & 0x8000) << 16;
	uint32_t em = (uint32_t)(h & 0x7fff) << 13;
	uint32_t normal = em + (112u << 23);
	uint32_t special = em | 0x7f800000;
	// A subnormal becomes the fraction of a normal number, from which its leading one is
	// subtracted. This is exact, and no operand is a float32 subnormal.
	uint32_t subnormal = bits(from_bits(em + (113u << 23)) - from_bits(113u << 23));
	uint32_t r = choose(em >= 0x0f800000, special, choose(em < 0x00800000, subnormal, normal));
	return from_bits(r | sign);
}

static inline uint16_t store_f16(float f) {
	uint32_t u = bits(f);
	uint32_t sign = (u >> 16) & 0x8000;
	u &= 0x7fffffff;
	uint32_t normal = (u - (112u << 23) + 0xfff + ((u >> 13) & 1)) >> 13;
	// Adding 0.5 moves the last bit of a float16 subnormal to the last bit of the float32, so the
	// addition rounds to nearest even.
	uint32_t subnormal = bits(from_bits(u) + 0.5f) - bits(0.5f);
	uint32_t r = choose(u < 0x38800000, subnormal, choose(u >= 0x47800000, 0x7c00, normal));
	return (uint16_t)choose(u > 0x7f800000, 0x7e00, r | sign);
}

#endif

#endif

/* The first values of a row. They are a function of the seed, the id and the place in the row: each
 * four elements come from one block of Philox 4x32-10 (Salmon et al., SC 2011), with the seed as
 * the key and (id, block) as the counter. All arithmetic is IEEE's + - * / and square root in
 * double, in one order, so every machine gets the same bits; a logarithm or cosine of a C library
 * would not. */
#include "table.h"

#include "../../reduce/float16.h"

#ifdef __x86_64__
#include <emmintrin.h>
#elif defined __aarch64__
#include <arm_neon.h>
#else
#include <math.h>
#endif

#ifdef __clang__
#pragma STDC FP_CONTRACT OFF
#endif

double pt_square_root(double x) {
#ifdef __x86_64__
	__m128d v = _mm_set_sd(x);
	return _mm_cvtsd_f64(_mm_sqrt_sd(v, v));
#elif defined __aarch64__
	return vget_lane_f64(vsqrt_f64(vdup_n_f64(x)), 0);
#else
	return sqrt(x);
#endif
}

static void philox(uint64_t key, uint64_t id, uint64_t block, uint32_t out[4]) {
	uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
	uint32_t c0 = (uint32_t)id, c1 = (uint32_t)(id >> 32), c2 = (uint32_t)block,
			 c3 = (uint32_t)(block >> 32);
	for (int round = 0; round < 10; round++) {
		uint64_t p0 = (uint64_t)c0 * 0xD2511F53u, p1 = (uint64_t)c2 * 0xCD9E8D57u;
		uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
		c0 = n0, c1 = (uint32_t)p1, c2 = n2, c3 = (uint32_t)p0;
		k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
	}
	out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}

/* natural_log is right to 1e-15 for 0 < x <= 1. With x = m * 2^e and m near 1 it is e ln 2 + 2
 * artanh((m-1)/(m+1)). */
static double natural_log(double x) {
	uint64_t u;
	memcpy(&u, &x, sizeof u);
	int e = (int)(u >> 52) - 1023;
	u = (u & 0xfffffffffffffu) | 0x3ff0000000000000u;
	double m;
	memcpy(&m, &u, sizeof m);
	if (m > 1.4142135623730951) {
		m *= 0.5;
		e++;
	}
	double s = (m - 1) / (m + 1), q = s * s, sum = 0;
	for (int k = 21; k >= 1; k -= 2)
		sum = sum * q + 1.0 / k;
	return e * 0.6931471805599453 + 2 * s * sum;
}

/* circle returns the cosine and the sine of 2 pi turn, for 0 <= turn < 1. */
static void circle(double turn, double *cosine, double *sine) {
	int quarter = (int)(turn * 4 + 0.5);
	double x = (turn * 4 - quarter) * 1.5707963267948966, q = x * x, c = 0, s = 0;
	for (int k = 16; k >= 2; k -= 2)
		c = (1 - c) * q / (k * (k - 1));
	for (int k = 17; k >= 3; k -= 2)
		s = (1 - s) * q / (k * (k - 1));
	c = 1 - c;
	s = x * (1 - s);
	*cosine = quarter == 1 ? -s : quarter == 2 ? -c : quarter == 3 ? s : c;
	*sine = quarter == 1 ? c : quarter == 2 ? -s : quarter == 3 ? -c : s;
}

static void normal2(const uint32_t *u, double out[2]) {
	double radius = pt_square_root(-2 * natural_log((u[0] + 0.5) * 0x1p-32));
	circle(u[1] * 0x1p-32, &out[0], &out[1]);
	out[0] *= radius;
	out[1] *= radius;
}

void pt_initialise(const pt_config *c, int64_t id, void *row) {
	if (c->initializer != PT_ZEROS) /* slabs are zero, and a row is initialised once */
		pt_first_values(c, id, c->dtype, row);
}

void pt_first_values(const pt_config *c, int64_t id, int32_t dtype, void *row) {
	for (int64_t at = 0; at < c->dim; at += 4) {
		uint32_t u[4];
		double v[4];
		philox(c->seed, (uint64_t)id, (uint64_t)at / 4, u);
		if (c->initializer == PT_UNIFORM) {
			for (int k = 0; k < 4; k++)
				v[k] = c->initial[0] + (c->initial[1] - c->initial[0]) * ((u[k] >> 8) * 0x1p-24);
		} else {
			normal2(u, v);
			normal2(u + 2, v + 2);
			for (int k = 0; k < 4; k++)
				v[k] = c->initial[0] + c->initial[1] * v[k];
		}
		for (int64_t k = 0; k < 4 && at + k < c->dim; k++) {
			float f = (float)v[k];
			if (c->dtype == PT_FLOAT32) {
				((float *)row)[at + k] = f;
				continue;
			}
			int bf16 = c->dtype == PT_BFLOAT16;
			uint16_t h = bf16 ? store_bf16(f) : store_f16(f);
			if (dtype == PT_FLOAT32)
				((float *)row)[at + k] = bf16 ? load_bf16(h) : load_f16(h);
			else
				((uint16_t *)row)[at + k] = h;
		}
	}
}

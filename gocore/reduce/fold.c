// The folder of fold.h. It works on blocks that stay in L1, so that every source is read once and
// every destination is written once.
#include "fold.h"

#include "kernels.h"

#include <string.h>
#ifdef __x86_64__
#include <xmmintrin.h>
#endif

enum { BLOCK = 8192 }; // bytes

#ifdef __x86_64__
typedef uint32_t fp_mode;
enum { DEFAULT_MODE = 0x1f80 };

static inline fp_mode get_mode(void) {
	return _mm_getcsr();
}

static inline void set_mode(fp_mode m) {
	_mm_setcsr(m);
}
#elif defined(__aarch64__)
typedef uint64_t fp_mode;
enum { DEFAULT_MODE = 0 };

static inline fp_mode get_mode(void) {
	uint64_t m;
	__asm__ volatile("mrs %0, fpcr" : "=r"(m));
	return m;
}

static inline void set_mode(fp_mode m) {
	__asm__ volatile("msr fpcr, %0" : : "r"(m));
}
#endif

static int64_t element(int type) {
	static const int8_t size[] = {
		[PMPI_T_BOOL] = 1,  [PMPI_T_I8] = 1,  [PMPI_T_U8] = 1,   [PMPI_T_I16] = 2,
		[PMPI_T_U16] = 2,   [PMPI_T_I32] = 4, [PMPI_T_U32] = 4,  [PMPI_T_I64] = 8,
		[PMPI_T_U64] = 8,   [PMPI_T_F32] = 4, [PMPI_T_F64] = 8,  [PMPI_T_C64] = 8,
		[PMPI_T_C128] = 16, [PMPI_T_F16] = 2, [PMPI_T_BF16] = 2,
	};
	return size[type];
}

// write copies a block to the destinations that do not hold it.
static void write(void *const *dst, int ndst, int64_t at, const void *block, int64_t bytes) {
	for (int i = 0; i < ndst; i++) {
		char *to = (char *)dst[i] + at;
		if (to != block)
			memcpy(to, block, (size_t)bytes);
	}
}

// A destination may be a source. Both are touched at the same index, so the loop has no dependence
// between its iterations, which a compiler cannot see.
#ifdef __clang__
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define INDEPENDENT _Pragma("GCC ivdep")
#endif

// The sum of two, written to two: what two ranks do with their gradients. The vector kernels have
// it for float32.
#define PAIR(name, type)                                                                           \
	static void name(type *d0, type *d1, const type *a, const type *b, int64_t n) {                \
		INDEPENDENT                                                                                \
		for (int64_t i = 0; i < n; i++) {                                                          \
			type s = a[i] + b[i];                                                                  \
			d0[i] = s;                                                                             \
			d1[i] = s;                                                                             \
		}                                                                                          \
	}

PAIR(pair32, float)
PAIR(pair64, double)

static void fold_floats(const pmpi_fold *f, void *const *dst, int ndst, const void *const *src,
						int nsrc, int64_t n) {
	float scales[nsrc];
	for (int i = 0; i < nsrc; i++)
		scales[i] = (float)f->scale;
	const pmpi_floats k = {
		.dsts = dst,
		.ndst = ndst,
		.srcs = src,
		.nsrc = nsrc,
		.scales = f->scaled ? scales : NULL,
		.n = n,
		.type = f->type,
		.out = f->out,
		.op = f->op,
		.divisor = (float)f->divisor,
	};
	pmpi_reduce_floats(&k, f->isa);
}

// scale_block does dst[i] = src[i] * factor. Only floating and complex types are scaled.
static void scale_block(void *dst, const void *src, int64_t n, int type, double factor) {
	int complex = type == PMPI_T_C64 || type == PMPI_T_C128;
	if (type == PMPI_T_F32 || type == PMPI_T_C64)
		pmpi_scale32(dst, src, complex ? 2 * n : n, (float)factor);
	else
		pmpi_scale64(dst, src, complex ? 2 * n : n, factor);
}

static void divide_block(void *p, int64_t n, int type, int by) {
	switch (type) {
	case PMPI_T_F32:
		pmpi_div32(p, p, n, (float)by);
		break;
	case PMPI_T_C64:
		pmpi_div32(p, p, 2 * n, (float)by);
		break;
	case PMPI_T_F64:
		pmpi_div64(p, p, n, by);
		break;
	case PMPI_T_C128:
		pmpi_div64(p, p, 2 * n, by);
		break;
	default:
		pmpi_divide(p, n, type, by);
	}
}

static void fold_blocks(const pmpi_fold *f, void *const *dst, int ndst, const void *const *src,
						int nsrc, int64_t n) {
	char block[BLOCK] __attribute__((aligned(64))), scaled[BLOCK] __attribute__((aligned(64)));
	const int64_t elem = element(f->type), most = BLOCK / elem;
	for (int64_t from = 0; from < n; from += most) {
		int64_t m = n - from < most ? n - from : most, at = from * elem;
		if (f->scaled)
			scale_block(block, (const char *)src[0] + at, m, f->type, f->scale);
		else
			memcpy(block, (const char *)src[0] + at, (size_t)(m * elem));
		for (int i = 1; i < nsrc; i++) {
			const void *s = (const char *)src[i] + at;
			if (f->scaled) {
				scale_block(scaled, s, m, f->type, f->scale);
				s = scaled;
			}
			pmpi_combine(block, s, m, f->type, f->op);
		}
		if (f->divisor != 1)
			divide_block(block, m, f->type, f->divisor);
		write(dst, ndst, at, block, m * elem);
	}
}

static void copy(void *const *dst, int ndst, const void *src, int64_t bytes) {
	for (int64_t at = 0; at < bytes; at += 4 * BLOCK) {
		int64_t m = bytes - at < 4 * BLOCK ? bytes - at : 4 * BLOCK;
		write(dst, ndst, at, (const char *)src + at, m);
	}
}

static void fold(const pmpi_fold *f, void *const *dst, int ndst, const void *const *src, int nsrc,
				 int64_t n) {
	if (ndst == 0 || n == 0)
		return;
	const int same = f->out == f->type;
	if (nsrc == 1 && !f->scaled && f->divisor == 1 && same) {
		copy(dst, ndst, src[0], n * element(f->type));
		return;
	}
	fp_mode before = get_mode();
	set_mode(DEFAULT_MODE);
	const int pair =
		same && nsrc == 2 && ndst <= 2 && f->op == PMPI_K_SUM && !f->scaled && f->divisor == 1;
	void *const last = dst[ndst - 1];
	if (pair && f->type == PMPI_T_F64)
		pair64(dst[0], last, src[0], src[1], n);
	else if (pair && f->type == PMPI_T_F32 && f->isa == PMPI_ISA_PORTABLE)
		pair32(dst[0], last, src[0], src[1], n);
	else if (f->type == PMPI_T_F16 || f->type == PMPI_T_BF16 || f->type == PMPI_T_F32)
		fold_floats(f, dst, ndst, src, nsrc, n);
	else
		fold_blocks(f, dst, ndst, src, nsrc, n);
	set_mode(before);
}

pmpi_folder pmpi_fold_address(void) {
	return fold;
}

void pmpi_fold_one(const pmpi_fold *f, void *dst, void *const *src, int nsrc, int64_t n) {
	fold(f, &dst, 1, (const void *const *)src, nsrc, n);
}

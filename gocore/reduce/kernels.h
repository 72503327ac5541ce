// Host reduction kernels. Every instruction set gives the same bits: each element goes through the
// same float32 operations in the same order, no multiplication is fused with an addition, and every
// NaN in a result is the canonical one.
#ifndef PADDLEMPI_REDUCE_KERNELS_H
#define PADDLEMPI_REDUCE_KERNELS_H

#include <stdint.h>

// Without this a compiler may fuse a product and a sum if the processor can (aarch64 always can),
// and ranks on different machines would get different bits. gcc does not fuse with -std=c11, and
// does not know the pragma.
#ifdef __clang__
#pragma STDC FP_CONTRACT OFF
#endif

#pragma GCC visibility push(hidden)

enum { PMPI_K_SUM, PMPI_K_PRODUCT, PMPI_K_MIN, PMPI_K_MAX, PMPI_K_AND, PMPI_K_OR, PMPI_K_XOR };

enum { PMPI_ISA_PORTABLE, PMPI_ISA_AVX2, PMPI_ISA_AVX512, PMPI_ISA_NEON };

// The types of elements.
enum {
	PMPI_T_BOOL,
	PMPI_T_I8,
	PMPI_T_U8,
	PMPI_T_I16,
	PMPI_T_U16,
	PMPI_T_I32,
	PMPI_T_U32,
	PMPI_T_I64,
	PMPI_T_U64,
	PMPI_T_F32,
	PMPI_T_F64,
	PMPI_T_C64,
	PMPI_T_C128,
	// Of these, pmpi_combine and pmpi_divide have none.
	PMPI_T_F16,
	PMPI_T_BF16
};

// pmpi_floats describes a reduction of nsrc sources into ndst destinations.
typedef struct pmpi_floats {
	void *const *dsts;       // each may be one of the sources; none may overlap one in part
	const void *const *srcs; // in the order of the reduction
	const float *scales;     // a factor for each source, or NULL
	int64_t n;               // elements of each source
	int32_t ndst;            // at least 1
	int32_t nsrc;            // at least 1
	int32_t type;            // of the sources: PMPI_T_F32, or PMPI_T_F16 or _BF16
	int32_t
		out;    // of the results: as type, or PMPI_T_F32 on one side and a 16-bit type on the other
	int32_t op; // PMPI_K_SUM, _PRODUCT, _MIN or _MAX; with scales only _SUM
	float divisor; // the result is divided by this before it is rounded, once
} pmpi_floats;

// pmpi_reduce_isa returns the best PMPI_ISA_ of this processor.
int pmpi_reduce_isa(void);

// pmpi_reduce_floats runs a reduction with the kernels of isa, which the processor must have.
void pmpi_reduce_floats(const pmpi_floats *k, int isa);

// pmpi_reduce_floats_call makes a pmpi_floats with one destination of its arguments and runs it.
// srcs are addresses as numbers. There are no scales if nscales is 0.
void pmpi_reduce_floats_call(void *dst, const uintptr_t *srcs, int32_t nsrc, const float *scales,
							 int32_t nscales, int64_t n, int32_t type, int32_t op, float divisor,
							 int isa);

// These reduce the elements from start on, and return the first one that they have not done. The
// vector kernels leave the last elements to the portable one.
int64_t pmpi_floats_portable(const pmpi_floats *k, int64_t start);
int64_t pmpi_floats_avx2(const pmpi_floats *k, int64_t start);
int64_t pmpi_floats_avx512(const pmpi_floats *k, int64_t start);
int64_t pmpi_floats_neon(const pmpi_floats *k, int64_t start);

// pmpi_combine does dst[i] = dst[i] op src[i] for n elements. It returns 0, or -1 if op is not
// defined for the type.
int pmpi_combine(void *dst, const void *src, int64_t n, int type, int op);

// pmpi_divide does p[i] = p[i] / by, rounded toward zero, for an integer type. It returns 0, or -1
// for another type.
int pmpi_divide(void *p, int64_t n, int type, int by);

// pmpi_scale32 and pmpi_scale64 do dst[i] = src[i] * factor. pmpi_div32 and pmpi_div64 do dst[i] =
// src[i] / by. dst may be src.
void pmpi_scale32(float *dst, const float *src, int64_t n, float factor);
void pmpi_scale64(double *dst, const double *src, int64_t n, double factor);
void pmpi_div32(float *dst, const float *src, int64_t n, float by);
void pmpi_div64(double *dst, const double *src, int64_t n, double by);

#pragma GCC visibility pop

#endif

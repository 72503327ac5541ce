#include "kernels.h"

#ifdef __x86_64__

#include <cpuid.h>

// This reads cpuid, because __builtin_cpu_supports needs a run-time library that not every compiler
// has. The operating system must save the registers, too (XCR0).
int pmpi_reduce_isa(void) {
	unsigned a, b, c, d, lo, hi;
	if (!__get_cpuid(1, &a, &b, &c, &d))
		return PMPI_ISA_PORTABLE;
	const unsigned f16c_avx_osxsave = 1u << 29 | 1u << 28 | 1u << 27;
	if ((c & f16c_avx_osxsave) != f16c_avx_osxsave)
		return PMPI_ISA_PORTABLE;
	__asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
	if ((lo & 0x6) != 0x6 || !__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(b & 1u << 5))
		return PMPI_ISA_PORTABLE;
	if ((lo & 0xe6) == 0xe6 && (b & 1u << 16))
		return PMPI_ISA_AVX512;
	return PMPI_ISA_AVX2;
}

#elif defined(__aarch64__)

int pmpi_reduce_isa(void) {
	return PMPI_ISA_NEON;
}

#else

int pmpi_reduce_isa(void) {
	return PMPI_ISA_PORTABLE;
}

#endif

void pmpi_reduce_floats(const pmpi_floats *k, int isa) {
	int64_t done = 0;
	if (isa == PMPI_ISA_AVX512)
		done = pmpi_floats_avx512(k, 0);
	else if (isa == PMPI_ISA_AVX2)
		done = pmpi_floats_avx2(k, 0);
	else if (isa == PMPI_ISA_NEON)
		done = pmpi_floats_neon(k, 0);
	if (done < k->n)
		pmpi_floats_portable(k, done);
}

void pmpi_reduce_floats_call(void *dst, const uintptr_t *srcs, int32_t nsrc, const float *scales,
							 int32_t nscales, int64_t n, int32_t type, int32_t op, float divisor,
							 int isa) {
	const pmpi_floats k = {
		.dsts = &dst,
		.ndst = 1,
		.srcs = (const void *const *)srcs,
		.nsrc = nsrc,
		.scales = nscales ? scales : 0,
		.n = n,
		.type = type,
		.out = type,
		.op = op,
		.divisor = divisor,
	};
	pmpi_reduce_floats(&k, isa);
}

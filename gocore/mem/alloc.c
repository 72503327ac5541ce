#define _POSIX_C_SOURCE 200112L

#include "alloc.h"

#include <stdlib.h>
#include <string.h>

void *pmpi_block_new(size_t size) {
	void *p;
	return posix_memalign(&p, 64, size) == 0 ? p : NULL;
}

void pmpi_block_free(void *p) {
	free(p);
}

void pmpi_copy(void *dst, const void *src, size_t n) {
	memmove(dst, src, n);
}

unsigned pmpi_copy_cost(int past, void *dst, const void *src, size_t n) {
	const uint64_t began = pmpi_far_ticks();
	if (past)
		pmpi_copy_past(dst, src, (int64_t)n);
	else
		memcpy(dst, src, n);
	const uint64_t cost = ((pmpi_far_ticks() - began) << 10) / (n + 1);
	return cost < UINT32_MAX ? (unsigned)cost : UINT32_MAX;
}

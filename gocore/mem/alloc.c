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

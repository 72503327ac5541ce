// Copies between an n-d strided tensor and contiguous memory.
#ifndef PADDLEMPI_MEM_STRIDED_H
#define PADDLEMPI_MEM_STRIDED_H

#include <stdint.h>

#pragma GCC visibility push(hidden)

enum { PMPI_MAX_DIMS = 64 };

// pmpi_pack gathers the elements of size bytes (1, 2, 4, 8 or 16) of the
// tensor at src into dst, in row-major order; pmpi_unpack scatters them from
// src into the tensor at dst. strides are in elements. They return 0, or -1
// where ndim or size is not one of those.
int pmpi_pack(void *dst, const void *src, int size, int ndim, const int64_t *shape,
			  const int64_t *strides);
int pmpi_unpack(void *dst, const void *src, int size, int ndim, const int64_t *shape,
				const int64_t *strides);

#pragma GCC visibility pop

#endif

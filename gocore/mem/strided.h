// Copies between an n-dimensional strided tensor and contiguous memory.
#ifndef PADDLEMPI_MEM_STRIDED_H
#define PADDLEMPI_MEM_STRIDED_H

#include <stdint.h>

#pragma GCC visibility push(hidden)

enum { PMPI_MAX_DIMS = 64 };

// pmpi_pack copies the elements of the tensor at src to dst, in row-major order. pmpi_unpack copies
// them from src to the tensor at dst. size is the bytes of an element: 1, 2, 4, 8 or 16. strides
// are in elements. Both return 0, or -1 if ndim or size is out of range.
int pmpi_pack(void *dst, const void *src, int size, int ndim, const int64_t *shape,
			  const int64_t *strides);
int pmpi_unpack(void *dst, const void *src, int size, int ndim, const int64_t *shape,
				const int64_t *strides);

// pmpi_copy_tensor copies the elements of the tensor at src to those of another one of the same shape.
int pmpi_copy_tensor(void *dst, const void *src, int size, int ndim, const int64_t *shape,
			  const int64_t *dst_strides, const int64_t *src_strides);

#pragma GCC visibility pop

#endif

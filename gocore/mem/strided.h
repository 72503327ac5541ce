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

// pmpi_copy_range copies a part of a tensor, bytes [from, from+bytes) of its elements in row-major
// order, to flat memory, or from there to the tensor if into is set. A part may begin and end
// within an element. Returns 0, or -1 if ndim or size is out of range.
int pmpi_copy_range(void *flat, void *tensor, int size, int ndim, const int64_t *shape,
					const int64_t *strides, int64_t from, int64_t bytes, int into);

enum { PMPI_BOX_DIMS = 16 };

// A box is a part of a tensor that is copied: n elements in each of ndim dimensions, with d and s
// bytes from one to the next on the two sides, from dst and src on, in bytes. size is the bytes of
// an element.
typedef struct pmpi_box {
	int64_t dst, src;
	int64_t n[PMPI_BOX_DIMS], d[PMPI_BOX_DIMS], s[PMPI_BOX_DIMS];
	int32_t ndim, size;
} pmpi_box;

// pmpi_make_box sets n, d, s, ndim and size of a box for a tensor of which both sides have strides,
// in elements; a side without them is contiguous. Returns 0, or -1 if the box has too many
// dimensions.
int pmpi_make_box(pmpi_box *box, int size, int ndim, const int64_t *shape,
				  const int64_t *dst_strides, const int64_t *src_strides);

// pmpi_copy_boxes copies boxes, none of which overlaps another one. Two that follow each other in
// the list, and have the same lengths and steps, are copied element by element in turn. These are
// often the two ends of the rows of a tensor, and the end of a row has a cache line in common with
// the beginning of the next.
void pmpi_copy_boxes(void *dst, const void *src, const pmpi_box *boxes, int64_t count);

#pragma GCC visibility pop

#endif

// The arguments of the kernels, which Go writes: the structs of gocore/cuda/kernels.go.
#ifndef PADDLEMPI_KERNELS_ARGUMENTS_H
#define PADDLEMPI_KERNELS_ARGUMENTS_H

#include "dialect.h"

enum { MAX_ARRAYS = 64, MAX_DIMS = 16 };

// ReduceArgs. The arrays need the alignment of their elements only. A destination may be one of the
// sources. Otherwise it must not overlap any of them.
typedef struct pmpi_reduce_args {
	int64_t count; // elements of each array
	int64_t n_src; // 1 to MAX_ARRAYS
	int64_t n_dst; // 1 to MAX_ARRAYS
	const void *src[MAX_ARRAYS];
	void *dst[MAX_ARRAYS];
	double scale[MAX_ARRAYS]; // for PREMUL_SUM: a factor for each source
} pmpi_reduce_args;

// StridedArgs: the elements [from, from + count) of a tensor, in row-major order.
typedef struct pmpi_strided_args {
	int64_t from;
	int64_t count;
	int64_t ndim;       // 0 to MAX_DIMS
	void *flat;         // its first element is element `from`
	void *strided;      // element 0 of the tensor
	int64_t to_strided; // 1: write strided memory; 0: write flat memory
	int64_t shape[MAX_DIMS];
	int64_t strides[MAX_DIMS]; // in elements, of any sign
} pmpi_strided_args;

#endif

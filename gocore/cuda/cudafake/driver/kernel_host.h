// The variables that kernels have in CUDA, for a compilation as C. It is included before each
// source.
#ifndef FAKECUDA_KERNEL_HOST_H
#define FAKECUDA_KERNEL_HOST_H

struct pmpi_dim3 {
	unsigned x, y, z;
};

extern __thread struct pmpi_dim3 threadIdx, blockIdx, blockDim, gridDim;

#endif

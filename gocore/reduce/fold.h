// A reduction of many sources into many destinations, as the ranks of a node need it.
#ifndef PADDLEMPI_REDUCE_FOLD_H
#define PADDLEMPI_REDUCE_FOLD_H

#include <stdint.h>

// pmpi_fold describes a reduction. fold.go has the same struct.
typedef struct pmpi_fold {
	int32_t type;    // PMPI_T_* of kernels.h, or PMPI_T_F16, PMPI_T_BF16
	int32_t op;      // PMPI_K_*
	int32_t scaled;  // every source is multiplied by scale first
	int32_t divisor; // the result is divided by it; 1 for no division
	double scale;
	int32_t isa; // PMPI_ISA_* of the 16-bit kernels
	int32_t out; // of the results: as type, or as pmpi_floats says
} pmpi_fold;

// A pmpi_folder reduces n elements at each of src, in their order, and writes the result to each of
// dst. A destination may be one of the sources, but none may overlap another one in part. With one
// source of its own type it copies. Sums of 16-bit floats are made in float32 and rounded once. The
// rounding mode and the treatment of subnormal numbers are the default ones, whatever the thread
// has set; the thread's settings are put back. The bits of an element do not depend on n or on
// where it lies.
typedef void (*pmpi_folder)(const pmpi_fold *f, void *const *dst, int ndst, const void *const *src,
							int nsrc, int64_t n);

// pmpi_fold_address returns the folder of this library. pmpi_fold_one calls it for one destination.
pmpi_folder pmpi_fold_address(void);
void pmpi_fold_one(const pmpi_fold *f, void *dst, void *const *src, int nsrc, int64_t n);

#endif

// Aligned memory outside the Go heap.
#ifndef PADDLEMPI_MEM_ALLOC_H
#define PADDLEMPI_MEM_ALLOC_H

#include <stddef.h>

#pragma GCC visibility push(hidden)

// pmpi_block_new returns size bytes that begin at a multiple of 64, or NULL.
void *pmpi_block_new(size_t size);

// pmpi_block_free gives back a block of pmpi_block_new.
void pmpi_block_free(void *p);

// pmpi_copy is memmove.
void pmpi_copy(void *dst, const void *src, size_t n);

#pragma GCC visibility pop

#endif

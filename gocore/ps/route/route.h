/* How the ids of a batch travel to the servers: every id once, by the server that has its row; the
 * rows that come back, spread over the batch; and the gradients of equal ids, added up.
 *
 * The ids are found in a hash set of 32-bit words, which lives for one call: an index into the list
 * of the ids seen so far, and in the bits that the index leaves free a part of the hash. Its key is
 * random, so nobody can choose ids that collide. What decides on the server is another hash, which
 * is the same in every process. */
#ifndef PMPI_PS_ROUTE_H
#define PMPI_PS_ROUTE_H

#include <stddef.h>
#include <stdint.h>

#pragma GCC visibility push(hidden)

enum { PR_PORTABLE, PR_AVX2, PR_AVX512 };

enum { PR_FLOAT32, PR_FLOAT16, PR_BFLOAT16 };

enum { PR_BY_HASH, PR_BY_MODULO };

/* pr_scratch returns how many bytes of scratch memory pr_plan needs for n ids. */
int64_t pr_scratch(int64_t n);

/* pr_plan plans n ids of id_bytes (4 or 8), n at most 2^30. It writes the ids, each once, to
 * unique, which has room for n: those of server 0 first, and those of a server in order of first
 * appearance. starts gets servers+1 places in unique, where each server's ids begin. inverse gets
 * the place in unique of each of the n ids. first gets 1 for the first appearance of an id, else 0.
 * offset is added to an id before its server is found; with PR_BY_MODULO it is from 0 to servers-1.
 * key[1] is odd. scratch is aligned to 8 bytes. */
void pr_plan(const void *ids, int64_t n, int32_t id_bytes, int32_t by, int64_t servers,
			 int64_t offset, const uint64_t *key, int64_t *unique, int64_t *starts,
			 int32_t *inverse, uint8_t *first, void *scratch);

/* pr_same returns 1 if the n ids are those of unique that inverse names, else 0. */
int32_t pr_same(const void *ids, int64_t n, int32_t id_bytes, const int64_t *unique,
				const int32_t *inverse);

/* pr_gather copies the row inverse[i] of rows to the place i of out, for n places. */
void pr_gather(int32_t isa, void *out, const void *rows, int64_t row_bytes, const int32_t *inverse,
			   int64_t n);

/* pr_widen is pr_gather for rows of 16-bit floats, PR_FLOAT16 or PR_BFLOAT16, which become float32.
 */
void pr_widen(int32_t isa, float *out, const uint16_t *rows, int32_t dtype, int64_t dim,
			  const int32_t *inverse, int64_t n);

/* pr_sum adds row i of gradients to the row inverse[i] of sums, or sets it where first[i] is 1, in
 * the order of i and in float32. Rounding and subnormal numbers are treated as usual, whatever the
 * thread has set. Returns 0 if all sums that were written are finite. */
uint32_t pr_sum(int32_t isa, float *sums, const void *gradients, int32_t dtype, int64_t dim,
				const int32_t *inverse, const uint8_t *first, int64_t n);

/* pr_not_finite returns the place of the first of n values that is infinite or no number; -1 if all
 * are finite. */
int64_t pr_not_finite(const float *values, int64_t n);

/* The code for one instruction set (hot.h). */
#define PR_DECLARE(isa)                                                                            \
	void pr_gather_##isa(char *out, const char *rows, int64_t row_bytes, const int32_t *inverse,   \
						 int64_t n);                                                               \
	void pr_widen_##isa(float *out, const uint16_t *rows, int32_t dtype, int64_t dim,              \
						const int32_t *inverse, int64_t n);                                        \
	uint32_t pr_sum_##isa(float *sums, const void *gradients, int32_t dtype, int64_t dim,          \
						  const int32_t *inverse, const uint8_t *first, int64_t n);
PR_DECLARE(portable)
PR_DECLARE(avx2)
PR_DECLARE(avx512)

#pragma GCC visibility pop

#endif

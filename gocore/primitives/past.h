/* Copies into memory that another core reads next, and copies past the caches.
 *
 * Where two cores share a cache, what one of them writes for the other is best written into it.
 * Where they do not, the lines of memory that is used again and again stay in the cache of the
 * reader: to write to them takes eight times as long as past the caches, while the reader needs
 * half as long again at most. Which of the two it is changes while a job runs: the kernel moves
 * ranks, and hypervisors move cores. So a writer times its copies, and now and then one of the
 * other kind. */
#ifndef PADDLEMPI_PRIMITIVES_PAST_H
#define PADDLEMPI_PRIMITIVES_PAST_H

#include <stdint.h>
#include <string.h>
#if defined(__x86_64__)
#include <emmintrin.h>
#endif

/* pmpi_far is what a writer knows of its copies. Zeros: nothing yet. One thread uses it at a time.
 */
typedef struct pmpi_far {
	uint64_t cost[2]; /* of a KiB, in ticks: into the caches, and past them; 0: not known */
	uint32_t copies;  /* that were timed */
} pmpi_far;

enum { PMPI_FAR_TIMED = 4096, PMPI_FAR_PROBE_EVERY = 64 };

/* pmpi_copy_past copies n bytes past the caches. The two do not overlap. */
static inline void pmpi_copy_past(char *to, const char *from, int64_t n) {
#if defined(__x86_64__)
	enum { LINE = 64 };
	if (n >= 4 * LINE) {
		int64_t head = -(intptr_t)to & (LINE - 1);
		memcpy(to, from, (size_t)head);
		for (to += head, from += head, n -= head; n >= LINE; to += LINE, from += LINE, n -= LINE) {
			__m128i a = _mm_loadu_si128((const __m128i *)from),
					b = _mm_loadu_si128((const __m128i *)from + 1);
			__m128i c = _mm_loadu_si128((const __m128i *)from + 2),
					d = _mm_loadu_si128((const __m128i *)from + 3);
			_mm_stream_si128((__m128i *)to, a);
			_mm_stream_si128((__m128i *)to + 1, b);
			_mm_stream_si128((__m128i *)to + 2, c);
			_mm_stream_si128((__m128i *)to + 3, d);
		}
		_mm_sfence();
	}
#endif
	if (n > 0)
		memcpy(to, from, (size_t)n);
}

static inline uint64_t pmpi_far_ticks(void) {
#if defined(__x86_64__)
	return __builtin_ia32_rdtsc();
#else
	return 0;
#endif
}

static inline int pmpi_far_past(const pmpi_far *far) {
	int past;
	if (!far->cost[0] || !far->cost[1])
		return far->cost[0] != 0;
	past = far->cost[0] > 2 * far->cost[1];
	return far->copies % PMPI_FAR_PROBE_EVERY == 0 ? !past : past;
}

/* pmpi_copy_far copies n bytes to where another core reads them. The two do not overlap. */
static inline void pmpi_copy_far(pmpi_far *far, char *to, const char *from, int64_t n) {
	uint64_t began = n < PMPI_FAR_TIMED ? 0 : pmpi_far_ticks(), cost;
	int past = began != 0 && pmpi_far_past(far);
	if (past)
		pmpi_copy_past(to, from, n);
	else if (n > 0)
		memcpy(to, from, (size_t)n);
	if (began == 0)
		return;
	cost = 1 + ((pmpi_far_ticks() - began) << 10) / (uint64_t)n;
	far->copies++;
	if (far->cost[past] == 0 || cost < far->cost[past])
		far->cost[past] = cost;
	else /* a thread that lost its core for a while says little of the copy */
		far->cost[past] +=
			((cost < 4 * far->cost[past] ? cost : 4 * far->cost[past]) - far->cost[past]) / 8;
}

#endif

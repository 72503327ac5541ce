/* Payloads of PM_SHORT bytes and more lie beside the ring, in the bulk. They are written into the
 * caches, or past them, and over the whole bulk, or over a part of it that stays in the caches.
 * That is the reach of the writer.
 *
 * Where the cores of a pair share a cache, to write into the caches is faster for both. Where they
 * do not, the reader fetches each line out of the writer's cache, which takes it several times as
 * long as from memory. A small reach leaves room in the caches for what else the ranks use; but to
 * write to a line that another core still holds takes several times as long on some processors.
 * Neither side knows that beforehand, it changes when the kernel moves a rank, and the writer alone
 * does not notice it. So both sides time their copies, and the reader shows what its own take. */
#ifndef PADDLEMPI_MEMORY_BULK_H
#define PADDLEMPI_MEMORY_BULK_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "../../primitives/words.h"
#include "../../primitives/past.h"

enum {
	PM_LINE = 64,
	PM_SHORT = 4 << 10,         /* payloads below lie in the ring */
	PM_PIECE = 32 << 10,        /* of a message: both sides copy at the same time */
	PM_EAGER = 64 << 10,        /* of a message that is sent before anybody asked for it */
	PM_MOST = 1 << 20,          /* of one whose receiver waits for it */
	PM_MOST_OF_LONG = 64 << 10, /* of a packet of a long message */
	PM_REACH = 512 << 10        /* the small reach */
};

/* How payloads are written. */
enum { PM_CLOSE /* into the caches, in a small reach */, PM_NEAR, PM_PAST, PM_WAYS };

/* Of the word kind of a packet. */
enum { PM_KIND = 0xff, PM_REACH_FROM = 8, PM_REACH_BITS = 0x3f, PM_WAY_FROM = 16, PM_WAY_BITS = 3 };

/* One end of a bulk. */
typedef struct pm_bulk {
	uint64_t *tail;  /* what the reader has read */
	uint32_t *costs; /* what the reader's copies take, in ticks for each KiB; 0: not known */
	char *data;
	uint64_t bytes, mine;
	float own[PM_WAYS]; /* what copies of this end take; 0: not known */
	/* Of the writer: */
	int32_t way, trying;         /* what it takes; what it tries */
	int32_t tries, reach;        /* how often it has tried; log2 of the bytes it writes to, or 0 */
	int64_t trial, until, pause; /* bytes until a trial ends, or 0; until the next one; between */
} pm_bulk;

/* A trial of copies into the caches is long enough for the reach to be in them again, unless it
 * takes long from the beginning on. One of copies past them need not be. After one in vain it takes
 * longer until the next one. */
enum {
	PM_TRIAL = 4 << 20,
	PM_EARLY = 512 << 10,
	PM_FIRST_TRIAL = 8 << 20, /* bytes before it */
	PM_LEAST_PAUSE = 128 << 20,
	PM_MOST_PAUSE = 512 << 20
};

/* pm_lines returns how many bytes the cache lines of n bytes have. */
static inline uint64_t pm_lines(uint64_t n) {
	return (n + PM_LINE - 1) & ~(uint64_t)(PM_LINE - 1);
}

static inline int pm_log2(uint64_t n) {
	return 63 - __builtin_clzll(n);
}

/* pm_way returns how the next payload is written. */
static inline int pm_way(const pm_bulk *b) {
	return b->trial > 0 ? b->trying : b->way;
}

/* pm_reach returns log2 of the bytes that n bytes are written to, and those that follow. */
static inline int pm_reach(const pm_bulk *b, uint64_t n) {
	const uint64_t small = n <= PM_REACH ? PM_REACH : UINT64_C(1) << (pm_log2(n - 1) + 1);
	return pm_log2(pm_way(b) == PM_CLOSE && small < b->bytes ? small : b->bytes);
}

/* pm_bulk_fits tells whether n bytes fit; -1: the reader's word cannot be. The reach changes while
 * nothing lies there. */
static inline int pm_bulk_fits(pm_bulk *b, uint64_t n) {
	const uint64_t used = b->mine - sw_read64(b->tail);
	if (used > b->bytes)
		return -1;
	if (used == 0)
		b->reach = pm_reach(b, n);
	return used + pm_lines(n) <= UINT64_C(1) << b->reach;
}

/* pm_timed copies, and returns what it took; 0: there is no clock. */
static inline uint32_t pm_timed(void *to, const void *from, uint64_t n, bool past) {
	const uint64_t began = pmpi_far_ticks();
	if (past)
		pmpi_copy_past(to, from, (int64_t)n);
	else
		memcpy(to, from, n);
	const uint64_t took = pmpi_far_ticks() - began;
	return began == 0 || n < 1024 ? 0 : (uint32_t)(1 + (took << 10) / n);
}

/* pm_know notes what a copy took. A rank that lost its core for a while says little of the copy. */
static inline void pm_know(float *known, uint32_t cost) {
	const float now = (float)cost;
	if (cost != 0)
		*known = *known == 0 ? now : *known + ((now < 4 * *known ? now : 4 * *known) - *known) / 16;
}

/* pm_learn notes what it took to write n bytes, and chooses. */
static inline void pm_learn(pm_bulk *b, int way, uint32_t cost, uint64_t n) {
	pm_know(&b->own[way], cost);
	if (b->trial == 0) {
		if (b->pause == 0) {
			b->pause = PM_LEAST_PAUSE / 4;
			b->until = PM_FIRST_TRIAL;
		}
		if ((b->until -= (int64_t)n) <= 0 && cost > 0) {
			b->trying = (b->way + 1 + b->tries++ % (PM_WAYS - 1)) % PM_WAYS;
			b->trial = PM_TRIAL;
			b->own[b->trying] = 0;
		}
		return;
	}
	if ((b->trial -= (int64_t)n) > PM_TRIAL - PM_EARLY)
		return;
	const float reads[2] = {(float)__atomic_load_n(&b->costs[b->way], __ATOMIC_RELAXED),
							(float)__atomic_load_n(&b->costs[b->trying], __ATOMIC_RELAXED)};
	const float now = b->own[b->way] + reads[0], other = b->own[b->trying] + reads[1];
	if (b->trial > 0 && b->trying != PM_PAST && other < 3 * now)
		return;
	b->trial = 0;
	b->pause = b->pause * 2 < PM_MOST_PAUSE ? b->pause * 2 : PM_MOST_PAUSE;
	if (reads[1] > 0 && other < now * 7 / 8) {
		b->way = b->trying;
		b->pause = PM_LEAST_PAUSE;
	}
	b->until = b->pause;
}

/* pm_bulk_put writes a payload, for which there is room. Returns its mark in the packet. */
static inline uint32_t pm_bulk_put(pm_bulk *b, const void *payload, uint64_t n) {
	const int way = pm_way(b);
	const uint64_t reach = UINT64_C(1) << b->reach, at = b->mine % reach;
	const uint64_t first = n < reach - at ? n : reach - at;
	const uint32_t cost = pm_timed(b->data + at, payload, first, way == PM_PAST);
	if (first < n)
		pm_timed(b->data, (const char *)payload + first, n - first, way == PM_PAST);
	pm_learn(b, way, cost, n);
	b->mine += pm_lines(n);
	return (uint32_t)b->reach << PM_REACH_FROM | (uint32_t)way << PM_WAY_FROM;
}

/* pm_bulk_take copies n bytes of a payload that is behind ahead bytes. kind is that of the packet,
 * of which nothing is believed. */
static inline void pm_bulk_take(pm_bulk *b, uint64_t ahead, uint32_t kind, void *to, uint64_t n,
								bool unread) {
	uint64_t reach = UINT64_C(1) << (kind >> PM_REACH_FROM & PM_REACH_BITS);
	const uint32_t way = kind >> PM_WAY_FROM & PM_WAY_BITS;
	if (reach > b->bytes || reach < n)
		reach = b->bytes;
	const uint64_t at = (b->mine + ahead) % reach, first = n < reach - at ? n : reach - at;
	const uint32_t cost = pm_timed(to, b->data + at, first, unread);
	if (first < n)
		pm_timed((char *)to + first, b->data, n - first, unread);
	if (way < PM_WAYS && !unread) {
		pm_know(&b->own[way], cost);
		__atomic_store_n(&b->costs[way], (uint32_t)b->own[way], __ATOMIC_RELAXED);
	}
}

#endif

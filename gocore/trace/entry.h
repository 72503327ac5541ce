/* An entry of the flight recorder, for C that carries out an operation without Go. ring.go says how
 * entries are written, and has the same numbers. */
#ifndef PADDLEMPI_TRACE_ENTRY_H
#define PADDLEMPI_TRACE_ENTRY_H

#include <stdint.h>
#include <string.h>
#include <time.h>

#include "../primitives/words.h"

enum {
	TR_ENTRIES = 1024, /* that operations use while nobody records: a power of 2 */
	TR_ROOM = 16384,   /* that they use at the most, while somebody does: a power of 2 */
	TR_WRITING = 1,    /* bits of an entry's word, below the number of its operation */
	TR_ENDED = 2,
	TR_NUMBER_FROM = 2,
	TR_TRIES = 16, /* entries that an operation looks at before it goes without one */
	TR_ASYNC = 1,  /* flags */
	TR_MESSAGE = 2,
	TR_CLOCK_COUNTER = 1 /* times are those of the time stamp counter, else nanoseconds */
};

typedef struct tr_entry {
	uint64_t word, submitted, begun, ended, outcome, seq;
	uint32_t group, flags;
	uint64_t arrived, signature[3];
	char algorithm[16];
	int32_t peer[2], tag[2];
	uint32_t phase[2];
} tr_entry;

/* What an operation reads and writes to find its entry, in the header of the ring; counts of
 * ring.go. */
typedef struct tr_counts {
	uint64_t next, wide, lease, lost, passed, widened;
} tr_counts;

/* Where the ring of this process is; Shared. */
typedef struct tr_ring {
	tr_counts *counts;
	tr_entry *list; /* NULL: there is no ring */
	uint64_t clock; /* TR_CLOCK_COUNTER, or another one */
} tr_ring;

/* tr_now returns the time as entries have it. */
static inline uint64_t tr_now(const tr_ring *r) {
#if defined(__x86_64__)
	if (r->clock == TR_CLOCK_COUNTER)
		return __builtin_ia32_rdtsc();
#endif
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

/* tr_place is counts.place: where the entry of operation n is. */
static inline uint64_t tr_place(const tr_ring *r, uint64_t n) {
	uint64_t wide = __atomic_load_n(&r->counts->wide, __ATOMIC_RELAXED);
	if (wide != 0 && n % TR_ENTRIES == 0 &&
		tr_now(r) > __atomic_load_n(&r->counts->lease, __ATOMIC_RELAXED)) {
		wide = 0;
		__atomic_store_n(&r->counts->wide, wide, __ATOMIC_RELAXED);
	}
	return n & (TR_ENTRIES - 1 + (wide & (TR_ROOM - TR_ENTRIES)));
}

/* tr_take is Ring.take: it returns an entry to write to and its word, or NULL. */
static inline tr_entry *tr_take(const tr_ring *r, uint64_t *word) {
	for (int i = 0; i < TR_TRIES; i++) {
		const uint64_t n = __atomic_add_fetch(&r->counts->next, 1, __ATOMIC_RELAXED);
		tr_entry *e = &r->list[tr_place(r, n)];
		uint64_t old = __atomic_load_n(&e->word, __ATOMIC_RELAXED);
		*word = n << TR_NUMBER_FROM;
		if ((old == 0 || (old & (TR_WRITING | TR_ENDED)) == TR_ENDED) &&
			sw_swap64(&e->word, &old, *word | TR_WRITING))
			return e;
		__atomic_add_fetch(&r->counts->passed, 1, __ATOMIC_RELAXED);
	}
	__atomic_add_fetch(&r->counts->lost, 1, __ATOMIC_RELAXED);
	return NULL;
}

/* tr_message enters a message that has ended without an error. */
static inline void tr_message(const tr_ring *r, int64_t group, uint64_t operation, uint64_t count,
							  uint32_t flags, int32_t peer, int32_t tag, uint64_t since) {
	uint64_t word;
	tr_entry *e = r->list ? tr_take(r, &word) : NULL;
	if (e == NULL)
		return;
	const tr_entry full = {.submitted = since,
						   .begun = since,
						   .ended = tr_now(r),
						   .group = (uint32_t)group,
						   .flags = flags | TR_MESSAGE,
						   .signature = {operation, count},
						   .peer = {peer, -1},
						   .tag = {tag, 0}};
	memcpy(&e->submitted, &full.submitted, sizeof full - sizeof full.word);
	sw_write64(&e->word, word | TR_ENDED);
}

#endif

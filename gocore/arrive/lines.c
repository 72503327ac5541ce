#define _GNU_SOURCE
#include "lines.h"

#include <sched.h>
#include <string.h>

_Static_assert(sizeof(pa_slot) == 64, "a slot is one cache line");
_Static_assert(sizeof(pa_member) == 256, "a member is four cache lines");

static inline void pa_pause(void) {
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ __volatile__("yield");
#endif
}

static uint8_t *notes(const pa_member *m, int n, int i, uint64_t seq) {
	return (uint8_t *)(m + n) + (2 * (size_t)i + (seq & 1)) * PA_NOTE;
}

int64_t pa_size(int n) {
	return (int64_t)n * (sizeof(pa_member) + 2 * PA_NOTE) + 2 * (int64_t)PA_CHUNKS(n) * 8;
}

const void *pa_note(const pa_member *m, int n, int i, uint64_t seq) {
	const pa_slot *s = &m[i].slot[seq & 1];
	return s->note <= PA_BRIEF ? s->brief : notes(m, n, i, seq);
}

uint64_t *pa_chunks(pa_member *m, int n, uint64_t seq) {
	return (uint64_t *)notes(m, n, n, 0) + (seq & 1) * PA_CHUNKS(n);
}

void pa_announce(pa_member *m, int n, int me, uint64_t seq, const uint64_t *word, uint32_t flags,
				 const uint8_t *note, uint32_t bytes) {
	pa_slot *s = &m[me].slot[seq & 1];
	if (bytes > 0)
		memcpy(bytes <= PA_BRIEF ? s->brief : notes(m, n, me, seq), note, bytes);
	s->note = bytes;
	for (int i = 0; i < PA_WORDS; i++)
		s->word[i] = word[i];
	s->flags = flags;
	uint64_t old = __atomic_load_n(&s->seq, __ATOMIC_RELAXED);
	if (old != (seq | PA_CLOSED_BIT))
		__atomic_compare_exchange_n(&s->seq, &old, seq, 0, __ATOMIC_RELEASE, __ATOMIC_RELAXED);
}

int pa_poll(const pa_member *m, int n, int me, uint64_t seq, int spin, int yield_every, int *from,
			uint32_t *all, uint32_t *any, uint32_t *diff) {
	int i = *from, paused = 0;
	while (i < n) {
		uint64_t there = __atomic_load_n(&m[i].slot[seq & 1].seq, __ATOMIC_ACQUIRE);
		if (there == seq) {
			i++;
			continue;
		}
		if (__builtin_expect(there == (seq | PA_CLOSED_BIT), 0))
			return PA_CLOSED;
		if (spin-- <= 0) {
			*from = i;
			return PA_PENDING;
		}
		if (yield_every && ++paused % yield_every == 0)
			sched_yield();
		else
			pa_pause();
	}
	*from = n;
	const pa_slot *mine = &m[me].slot[seq & 1];
	uint32_t both = ~0u, either = 0, d = 0;
	for (i = 0; i < n; i++) {
		const pa_slot *s = &m[i].slot[seq & 1];
		both &= s->flags;
		either |= s->flags;
		for (int w = 0; w < PA_WORDS; w++)
			d |= (uint32_t)(s->word[w] != mine->word[w]) << w;
	}
	*all = both;
	*any = either;
	*diff = d;
	return d ? PA_DIFFER : PA_AGREED;
}

int pa_arrive(pa_member *m, int n, int me, uint64_t seq, const uint64_t *word, uint32_t flags,
			  const uint8_t *note, uint32_t bytes, int spin, int yield_every, int *from,
			  uint32_t *all, uint32_t *any, uint32_t *diff) {
	pa_announce(m, n, me, seq, word, flags, note, bytes);
	*from = 0;
	return pa_poll(m, n, me, seq, spin, yield_every, from, all, any, diff);
}

static uint64_t announced(const pa_slot *s) {
	uint64_t seq = __atomic_load_n(&s->seq, __ATOMIC_ACQUIRE);
	return seq & PA_CLOSED_BIT ? 0 : seq;
}

uint64_t pa_seq(const pa_member *m, int i) {
	uint64_t a = announced(&m[i].slot[0]), b = announced(&m[i].slot[1]);
	return a > b ? a : b;
}

int pa_close(pa_member *m, int n, int me, uint64_t seq, uint32_t reason) {
	uint64_t want = seq | PA_CLOSED_BIT;
	int closed = 0;
	m[me].reason = reason;
	__atomic_store_n(&m[me].closed, seq, __ATOMIC_RELEASE);
	for (int i = 0; i < n; i++) {
		uint64_t *at = &m[i].slot[seq & 1].seq, old = __atomic_load_n(at, __ATOMIC_ACQUIRE);
		while (
			old != seq && old != want &&
			!__atomic_compare_exchange_n(at, &old, want, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
		}
		closed |= old != seq;
	}
	if (!closed)
		__atomic_store_n(&m[me].closed, 0, __ATOMIC_RELEASE);
	return closed;
}

uint32_t pa_closer(const pa_member *m, int i, uint64_t seq) {
	return __atomic_load_n(&m[i].closed, __ATOMIC_ACQUIRE) == seq ? m[i].reason : 0;
}

void pa_explain(pa_member *m, int me, uint32_t reason) {
	__atomic_store_n(&m[me].reason, reason, __ATOMIC_RELEASE);
}

uint32_t pa_why(const pa_member *m, int i) {
	return __atomic_load_n(&m[i].reason, __ATOMIC_ACQUIRE);
}

void pa_leave(pa_member *m, int me) {
	__atomic_store_n(&m[me].left, 1, __ATOMIC_RELEASE);
}

int pa_left(const pa_member *m, int i) {
	return __atomic_load_n(&m[i].left, __ATOMIC_ACQUIRE) != 0;
}

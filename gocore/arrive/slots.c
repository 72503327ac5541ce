#define _GNU_SOURCE
#include "slots.h"

#include "../primitives/doorbells.h"
#include "../primitives/kill.h"
#include "../primitives/words.h"
#include "../primitives/yield.h"

#include <string.h>

_Static_assert(sizeof(pa_slot) == 64, "a slot is one cache line");
_Static_assert(sizeof(pa_member) == (PA_SLOTS + 2) * 64, "a member is whole cache lines");
_Static_assert((PA_SLOTS & (PA_SLOTS - 1)) == 0, "slots are counted with a mask");

/* refused_here is the seq of a slot whose member has announced, and which was marked before. */
static inline uint64_t refused_here(uint64_t seq) {
	return seq | PA_REFUSED_BIT | PA_HERE_BIT;
}

/* is_here tells whether the seq of a slot says that its member has announced seq. */
static inline int is_here(uint64_t there, uint64_t seq) {
	return there == seq || there == refused_here(seq);
}

static inline int slot_of(uint64_t seq) {
	return (int)(seq & (PA_SLOTS - 1));
}

/* is_possible tells whether the seq of a slot is what some member writes there, while this one
 * waits for seq: a number up to seq that belongs into that slot, with the bits that it may have. */
static inline int is_possible(uint64_t there, uint64_t seq) {
	const uint64_t all = PA_CLOSED_BIT | PA_REFUSED_BIT | PA_HERE_BIT;
	const uint64_t number = there & ~all, bits = there & all;
	if (there == 0)
		return 1; /* never used */
	return number > 0 && number <= seq && slot_of(number) == slot_of(seq) &&
		   (bits == 0 || bits == PA_CLOSED_BIT || bits == PA_REFUSED_BIT ||
			bits == (PA_REFUSED_BIT | PA_HERE_BIT));
}

int pa_room(int n) {
	int share = PA_NOTES / n / 64 * 64;
	return share > PA_NOTE ? PA_NOTE : share < PA_LEAST_NOTE ? PA_LEAST_NOTE : share;
}

static uint8_t *payloads(const pa_member *m, int n, int i, uint64_t seq) {
	return (uint8_t *)(m + n) + ((size_t)PA_SLOTS * i + slot_of(seq)) * pa_room(n);
}

int64_t pa_size(int n) {
	return (int64_t)n * (sizeof(pa_member) + PA_SLOTS * pa_room(n)) +
		   PA_SLOTS * (int64_t)PA_CHUNKS(n) * 8;
}

const void *pa_payload(const pa_member *m, int n, int i, uint64_t seq, uint32_t *bytes) {
	const pa_slot *s = &m[i].slot[slot_of(seq)];
	*bytes = __atomic_load_n(&s->payload, __ATOMIC_RELAXED);
	if (*bytes > PA_BRIEF && *bytes > (uint32_t)pa_room(n))
		*bytes = 0;
	return *bytes <= PA_BRIEF ? s->brief : payloads(m, n, i, seq);
}

uint64_t *pa_chunks(pa_member *m, int n, uint64_t seq) {
	return (uint64_t *)payloads(m, n, n, 0) + (size_t)slot_of(seq) * PA_CHUNKS(n);
}

void pa_announce(pa_member *m, int n, int me, uint64_t seq, const uint64_t *word, uint32_t flags,
				 const uint8_t *payload, uint32_t bytes) {
	pa_slot *s = &m[me].slot[slot_of(seq)];
	if (bytes > 0)
		memcpy(bytes <= PA_BRIEF ? s->brief : payloads(m, n, me, seq), payload, bytes);
	s->payload = (uint16_t)bytes;
	__atomic_store_n(&s->late, 0, __ATOMIC_RELAXED);
	for (int i = 0; i < PA_WORDS; i++)
		s->word[i] = word[i];
	s->flags = flags;
	PMPI_KILL_POINT("before-announce");
	uint64_t old = __atomic_load_n(&s->seq, __ATOMIC_RELAXED), here;
	do {
		if (old == (seq | PA_CLOSED_BIT))
			return;
		here = old == (seq | PA_REFUSED_BIT) ? refused_here(seq) : seq;
	} while (!sw_publish64(&s->seq, &old, here));
	PMPI_KILL_POINT("after-announce");
	pmpi_ring();
}

int pa_refuse(pa_member *m, int n, int me, uint64_t seq) {
	__atomic_store_n(&m[me].slot[slot_of(seq)].late, 1, __ATOMIC_RELAXED);
	PMPI_KILL_POINT("before-refuse");
	for (int i = 0; i < n; i++) {
		uint64_t *at = &m[i].slot[slot_of(seq)].seq, old = sw_read64(at);
		while (!is_here(old, seq) && old != (seq | PA_CLOSED_BIT))
			if (sw_swap64(at, &old, seq | PA_REFUSED_BIT)) {
				PMPI_KILL_POINT("after-refuse");
				pmpi_ring();
				return 1;
			}
		if (old == refused_here(seq))
			return 1; /* another member has refused it */
	}
	return 0;
}

int pa_late(const pa_member *m, int n, int i, uint64_t seq) {
	int marked = 0;
	for (int k = 0; k < n; k++)
		marked |= sw_read64(&m[k].slot[slot_of(seq)].seq) == refused_here(seq);
	return marked && __atomic_load_n(&m[i].slot[slot_of(seq)].late, __ATOMIC_RELAXED);
}

int pa_finished(const pa_member *m, int n, uint64_t seq) {
	for (int i = 0; i < n; i++)
		if (sw_read64(&m[i].finished) < seq)
			return 0;
	return 1;
}

int pa_has_finished(const pa_member *m, int i, uint64_t seq) {
	return sw_read64(&m[i].finished) >= seq;
}

int pa_may_announce(const pa_member *m, int n, uint64_t seq) {
	return seq < PA_SLOTS || pa_finished(m, n, seq - PA_SLOTS + 1);
}

static void turn(pa_member *m, int me, uint64_t seq) {
	PMPI_KILL_POINT("before-finished");
	sw_write64(&m[me].finished, seq - 1);
	PMPI_KILL_POINT("after-finished");
}

void pa_turn(pa_member *m, int me, uint64_t seq) {
	turn(m, me, seq);
	pmpi_ring();
}

int pa_poll(const pa_member *m, int n, int me, uint64_t seq, int spin, int yield_every, int *from,
			uint32_t *all, uint32_t *any, uint32_t *diff) {
	int i = *from, paused = 0;
	while (i < n) {
		uint64_t there = sw_read64(&m[i].slot[slot_of(seq)].seq);
		if (is_here(there, seq)) {
			i++;
			continue;
		}
		if (__builtin_expect(there == (seq | PA_CLOSED_BIT), 0))
			return PA_CLOSED;
		if (spin-- <= 0) {
			*from = i;
			return is_possible(there, seq) ? PA_PENDING : PA_RUBBISH;
		}
		if (pmpi_linger(++paused, yield_every))
			spin = 0;
	}
	PMPI_KILL_POINT("all-arrived");
	*from = n;
	const pa_slot *mine = &m[me].slot[slot_of(seq)];
	uint32_t both = ~0u, either = 0, d = 0;
	for (i = 0; i < n; i++) {
		const pa_slot *s = &m[i].slot[slot_of(seq)];
		if (__builtin_expect(sw_read64(&s->seq) != seq, 0))
			either |= PA_REFUSED;
		const uint32_t flags = __atomic_load_n(&s->flags, __ATOMIC_RELAXED);
		both &= flags;
		either |= flags;
		for (int w = 0; w < PA_WORDS; w++)
			d |= (uint32_t)(s->word[w] != mine->word[w]) << w;
	}
	*all = both;
	*any = either;
	*diff = d;
	return d ? PA_DIFFER : PA_AGREED;
}

int pa_arrive(pa_member *m, int n, int me, uint64_t seq, const uint64_t *word, uint32_t flags,
			  const uint8_t *payload, uint32_t bytes, int spin, int yield_every, int *from,
			  uint32_t *all, uint32_t *any, uint32_t *diff, const pa_sum *s, const char *fold) {
	turn(m, me, seq);
	pa_announce(m, n, me, seq, word, flags, payload, bytes);
	*from = 0;
	int state = pa_poll(m, n, me, seq, spin, yield_every, from, all, any, diff);
	if (s == NULL || state != PA_AGREED || (*all & s->need) != s->need || (*any & s->avoid) ||
		n > PA_SUMMED)
		return state;
	const void *payloads[PA_SUMMED];
	for (int i = 0; i < n; i++) {
		uint32_t length;
		payloads[i] = pa_payload(m, n, i, seq, &length);
		if (length != bytes)
			return state;
	}
	void *to = (void *)s->to;
	((pa_folder)s->folder)(fold, &to, 1, payloads, n, s->count);
	return PA_SUMMED_UP;
}

int pa_here(const pa_member *m, int i, uint64_t seq) {
	return is_here(sw_read64(&m[i].slot[slot_of(seq)].seq), seq);
}

void pa_blame(pa_member *m, int me, int i) {
	sw_write32(&m[me].blamed, (uint32_t)i + 1);
}

int pa_blamed(const pa_member *m, int n, int i) {
	const uint32_t who = sw_read32(&m[i].blamed);
	return who <= (uint32_t)n ? (int)who : 0;
}

void pa_stop(pa_member *m, int me, uint64_t seq, uint32_t reason) {
	uint64_t closed = m[me].closed; /* only this member writes it */
	if (closed != 0 && closed <= seq)
		return;
	__atomic_store_n(&m[me].reason, reason, __ATOMIC_RELAXED);
	sw_write64(&m[me].closed, seq);
	PMPI_KILL_POINT("after-stop");
	pmpi_ring();
}

int pa_close(pa_member *m, int n, int me, uint64_t seq, uint32_t reason) {
	uint64_t want = seq | PA_CLOSED_BIT;
	int closed = 0;
	__atomic_store_n(&m[me].trying, reason, __ATOMIC_RELAXED);
	sw_write64(&m[me].closing, seq);
	PMPI_KILL_POINT("before-close");
	for (int i = 0; i < n; i++) {
		uint64_t *at = &m[i].slot[slot_of(seq)].seq, old = sw_read64(at);
		while (!is_here(old, seq) && old != want && !sw_swap64(at, &old, want)) {
		}
		closed |= !is_here(old, seq);
		PMPI_KILL_POINT("in-close");
	}
	if (closed)
		pa_stop(m, me, seq, reason);
	sw_write64(&m[me].closing, 0);
	PMPI_KILL_POINT("after-close");
	pmpi_ring();
	return closed;
}

static int is_closed(const pa_member *m, int n, uint64_t seq) {
	for (int i = 0; i < n; i++)
		if (sw_read64(&m[i].slot[slot_of(seq)].seq) == (seq | PA_CLOSED_BIT))
			return 1;
	return 0;
}

uint32_t pa_closer(const pa_member *m, int n, int i, uint64_t seq) {
	/* closing first: a member that has cleared it has stored closed before. */
	const uint64_t closing = sw_read64(&m[i].closing);
	const uint64_t closed = sw_read64(&m[i].closed);
	if (closed != 0 && closed <= seq)
		return __atomic_load_n(&m[i].reason, __ATOMIC_RELAXED);
	if (closing == seq && is_closed(m, n, seq))
		return __atomic_load_n(&m[i].trying, __ATOMIC_RELAXED);
	return 0;
}

void pa_explain(pa_member *m, int me, uint32_t reason) {
	sw_write32(&m[me].reason, reason);
}

uint32_t pa_why(const pa_member *m, int i) {
	return sw_read32(&m[i].reason);
}

void pa_leave(pa_member *m, int me, uint32_t how_far) {
	sw_write32(&m[me].left, how_far);
	pmpi_ring();
}

uint32_t pa_left(const pa_member *m, int i) {
	return sw_read32(&m[i].left);
}

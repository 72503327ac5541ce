/* The rings between the processes of one node, for C that sends and receives short messages without
 * Go. The rings are described in ring.go, what lies in them in packet.go.
 *
 * All words of a pm_office belong to this process. C touches its rings only while it holds its
 * lock, and never waits for that: Go holds it while it moves long messages. */
#ifndef PADDLEMPI_MEMORY_RINGS_H
#define PADDLEMPI_MEMORY_RINGS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "../../arrive/words.h"

enum {
	PM_RING = 128 << 10, /* ringBytes */
	PM_LINE = 64,        /* align */
	PM_HEAD = 40,        /* packetBytes */
	PM_SHORT = 4 << 10,  /* bulkFrom: payloads below lie in the ring */
	PM_BELL = 128,       /* bytes from one bell to the next */
	PM_WHOLE = 1         /* the kind of a message in one packet */
};

/* One end of a ring; ringEnd. */
typedef struct pm_end {
	uint64_t *head, *tail;
	char *data;
	uint64_t mine; /* what this end has written or read: the other side may damage the shared words
					*/
} pm_end;

/* What goes to a rank and comes from it; pair. */
typedef struct pm_pair {
	pm_end out, in;
	uint32_t queued; /* packets to it wait for room */
	uint32_t broken; /* it has died, or is damaged */
} pm_pair;

typedef struct pm_office {
	uint32_t lock;
	uint32_t reserved;
	char *bells; /* NULL in a small world */
	pm_pair pairs[];
} pm_office;

_Static_assert(sizeof(pm_end) == 32 && sizeof(pm_pair) == 72 && sizeof(pm_office) == 16,
			   "these are ringEnd, pair and shared of ring.go");

/* The head of a packet; packet.put. */
typedef struct pm_packet {
	uint32_t kind;
	int32_t tag;
	uint64_t context;
	int64_t bytes;
	uint64_t number, answer;
} pm_packet;

_Static_assert(sizeof(pm_packet) == PM_HEAD, "a packet's head has no gaps");

/* pm_lock takes the lock if nobody has it, and tells whether it did. */
static inline int pm_lock(pm_office *o) {
	return sw_lock32(&o->lock, 1);
}

static inline void pm_unlock(pm_office *o) {
	sw_write32(&o->lock, 0);
}

/* pm_before returns how many bytes are in the ring before a payload of n bytes. */
static inline uint64_t pm_before(uint64_t n) {
	return n <= PM_LINE - PM_HEAD ? PM_HEAD : PM_LINE;
}

/* pm_takes returns how many bytes a packet with such a payload takes. */
static inline uint64_t pm_takes(uint64_t n) {
	return (pm_before(n) + n + PM_LINE - 1) & ~(uint64_t)(PM_LINE - 1);
}

/* pm_put writes a message of n bytes, below PM_SHORT, to a rank. The caller has the lock. Returns
 * 0, or 1 with nothing done if it has to wait for room, or the pair is broken. */
static inline int pm_put(pm_office *o, int32_t to, uint64_t context, int32_t tag, const void *data,
						 uint64_t n) {
	pm_pair *p = &o->pairs[to];
	pm_end *e = &p->out;
	const uint64_t used = e->mine - sw_read64(e->tail), takes = pm_takes(n);
	if (p->queued || p->broken || used > PM_RING || used + takes > PM_RING)
		return 1;
	if (n > 0) {
		const uint64_t at = (e->mine + pm_before(n)) % PM_RING;
		const uint64_t first = n < PM_RING - at ? n : PM_RING - at;
		memcpy(e->data + at, data, first);
		memcpy(e->data, (const char *)data + first, n - first);
	}
	const pm_packet head = {.kind = PM_WHOLE, .tag = tag, .context = context, .bytes = (int64_t)n};
	memcpy(e->data + e->mine % PM_RING, &head, sizeof head); /* on one line */
	__atomic_store_n(&e->mine, e->mine + takes, __ATOMIC_RELAXED);
	sw_write64(e->head, e->mine);
	if (o->bells)
		sw_more64_in_turn((uint64_t *)(o->bells + (size_t)to * PM_BELL));
	return 0;
}

/* pm_come tells whether something has come from a rank. It needs no lock. */
static inline int pm_come(const pm_office *o, int32_t from) {
	const pm_end *e = &o->pairs[from].in;
	return sw_read64(e->head) != __atomic_load_n(&e->mine, __ATOMIC_RELAXED);
}

/* pm_take takes a message of exactly n bytes, below PM_SHORT, that is the next packet from a rank.
 * The caller has the lock. Returns 0, or 1 with nothing done if the next packet is another one. */
static inline int pm_take(pm_office *o, int32_t from, uint64_t context, int32_t tag, void *data,
						  uint64_t n) {
	pm_pair *p = &o->pairs[from];
	pm_end *e = &p->in;
	const uint64_t there = sw_read64(e->head) - e->mine, takes = pm_takes(n);
	if (p->broken || there < takes || there > PM_RING)
		return 1;
	pm_packet head;
	memcpy(&head, e->data + e->mine % PM_RING, sizeof head);
	if (head.kind != PM_WHOLE || head.context != context || head.tag != tag ||
		head.bytes != (int64_t)n)
		return 1;
	if (n > 0) {
		const uint64_t at = (e->mine + pm_before(n)) % PM_RING;
		const uint64_t first = n < PM_RING - at ? n : PM_RING - at;
		memcpy(data, e->data + at, first);
		memcpy((char *)data + first, e->data, n - first);
	}
	__atomic_store_n(&e->mine, e->mine + takes, __ATOMIC_RELAXED);
	sw_write64(e->tail, e->mine);
	return 0;
}

#endif

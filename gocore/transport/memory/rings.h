/* What ranks of a node write into the rings between them, and read there. ring.go says what a ring
 * is, packet.go what lies in it, stream.go how long messages move. Go decides what is written;
 * short messages are sent and received without it, too (quick.h).
 *
 * The words of a pm_endpoint belong to this process. They are touched by whoever holds its lock. C
 * never waits for that: Go holds it while long messages move. */
#ifndef PADDLEMPI_MEMORY_RINGS_H
#define PADDLEMPI_MEMORY_RINGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "../../primitives/doorbells.h"
#include "../../primitives/words.h"
#include "../../primitives/yield.h"
#include "bulk.h"

enum {
	PM_RING = 128 << 10, /* bytes of a ring's data; a power of two */
	PM_HEAD = 40,        /* bytes of a packet's head */
	PM_BELL = 128        /* bytes from one bell to the next */
};

/* What a packet is; packet.go says what each of them means. */
enum { PM_WHOLE = 1, PM_MORE, PM_ASK, PM_GO_ON, PM_DATA, PM_TOOK, PM_LOST };

/* One end of a ring. */
typedef struct pm_end {
	uint64_t *head, *tail;
	char *data;
	uint64_t mine; /* what this end has written or read: the other side may damage the shared words
					*/
	uint32_t *waits; /* which long message the receiver waits for: pm_sought, or 0; a hint */
	uint32_t *full;  /* not 0: the application's messages have to wait */
	pm_bulk bulk;
} pm_end;

/* What goes to a rank and comes from it. */
typedef struct pm_pair {
	pm_end out, in;
	uint32_t queued; /* packets to it wait for room, or until its receiver keeps less */
	uint32_t broken; /* it has died, or is damaged */
} pm_pair;

typedef struct pm_endpoint {
	uint32_t lock;
	uint32_t moves; /* messages are under way that only calls of Go take further */
	char *bells;    /* NULL in a small world */
	int32_t rank;   /* of this process */
	pm_pair pairs[];
} pm_endpoint;

/* The head of a packet. */
typedef struct pm_packet {
	uint32_t kind; /* PM_*, and what pm_bulk_put returned */
	int32_t tag;
	uint64_t context;
	int64_t bytes;
	uint64_t number, answer;
} pm_packet;

_Static_assert(sizeof(pm_packet) == PM_HEAD, "a packet's head has no gaps");

/* pm_lock takes the lock if nobody has it, and tells whether it did. */
static inline int pm_lock(pm_endpoint *o) {
	return sw_lock32(&o->lock, 1);
}

static inline void pm_unlock(pm_endpoint *o) {
	sw_write32(&o->lock, 0);
}

/* pm_before returns how many bytes are in the ring before a payload of n bytes that lies there: a
 * few numbers are on the cache line of the head, and longer payloads begin on a line of their own.
 */
static inline uint64_t pm_before(uint64_t n) {
	return n <= PM_LINE - PM_HEAD ? PM_HEAD : PM_LINE;
}

/* pm_takes returns how many bytes a packet takes in a ring whose payload has n bytes. */
static inline uint64_t pm_takes(uint64_t n) {
	return n >= PM_SHORT ? PM_LINE : pm_lines(pm_before(n) + n);
}

/* pm_bulky returns how many bytes of the bulk a payload of n bytes takes. */
static inline uint64_t pm_bulky(uint64_t n) {
	return n >= PM_SHORT ? pm_lines(n) : 0;
}

/* pm_has tells whether there is room for so many bytes in the ring and in the bulk; -1: the
 * receiver's words cannot be. */
static inline int pm_has(pm_end *e, uint64_t takes, uint64_t in_bulk) {
	const uint64_t used = e->mine - sw_read64(e->tail);
	if (used > PM_RING)
		return -1;
	const int fits = in_bulk == 0 ? 1 : pm_bulk_fits(&e->bulk, in_bulk);
	return fits < 0 ? fits : fits && used + takes <= PM_RING;
}

/* pm_fits tells that for a packet with a payload of n bytes. */
static inline int pm_fits(pm_end *e, uint64_t n) {
	return pm_has(e, pm_takes(n), pm_bulky(n));
}

/* pm_write writes a packet to a rank and shows it. There is room for it. */
static inline void pm_write(pm_endpoint *o, int32_t to, const pm_packet *head, const void *payload,
							uint64_t n) {
	pm_end *e = &o->pairs[to].out;
	pm_packet h = *head;
	if (n >= PM_SHORT) {
		h.kind |= pm_bulk_put(&e->bulk, payload, n);
	} else if (n > 0) {
		const uint64_t at = (e->mine + pm_before(n)) % PM_RING;
		const uint64_t first = n < PM_RING - at ? n : PM_RING - at;
		memcpy(e->data + at, payload, first);
		memcpy(e->data, (const char *)payload + first, n - first);
	}
	memcpy(e->data + e->mine % PM_RING, &h, sizeof h); /* on one line */
	__atomic_store_n(&e->mine, e->mine + pm_takes(n), __ATOMIC_RELAXED);
	sw_write64(e->head, e->mine);
	if (o->bells)
		sw_more64_in_turn((uint64_t *)(o->bells + (size_t)to * PM_BELL));
	if (to == o->rank)
		pmpi_ring_own();
	else
		pmpi_ring();
}

/* pm_come tells whether something has come from a rank. It needs no lock. */
static inline int pm_come(const pm_endpoint *o, int32_t from) {
	const pm_end *e = &o->pairs[from].in;
	return sw_read64(e->head) != __atomic_load_n(&e->mine, __ATOMIC_RELAXED);
}

/* pm_next reads the head of the packet that is ahead bytes behind the next one. It returns 0 if it
 * has not come whole, or if the sender's word cannot be. there is what has come when it was looked
 * last, 0 at first: to read the sender's word for each packet costs both sides a cache line. */
static inline int pm_next(const pm_end *e, uint64_t *there, uint64_t ahead, pm_packet *head) {
	if (*there < ahead + PM_LINE) {
		const uint64_t now = sw_read64(e->head) - e->mine;
		if (now > PM_RING || now < ahead + PM_LINE)
			return 0;
		*there = now;
	}
	memcpy(head, e->data + (e->mine + ahead) % PM_RING, sizeof *head);
	return 1;
}

/* pm_payload copies the beginning of the payload of a packet, which has n bytes and has come, as
 * much as there is room for. The packet is ahead bytes behind the next one, and its payload is
 * behind bulk_ahead bytes of the bulk. One that nobody reads soon goes past the caches. */
static inline void pm_payload(pm_end *e, uint64_t ahead, uint64_t bulk_ahead, uint32_t kind,
							  void *to, uint64_t room, uint64_t n, bool unread) {
	if (room > n)
		room = n;
	if (n >= PM_SHORT) {
		pm_bulk_take(&e->bulk, bulk_ahead, kind, to, room, unread);
	} else if (room > 0) {
		const uint64_t at = (e->mine + ahead + pm_before(n)) % PM_RING;
		const uint64_t first = room < PM_RING - at ? room : PM_RING - at;
		memcpy(to, e->data + at, first);
		memcpy((char *)to + first, e->data, room - first);
	}
}

/* pm_pass goes behind packets that take so many bytes, and gives their room back. */
static inline void pm_pass(pm_end *e, uint64_t takes, uint64_t in_bulk) {
	__atomic_store_n(&e->mine, e->mine + takes, __ATOMIC_RELAXED);
	if (in_bulk > 0) {
		e->bulk.mine += in_bulk;
		sw_write64(e->bulk.tail, e->bulk.mine);
	}
	sw_write64(e->tail, e->mine);
	pmpi_ring();
}

/* pm_take copies as much of the payload of the next packet as there is room for, and goes behind
 * it. */
static inline void pm_take(pm_end *e, uint32_t kind, void *to, uint64_t room, uint64_t n) {
	pm_payload(e, 0, 0, kind, to, room, n, false);
	pm_pass(e, pm_takes(n), pm_bulky(n));
}

/* pm_sought returns how the word waits says that a receive waits for a message with a tag. It may
 * say the same of another one: then that is sent unasked. */
static inline uint32_t pm_sought(uint64_t context, int32_t tag) {
	return (uint32_t)((context + (uint32_t)tag) * UINT64_C(0x9e3779b97f4a7c15) >> 32) | 1;
}

/* pm_asked tells whether a message of n bytes may be sent: nobody has to wait for a short one. A
 * longer one would be in the way, and perhaps be copied once more. */
static inline int pm_asked(const pm_endpoint *o, int32_t to, uint64_t context, int32_t tag,
						   uint64_t n) {
	return n <= PM_EAGER || sw_read32(o->pairs[to].out.waits) == pm_sought(context, tag);
}

/* pm_send writes a message of n bytes, PM_MOST at most; bounded says that it is the application's.
 * The caller has the lock. Returns 0, or 1 with nothing done if it has to wait for room, the pair
 * is broken, or it may not be sent yet. */
static inline int pm_send(pm_endpoint *o, int32_t to, uint64_t context, int32_t tag,
						  const void *data, uint64_t n, bool bounded) {
	pm_pair *p = &o->pairs[to];
	const uint64_t rest = n % PM_PIECE, pieces = n / PM_PIECE;
	if (p->queued || p->broken || (bounded && sw_read32(p->out.full)) ||
		!pm_asked(o, to, context, tag, n) ||
		pm_has(&p->out, pieces * PM_LINE + pm_takes(rest), pieces * PM_PIECE + pm_bulky(rest)) != 1)
		return 1;
	pm_packet head = {.kind = PM_WHOLE, .tag = tag, .context = context, .bytes = (int64_t)n};
	for (const char *from = data;; from += PM_PIECE) {
		const uint64_t now = n < PM_PIECE ? n : PM_PIECE;
		pm_write(o, to, &head, from, now);
		if ((n -= now) == 0)
			return 0;
		head.kind = PM_MORE;
		head.bytes = (int64_t)(n < PM_PIECE ? n : PM_PIECE);
	}
}

/* pm_receive takes a message of exactly n bytes, PM_MOST at most, if that is what comes next from a
 * rank. The caller has the lock. It pauses so many times for each piece after the first one.
 * Returns 0, or 1 with nothing done. */
static inline int pm_receive(pm_endpoint *o, int32_t from, uint64_t context, int32_t tag,
							 void *data, uint64_t n, int pauses) {
	pm_end *e = &o->pairs[from].in;
	uint64_t takes = 0, in_bulk = 0, got = 0, there = 0;
	do {
		const uint64_t now = n - got < PM_PIECE ? n - got : PM_PIECE;
		pm_packet head;
		for (int i = 0; !pm_next(e, &there, takes, &head); i++) {
			if (got == 0 || i >= pauses)
				return 1;
			pmpi_pause();
		}
		const uint32_t kind = head.kind & PM_KIND;
		if (got == 0 ? kind != PM_WHOLE || head.context != context || head.tag != tag ||
						   head.bytes != (int64_t)n
					 : kind != PM_MORE || head.bytes != (int64_t)now)
			return 1;
		if (there < takes + pm_takes(now))
			return 1; /* no sender shows a part of a packet */
		pm_payload(e, takes, in_bulk, head.kind, (char *)data + got, now, now, false);
		takes += pm_takes(now);
		in_bulk += pm_bulky(now);
		got += now;
	} while (got < n);
	pm_pass(e, takes, in_bulk);
	return 0;
}

/* What the word claims has: the number of a fragment above the number of its first piece that
 * nobody has claimed. */
enum { PM_CLAIM_BITS = 40 };

/* pm_claim claims up to most pieces of a fragment of so many bytes. Returns how many bytes they
 * have, and where they begin; 0: all are claimed, or the claims are those of another fragment. */
static inline int64_t pm_claim(uint64_t *claims, uint64_t number, int64_t bytes, uint64_t most,
							   int64_t *from) {
	const uint64_t all = ((uint64_t)bytes + PM_PIECE - 1) / PM_PIECE;
	uint64_t word = sw_read64(claims);
	for (;;) {
		const uint64_t next = word & ((UINT64_C(1) << PM_CLAIM_BITS) - 1);
		if (word >> PM_CLAIM_BITS != number || next >= all)
			return 0;
		const uint64_t k = most < all - next ? most : all - next;
		if (sw_swap64(claims, &word, word + k)) {
			*from = (int64_t)(next * PM_PIECE);
			return bytes - *from < (int64_t)(k * PM_PIECE) ? bytes - *from
														   : (int64_t)(k * PM_PIECE);
		}
	}
}

/* pm_stream writes packets of most pieces of a fragment, while there is room, or some comes
 * while it pauses. The first bytes of it are there, and data has those from begin on: those before
 * are claimed. Returns 0; 1 if all pieces are claimed; -1 if the receiver's words cannot be. */
static inline int pm_stream(pm_endpoint *o, int32_t to, uint64_t *claims, uint64_t number,
							const char *data, int64_t begin, int64_t bytes, uint64_t most,
							int pauses) {
	for (int paused = 0;;) {
		const int fits = pm_fits(&o->pairs[to].out, most * PM_PIECE);
		if (fits < 0)
			return -1;
		if (!fits) {
			if (paused++ >= pauses)
				return 0;
			pmpi_pause();
			continue;
		}
		int64_t from;
		const int64_t n = pm_claim(claims, number, bytes, most, &from);
		if (n == 0)
			return 1;
		const pm_packet head = {
			.kind = PM_DATA, .bytes = n, .number = number, .answer = (uint64_t)from};
		pm_write(o, to, &head, data + (from - begin), (uint64_t)n);
		paused = 0;
	}
}

/* pm_drain takes packets of a fragment, of which left bytes are to come, while they come, or
 * one comes while it pauses. Returns how many bytes it took. It leaves what is no such packet. */
static inline int64_t pm_drain(pm_endpoint *o, int32_t from, uint64_t number, char *data,
							   int64_t bytes, int64_t left, bool unread, int pauses) {
	pm_end *e = &o->pairs[from].in;
	int64_t got = 0;
	uint64_t there = 0;
	for (int paused = 0; got < left;) {
		pm_packet head;
		if (!pm_next(e, &there, 0, &head)) {
			if (paused++ >= pauses)
				break;
			pmpi_pause();
			continue;
		}
		const int64_t at = (int64_t)head.answer, n = head.bytes;
		if ((head.kind & PM_KIND) != PM_DATA || head.number != number || at < 0 || at >= bytes ||
			at % PM_PIECE != 0 || n <= 0 || n > PM_MOST_OF_LONG || n > bytes - at ||
			there < pm_takes((uint64_t)n))
			break;
		pm_payload(e, 0, 0, head.kind, data + at, (uint64_t)n, (uint64_t)n, unread);
		pm_pass(e, pm_takes((uint64_t)n), pm_bulky((uint64_t)n));
		there -= pm_takes((uint64_t)n);
		got += n;
		paused = 0;
	}
	return got;
}

#endif

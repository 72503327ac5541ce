/* The arrival lines of one group on one node, in memory that its members share.
 *
 * Each member owns one block. A collective with sequence number k is announced in
 * slot[k & 1]: first the words, then seq with release order; a reader that sees
 * seq == k with acquire order may read the words.
 *
 * Invariant: a member announces k + 2 only after it saw everyone at k + 1, and a
 * member announces k + 1 only after it finished reading k. So the words of slot k
 * stay as they are until every member has read them: two slots are enough.
 *
 * Only seq is ever written by another member: who gives collective k up, because a
 * deadline ran out, closes the slots of those that have not announced it. Announcing
 * and closing are a compare-and-swap each, so that one of them wins: a member that
 * comes late cannot take a group for complete that another has walked away from.
 */
#ifndef PMPI_ARRIVE_LINES_H
#define PMPI_ARRIVE_LINES_H

#include <stdint.h>

#define PA_WORDS 3

typedef struct pa_slot {
	uint64_t seq;
	uint64_t word[PA_WORDS];
	uint32_t flags;
	uint32_t pad[7];
} pa_slot; /* 64 bytes: one cache line */

typedef struct pa_member {
	pa_slot slot[2];
	uint32_t left;   /* 1: this member is in its normal exit and will come no more */
	uint32_t reason; /* why it closed collective closed; the caller's own number */
	uint64_t closed;
	uint32_t pad[12];
	uint8_t spare[64];
} pa_member; /* 256 bytes */

/* Set in the seq of a slot that was closed before its member announced that seq. */
#define PA_CLOSED_BIT (1ull << 63)

/* What pa_poll found. */
enum { PA_PENDING = 0, PA_AGREED = 1, PA_DIFFER = 2, PA_CLOSED = 3 };

/* pa_announce publishes collective seq of member me, unless it was closed, which
 * pa_poll tells. Returns nothing. */
void pa_announce(pa_member *m, int me, uint64_t seq, const uint64_t *word, uint32_t flags);

/* pa_arrive is pa_announce and pa_poll in one: the common case is that the others are
 * here already, and a call from Go into C costs as much as the rest. */
int pa_arrive(pa_member *m, int n, int me, uint64_t seq, const uint64_t *word, uint32_t flags,
			  int spin, int yield_every, int *from, uint32_t *all, uint32_t *any, uint32_t *diff);

/* pa_poll looks whether all n members announced seq, pausing at most spin times
 * (with a sched_yield every yield_every pauses unless 0). *from is the first
 * member not yet seen: 0 at the first call, kept between calls. On PA_AGREED and
 * PA_DIFFER *all and *any hold the members' flags ANDed and ORed, and *diff has
 * bit i set where word i differs from our own anywhere. PA_CLOSED: somebody gave seq
 * up before all had announced it, and they never will. Returns one of the enum. */
int pa_poll(const pa_member *m, int n, int me, uint64_t seq, int spin, int yield_every, int *from,
			uint32_t *all, uint32_t *any, uint32_t *diff);

/* pa_seq returns the newest sequence number that member i announced. */
uint64_t pa_seq(const pa_member *m, int i);

/* pa_close gives collective seq up in the name of me, which saw everyone announce
 * seq - 1. Returns 1 when seq is closed, by whomever, and 0 when all members have
 * announced it: then some may be running it, and me has to do so as well. */
int pa_close(pa_member *m, int n, int me, uint64_t seq, uint32_t reason);

/* pa_closer returns the reason for which member i closed seq, 0 if it did not. */
uint32_t pa_closer(const pa_member *m, int i, uint64_t seq);

/* pa_leave marks member me as gone; pa_left returns whether member i is. */
void pa_leave(pa_member *m, int me);
int pa_left(const pa_member *m, int i);

#endif

/* The arrival lines of a group on one node, in memory that its members share.
 *
 * Each member owns one block. It announces the collective with sequence number k in
 * slot[k & 1]: first the words, then seq with release order. A reader that sees seq == k
 * with acquire order may read the words.
 *
 * Invariant: a member announces k + 2 only after it has seen all members at k + 1, and it
 * announces k + 1 only after it has finished reading k. So the words and the note of slot
 * k do not change until every member has read them: two slots are enough.
 *
 * Other members write only to seq. A member that gives collective k up, for instance
 * because its deadline has passed, closes the slots of the members that have not
 * announced k. Announcing and closing are a compare-and-swap each, and one of them wins.
 * So a member that comes late cannot believe that all members have arrived when another
 * one has given up. */
#ifndef PMPI_ARRIVE_LINES_H
#define PMPI_ARRIVE_LINES_H

#include <stdint.h>

#define PA_WORDS 3

/* The bytes that a member may tell beside its signature: up to PA_BRIEF lie in the slot itself,
 * more, up to PA_NOTE, in an area of their own. */
#define PA_BRIEF 24
#define PA_NOTE  4096

typedef struct pa_slot {
	uint64_t seq;
	uint64_t word[PA_WORDS];
	uint32_t flags;
	uint32_t note; /* bytes of the note */
	uint8_t brief[PA_BRIEF];
} pa_slot; /* 64 bytes: one cache line */

typedef struct pa_member {
	pa_slot slot[2];
	uint32_t left;   /* 1: this member has left */
	uint32_t reason; /* why it closed collective `closed`: a code of the caller */
	uint64_t closed;
	uint32_t pad[12];
	uint8_t spare[64];
} pa_member; /* 256 bytes */

/* This bit is set in the seq of a slot that was closed before its member announced that
 * seq. */
#define PA_CLOSED_BIT (1ull << 63)

/* Results of pa_poll. */
enum { PA_PENDING = 0, PA_AGREED = 1, PA_DIFFER = 2, PA_CLOSED = 3 };

/* Words of one slot with which the members share out the work of a collective (package shm). There
 * are more than members. */
#define PA_LEAST_CHUNKS 128
#define PA_CHUNKS(n)    ((n) < PA_LEAST_CHUNKS ? PA_LEAST_CHUNKS : (n) + 1)

/* pa_size returns the bytes that n members take: their blocks, their notes and the chunk words. */
int64_t pa_size(int n);

/* pa_note returns the note of member i for collective seq. It may be read once all members have
 * announced seq, until this member announces seq + 1. */
const void *pa_note(const pa_member *m, int n, int i, uint64_t seq);

/* pa_chunks returns the PA_CHUNKS(n) chunk words of collective seq. */
uint64_t *pa_chunks(pa_member *m, int n, uint64_t seq);

/* pa_announce announces collective seq for member me, with a note of `bytes` bytes, at most
 * PA_NOTE. It does nothing visible if the slot is closed; pa_poll tells that. Returns nothing. */
void pa_announce(pa_member *m, int n, int me, uint64_t seq, const uint64_t *word, uint32_t flags,
				 const uint8_t *note, uint32_t bytes);

/* pa_arrive calls pa_announce and pa_poll. Usually the other members have announced
 * already, and a call from Go into C costs as much as the rest. */
int pa_arrive(pa_member *m, int n, int me, uint64_t seq, const uint64_t *word, uint32_t flags,
			  const uint8_t *note, uint32_t bytes, int spin, int yield_every, int *from,
			  uint32_t *all, uint32_t *any, uint32_t *diff);

/* pa_poll tests whether all n members have announced seq, and pauses at most spin times
 * (with a sched_yield every yield_every pauses, unless that is 0). *from is the first
 * member not seen yet: 0 at the first call, kept between calls. With PA_AGREED and
 * PA_DIFFER, *all and *any are the members' flags ANDed and ORed, and bit i of *diff is
 * set if word i of some member differs from that of me. PA_CLOSED means that a member
 * gave seq up before all had announced it. Returns one of the enum. */
int pa_poll(const pa_member *m, int n, int me, uint64_t seq, int spin, int yield_every, int *from,
			uint32_t *all, uint32_t *any, uint32_t *diff);

/* pa_seq returns the newest sequence number that member i has announced. */
uint64_t pa_seq(const pa_member *m, int i);

/* pa_close gives collective seq up for member me, which has seen all members announce seq
 * - 1. Returns 1 if seq is closed, by any member. Returns 0 if all members have announced
 * seq: then some may be running it, and me has to run it too. */
int pa_close(pa_member *m, int n, int me, uint64_t seq, uint32_t reason);

/* pa_closer returns the reason for which member i closed seq, 0 if it did not. */
uint32_t pa_closer(const pa_member *m, int i, uint64_t seq);

/* pa_explain sets the reason of member me without closing anything. pa_why returns the last reason
 * of member i. */
void pa_explain(pa_member *m, int me, uint32_t reason);
uint32_t pa_why(const pa_member *m, int i);

/* pa_leave marks member me as left. pa_left returns whether member i has left. */
void pa_leave(pa_member *m, int me);
int pa_left(const pa_member *m, int i);

#endif

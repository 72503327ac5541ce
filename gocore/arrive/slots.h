/* The control slots of a group on one node, in memory that its members share.
 *
 * Each member owns one block, with a ring of PA_SLOTS slots. It announces the collective with
 * sequence number k in slot k % PA_SLOTS: first the words and the payload, then seq with release
 * order. A reader that sees seq == k with acquire order may read them.
 *
 * A member goes through the collectives in order: its turn is at k when it has finished with k - 1,
 * that is, it will not look at the slots of k - 1 any more. It may announce collectives ahead of
 * its turn, so that a member that waits can work for one that computes. The word `finished` of a
 * member is a number up to which it has finished; it grows, and is stored with release order.
 *
 * A slot may be used for k when every member has finished with k - PA_SLOTS:
 *   - Ahead of its turn, a member looks at the words `finished` of all members, with acquire order.
 *     It announces k only if all have finished with k - PA_SLOTS + 1: one more than it needs.
 *   - In its turn it need not look. It has finished with k - 1, so it has seen all members announce
 *     k - 1. If one of them did that ahead of its turn, all had finished with k - PA_SLOTS. If each
 * did it in its turn, all had finished with k - 2.
 *
 * Other members write only to seq. A member that gives collective k up, for instance because its
 * deadline has passed, closes the slots of the members that have not announced k. It does so only
 * if it may use the slot for k itself. Announcing and closing are a compare-and-swap each, and one
 * of them wins. So a member that comes late cannot believe that all members have arrived when
 * another one has given up.
 *
 * It says that it takes no part from k on (`closed`) when it has closed a slot, not before: if all
 * have announced k, it runs k as the others do, and nobody may have seen that it wanted to give up.
 * Before it closes a slot, it says that it tries (`closing`). That counts only for one who has
 * found a closed slot of k: the slot stays closed, so the member that tries will find it, too.
 *
 * A member may also refuse k after it has announced k. It marks the slot of a member that has not
 * announced k. That member keeps the mark when it announces k, so all members see it.
 *
 * All members can write everything here, and one whose process is damaged may. So what is read is
 * checked, and read once: a word that was checked may be another one at the next look. While a
 * member waits for k, its slot k % PA_SLOTS in every block has a number up to k that belongs there.
 * pa_poll returns PA_RUBBISH for anything else. */
#ifndef PMPI_ARRIVE_LINES_H
#define PMPI_ARRIVE_LINES_H

#include <stdint.h>

#define PA_WORDS 3
#define PA_SLOTS 32 /* a power of 2 */

/* The bytes that a member may tell beside its signature: up to PA_BRIEF lie in the slot itself,
 * more, up to pa_room(n), in an area of their own. The areas of all members for one collective have
 * PA_NOTES bytes, unless PA_NOTE for each member are less or PA_LEAST_NOTE for each are more. */
#define PA_BRIEF      24
#define PA_NOTE       4096
#define PA_LEAST_NOTE 64
#define PA_NOTES      65536

typedef struct pa_slot {
	uint64_t seq;
	uint64_t word[PA_WORDS];
	uint32_t flags;
	uint16_t payload; /* bytes of the payload */
	uint16_t late;    /* 1: the member has refused after its announcement, see pa_refuse */
	uint8_t brief[PA_BRIEF];
} pa_slot; /* 64 bytes: one cache line */

typedef struct pa_member {
	pa_slot slot[PA_SLOTS];
	uint64_t finished; /* this member has finished with all collectives up to this one */
	uint64_t spare[7];
	uint32_t left;    /* how far the end of this member has come: see pa_leave */
	uint32_t reason;  /* why it takes no part from collective `closed` on: a code of the caller */
	uint64_t closed;  /* the first collective that it takes no part in; 0 for none */
	uint32_t blamed;  /* 1 more than the member in whose slot this one found rubbish; 0 for none */
	uint32_t trying;  /* the reason that goes with `closing` */
	uint64_t closing; /* the collective that it is about to close, which it may not; 0 for none */
	uint32_t pad[8];
} pa_member;

/* This bit is set in the seq of a slot that was closed before its member announced that
 * seq. */
#define PA_CLOSED_BIT (1ull << 63)

/* In the seq of a slot: some member has refused that seq late. PA_HERE_BIT is set beside it when
 * the member whose slot it is has announced. */
#define PA_REFUSED_BIT (1ull << 62)
#define PA_HERE_BIT    (1ull << 61)

/* The flag of a member that refuses a collective, in pa_slot.flags. */
#define PA_REFUSED 2

/* Results of pa_poll; PA_SUMMED_UP is one of pa_arrive alone. */
enum {
	PA_PENDING = 0,
	PA_AGREED = 1,
	PA_DIFFER = 2,
	PA_CLOSED = 3,
	PA_RUBBISH = 4,
	PA_SUMMED_UP = 5
};

/* Words of one slot with which the members share out the work of a collective (package shm). There
 * are more than members. */
#define PA_LEAST_CHUNKS 128
#define PA_CHUNKS(n)    ((n) < PA_LEAST_CHUNKS ? PA_LEAST_CHUNKS : (n) + 1)

/* pa_size returns the bytes that n members take: their blocks, their payloads and the chunk words.
 */
int64_t pa_size(int n);

/* pa_room returns the most bytes of a payload. Measured on 2 ranks: at 4 KiB a rank, payloads are
 * faster than any MPI and than mapped tensors. */
int pa_room(int n);

/* pa_payload returns the payload of member i for collective seq, and sets *bytes to its length. It
 * may be read once all members have announced seq, until this member has finished with seq. A
 * length above pa_room(n) counts as 0, because what follows the payload belongs to something else.
 */
const void *pa_payload(const pa_member *m, int n, int i, uint64_t seq, uint32_t *bytes);

/* pa_chunks returns the PA_CHUNKS(n) chunk words of collective seq. */
uint64_t *pa_chunks(pa_member *m, int n, uint64_t seq);

/* pa_announce announces collective seq for member me, with a payload of `bytes` bytes, at most
 * pa_room(n). It does nothing visible if the slot is closed; pa_poll tells that. It is in turn, or
 * pa_may_announce has returned 1. */
void pa_announce(pa_member *m, int n, int me, uint64_t seq, const uint64_t *word, uint32_t flags,
				 const uint8_t *payload, uint32_t bytes);

/* pa_may_announce returns 1 if a member may announce seq ahead of its turn. */
int pa_may_announce(const pa_member *m, int n, uint64_t seq);

/* pa_turn says that member me has finished with all collectives before seq. */
void pa_turn(pa_member *m, int me, uint64_t seq);

/* pa_finished returns 1 if all members have finished with seq, as far as they have said. */
int pa_finished(const pa_member *m, int n, uint64_t seq);

/* pa_has_finished is pa_finished for member i. */
int pa_has_finished(const pa_member *m, int i, uint64_t seq);

/* A pa_folder reduces count elements at each of n sources, in their order, into *to: a pmpi_folder
 * of package reduce, for which fold describes the reduction. */
typedef void (*pa_folder)(const void *fold, void *const *to, int one, const void *const *from,
						  int n, int64_t count);

/* A pa_sum says what pa_arrive does at once when all have arrived. */
typedef struct pa_sum {
	uintptr_t folder; /* a pa_folder */
	uintptr_t to;     /* gets the result */
	int64_t count;    /* elements of each payload */
	uint32_t need;    /* flags that all members must have set */
	uint32_t avoid;   /* flags that no member may have set */
} pa_sum;

/* The most members for which pa_arrive adds up. */
#define PA_SUMMED 64

/* pa_arrive calls pa_turn, pa_announce and pa_poll. Usually the other members have announced
 * already, and a call from Go into C costs as much as the rest. If s is not NULL, it also reduces
 * the payloads of all members into s->to if all have arrived, agree, have the flags that s wants,
 * and have payloads of as many bytes as this one. Then it returns PA_SUMMED_UP. Otherwise it
 * returns what pa_poll returns, and nothing is written. */
int pa_arrive(pa_member *m, int n, int me, uint64_t seq, const uint64_t *word, uint32_t flags,
			  const uint8_t *payload, uint32_t bytes, int spin, int yield_every, int *from,
			  uint32_t *all, uint32_t *any, uint32_t *diff, const pa_sum *s, const char *fold);

/* pa_poll tests whether all n members have announced seq, and pauses at most spin times
 * (with a sched_yield every yield_every pauses, unless that is 0). *from is the first
 * member not seen yet: 0 at the first call, kept between calls. With PA_AGREED and
 * PA_DIFFER, *all and *any are the members' flags ANDed and ORed, and bit i of *diff is
 * set if word i of some member differs from that of me. PA_CLOSED means that a member
 * gave seq up before all had announced it. PA_RUBBISH means that the slot of member *from has a
 * number that no member writes there. Returns one of the enum. */
int pa_poll(const pa_member *m, int n, int me, uint64_t seq, int spin, int yield_every, int *from,
			uint32_t *all, uint32_t *any, uint32_t *diff);

/* pa_here returns 1 if member i has announced seq, whose turn it is for the caller. */
int pa_here(const pa_member *m, int i, uint64_t seq);

/* pa_blame says that member me has found rubbish in the slot of member i. pa_blamed returns 1 more
 * than the member in whose slot member i has found rubbish; 0 if it has found none, or says of none
 * of the n members. */
void pa_blame(pa_member *m, int me, int i);
int pa_blamed(const pa_member *m, int n, int i);

/* pa_close gives collective seq up for member me, which has announced seq or may announce it.
 * Returns 1 if seq is closed, by any member; me takes no part from seq on then. Returns 0 if all
 * members have announced seq: then some may be running it, and me has to run it too. */
int pa_close(pa_member *m, int n, int me, uint64_t seq, uint32_t reason);

/* pa_refuse refuses seq for member me, which has announced it. Returns 1 if all members will see
 * that some member has refused seq. Returns 0 if all have announced seq, or if it is closed. */
int pa_refuse(pa_member *m, int n, int me, uint64_t seq);

/* pa_late returns 1 if member i has refused seq late. All members have announced seq. */
int pa_late(const pa_member *m, int n, int i, uint64_t seq);

/* pa_stop and pa_close are called by one thread of a member at a time. */

/* pa_stop says that member me takes no part from seq on, whoever has announced it. */
void pa_stop(pa_member *m, int me, uint64_t seq, uint32_t reason);

/* pa_closer returns the reason for which member i takes no part in seq, 0 if it does. If pa_poll
 * has returned PA_CLOSED for seq, there is such a member. */
uint32_t pa_closer(const pa_member *m, int n, int i, uint64_t seq);

/* pa_explain sets the reason of member me without closing anything. pa_why returns the last reason
 * of member i. */
void pa_explain(pa_member *m, int me, uint32_t reason);
uint32_t pa_why(const pa_member *m, int i);

/* pa_leave says how far the end of member me has come. pa_left returns that of member i: 0,
 * PA_LEFT: it has left; PA_GONE: its process may end; PA_FAILED + s: its process ends with the
 * status s, which is not 0, and it has not left. */
enum { PA_LEFT = 1, PA_GONE, PA_FAILED = 256 };
void pa_leave(pa_member *m, int me, uint32_t how_far);
uint32_t pa_left(const pa_member *m, int i);

#endif

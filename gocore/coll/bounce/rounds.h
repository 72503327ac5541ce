/* Collectives in rounds, through blocks of memory that all ranks of a node map.
 *
 * Every rank owns a block, which it alone writes: counters, and slots of one window each. What a
 * rank gives is cut in windows. In round k it copies a window into slot k % slots and says so; the
 * others copy, or reduce, what they need from there into their own tensors, and say that they have
 * finished with the round. Where all ranks share out a reduction (PB_SLICED), each reduces its
 * slice of the window into a second slot, from which the others copy it.
 *
 * The rounds are numbered from 1 on over all collectives of a group. All ranks know how many rounds
 * a collective has, because that follows from what they have agreed on.
 *
 * Why this is safe
 *   - A slot is written for round k when every other rank has finished with round k - slots
 *     (acquire order). A rank says so (release order) after its last look at that slot. A rank that
 *     reads nothing in a collective has finished with all its rounds when it begins.
 *   - What lies in a slot is read after its owner has published the round (release and acquire).
 *   - Where a rank has several threads, they copy or reduce parts of several rounds at once. The
 *     thread of the call alone reads and writes the counters: before they begin, and after all have
 *     ended.
 *   - No rank writes to memory of another one. So a rank that gives a collective up may end its
 * call at once, and its caller may change its tensors: what it has published stays in its slots.
 *   - A rank whose tensor was read out of its slots need not wait for anybody: its call may end
 * before the others have read the last slots, which the counters keep from being written again.
 *   - The process of a rank may be damaged and write anything into its block. No length comes from
 *     there. A number that is further than this rank lets others come counts as damage. A rank that
 * says too early that it has finished with a round spoils what it reads itself. */
#ifndef PMPI_BOUNCE_ROUNDS_H
#define PMPI_BOUNCE_ROUNDS_H

#include "../../primitives/past.h"
#include "../../reduce/fold.h"
#include "../../threads/pool.h"

#include <stdint.h>

/* The counters of a block. Each lies in a pair of cache lines of its own, which processors fetch
 * together. */
typedef struct pb_counter {
	uint64_t round;
	uint64_t spare[15];
} pb_counter;

/* How another process reads the memory of a rank: package cma. */
typedef struct pb_owner {
	uint64_t pid, at; /* of the nonce */
	char nonce[16];
} pb_owner;

typedef struct pb_head {
	pb_counter published; /* the newest round whose window lies in its slot */
	pb_counter reduced;   /* the newest round whose slice lies in its slot */
	pb_counter finished;  /* the newest round with which this rank has finished */
	pb_counter ended;     /* this rank looks at no block for the rounds up to this one any more */
	pb_owner owner;       /* what this rank shows, before others map its block */
	uint64_t spare[12];
} pb_head;

/* What a rank does with the windows of a round. */
enum {
	PB_COPY,   /* copies what each giver has for it */
	PB_REDUCE, /* reduces what the givers have for it */
	PB_SLICED  /* reduces its slice of what all have, and copies the slices of the others */
};

typedef struct pb_row {
	char *at;      /* in a tensor of this rank */
	int64_t bytes; /* 0: there is nothing, whatever at is */
} pb_row;

/* The operation of one rank. A window has `lanes` lanes of `step` bytes: one, or one for each rank.
 * The window of a round has the next `step` bytes of each row that the rank gives. */
typedef struct pb_op {
	uint64_t before;                       /* rounds of all collectives before this one */
	uint64_t rounds;                       /* of this one */
	uint64_t published, reduced, finished; /* how far this rank has come with them */
	uint64_t passed; /* all others have finished with this round, as was last seen */
	int32_t n, me, kind, lanes;
	int32_t first, last; /* the ranks that give something: from first on, before last */
	int32_t gives, gets; /* whether this rank does, for others, and whether it has a result */
	int32_t seen;        /* givers that have published the round that this rank is to reduce */
	int32_t taken;       /* ranks from which this one has copied in the round it is at */
	int32_t damaged;     /* 1 more than a rank in whose block was what no rank writes; 0: none */
	int32_t slots,
		ahead; /* of a block, and how many windows this rank publishes before it goes on */
	int64_t step, window;      /* bytes of a lane in a round, and of a slot */
	int64_t elem;              /* bytes of an element, for a reduction */
	int32_t lends;             /* the others read the rows in the memory of this rank: cma.h */
	int32_t unreadable, cause; /* 1 more than a rank that cannot be read, and errno; 0: none */
	int32_t gone;              /* 1 more than a rank whose process has ended; 0: none */
	int64_t at;                /* bytes that were read of the row this rank is at */
	const pb_owner *owner;     /* n, by rank: what they have shown, and this rank has tried */
	int32_t threads;           /* of this rank that work at once, on some rounds */
	pt_spreader spread;
	pmpi_far *far;      /* of each thread: how windows are written, which it finds out by itself */
	int32_t past;       /* the result is copied past the caches, which do not hold all of it */
	const pb_row *give; /* `lanes` rows: what this rank gives. Where lanes is 1, all get the same */
	const pb_row *get;  /* the results: a row from each rank if kind is PB_COPY, else one */
	const pb_head *const *block; /* n, by rank, in this process; that of this rank is its own */
	pmpi_fold fold;
	pmpi_folder run;
	const void **src; /* n for each thread, for a reduction */
} pb_op;

/* The states of an operation. */
enum {
	PB_PENDING = 0,   /* this rank waits for another one, and has done nothing */
	PB_MOVING = 1,    /* it has done something, and is not done */
	PB_DONE = 2,      /* its part is done */
	PB_DAMAGED = 3,   /* some block holds what no rank writes */
	PB_UNREADABLE = 4 /* the memory of some rank cannot be read */
};

/* The words behind a head have the address of each row that this rank lends, and the slots lie
 * behind them. */
static inline int64_t pb_slots_at(int n) {
	return ((int64_t)sizeof(pb_head) + (int64_t)sizeof(uint64_t) * n + 127) & ~(int64_t)127;
}

/* pb_block_bytes returns the bytes of a block with so many slots of that length, for n ranks. */
int64_t pb_block_bytes(int n, int slots, int64_t window);

/* pb_begin begins the part of this rank in an operation whose fields are set. The one before is
 * over. */
void pb_begin(pb_op *op);

/* pb_run does up to `most` steps, and pauses at most `spin` times in a row until it can do one;
 * with yield_every, every so many pauses yield the core. A step is a copy or a reduction of a
 * window or less, on one thread. Returns the state. */
int pb_run(pb_op *op, int most, int spin, int yield_every);

/* pb_awaited returns a rank for which this one waits, -1 if there is none. pb_awaits returns 1 if
 * it waits for rank i, perhaps among others. */
int pb_awaited(const pb_op *op);
int pb_awaits(const pb_op *op, int i);

/* pb_has_ended returns 1 if the rank whose block this is has ended its part in the rounds up to
 * that one: then it reads no block of another rank any more. */
int pb_has_ended(const pb_head *block, uint64_t round);

#endif

/* The work of a collective in memory that all ranks of a node map, cut into chunks.
 *
 * Every chunk has a word in shared memory: the sequence number of the collective that last used it,
 * the rank that claimed it there, and its state. A rank claims a chunk by a compare-and-swap, does
 * its work in the tensors of all ranks, and stores that it is done. Any rank may do any chunk, and
 * the result has the same bits. A rank that waits claims the chunks of its own share first, and
 * then those that nobody has claimed. So a rank that is late finds its share done. Several threads
 * of a rank may claim chunks at once, for one call of sm_work, which returns when none of them is
 * at work.
 *
 * Why this is safe
 *   - A chunk is done once. Its word leaves an earlier sequence number by one compare-and-swap, and
 *     never returns to it, because sequence numbers grow. A thread that was delayed and comes with
 * an old number finds a newer one, or its own with an owner, and claims nothing.
 *   - A rank writes only between its claim and its "done" (release order). A rank whose call
 * returns has seen every chunk done or closed (acquire order), so nobody writes into its tensors
 * any more, and it sees what the others wrote.
 *   - A collective is given up by closing the chunks that nobody has claimed. Those that are
 * claimed end by themselves. A rank that finds a closed chunk closes the rest.
 *   - A rank whose call raises while another rank works on a chunk leaves that chunk: it marks the
 *     word. Its caller may change its tensors then, so the work may read something else. The owner
 *     finds the mark when it is done, and closes the chunk. So the collective fails on all ranks.
 *   - Words of a slot are used again only after every rank has finished with the slot (package
 * arrive).
 *   - The process of a rank may be damaged and write anything into the words. A word is read once
 * before it is used. One that no rank writes while this rank is at the operation (a later sequence
 * number, an unknown state, an owner that is no rank, a claim of this rank's that it does not know
 * of) closes the operation for this rank, which does not wait for that chunk. */
#ifndef PMPI_SHM_CHUNKS_H
#define PMPI_SHM_CHUNKS_H

#include "../../reduce/fold.h"
#include "../../threads/pool.h"

#include <stdint.h>

/* Who gets what. The result of the whole operation is cut into pieces: one for each rank's share
 * where an operation has shares, else one piece. */
enum {
	SM_ALL_REDUCE, /* also of several tensors */
	SM_REDUCE,
	SM_REDUCE_SCATTER,
	SM_BROADCAST,
	SM_ALL_GATHER,
	SM_GATHER,
	SM_SCATTER,
	SM_ALL_TO_ALL
};

/* A side is what a rank gives or gets: the elements of its parts, one part after the other. */
typedef struct sm_part {
	char *at;    /* in this process */
	int64_t end; /* elements of the side up to the end of this part; grows from part to part */
} sm_part;

typedef struct sm_side {
	sm_part *part;
	int64_t parts; /* 0 if the rank has no such side, or an empty one */
} sm_side;

typedef struct sm_op {
	uint64_t seq;
	uint64_t *words;       /* one for each chunk, in shared memory */
	uint64_t *blind_ranks; /* how many ranks are blind; in shared memory */
	int32_t n, me, root;
	int32_t kind;         /* SM_* */
	int32_t chunks;       /* of the whole operation */
	int32_t pieces;       /* of the whole operation */
	const int64_t *begin; /* pieces + 1: the element at which each piece begins, and the end */
	/* Of an all_to_all, where piece p is all that rank p gets: the shares in it begin at
	 * receives[p * stride], n + 1 numbers. Those that rank r gives begin at sends[r * stride]. */
	const int64_t *sends, *receives;
	int64_t stride;         /* 0 if the rows of all ranks are alike */
	int64_t elem, out_elem; /* bytes of an element of the inputs, and of the results */
	int32_t next;           /* chunks before it are over, as this process saw */
	int32_t blind;          /* this process cannot map some tensor: it claims nothing */
	int32_t damaged;        /* some word held what no rank writes */
	pmpi_fold fold;
	pmpi_folder run;
	const sm_side *in, *out; /* n each, by rank */
	int32_t threads;         /* of this rank that may work at once */
	pt_spreader spread;
	const void **src; /* n each for each of these threads, for the work on a chunk */
	void **dst;
} sm_op;

/* The states of an operation. */
enum {
	SM_PENDING = 0, /* some chunk is not over */
	SM_DONE = 1,    /* all chunks are done */
	SM_CLOSED = 2,  /* some chunk was closed, and no chunk is being worked on */
	SM_CLOSING = 3, /* some chunk was closed, but a rank is still working on another */
	SM_BLIND = 4    /* no rank can map all tensors: nothing was done */
};

/* sm_blind says that this process cannot map some tensor: it claims nothing. If all ranks are
 * blind, the operation ends with nothing done. */
void sm_blind(sm_op *op);

/* sm_work claims and does at most `most` chunks, this rank's share first. If it may do all, other
 * threads of this rank help. Returns how many it did. */
int sm_work(sm_op *op, int most);

/* sm_state looks at the chunks and pauses at most `spin` times, until the operation is over. With
 * yield_every, every so many pauses yield the core. Returns the state. */
int sm_state(sm_op *op, int spin, int yield_every);

/* sm_close closes the chunks that nobody has claimed. Returns the state. */
int sm_close(sm_op *op);

/* sm_leave is sm_close for a rank that does not wait for the chunks that others work on: it marks
 * them, so that they fail too. Returns the state. */
int sm_leave(sm_op *op);

/* sm_worker returns the rank that has claimed a chunk and is not done with it, -1 if there is none.
 * It is one of the n ranks. */
int sm_worker(const sm_op *op);

/* sm_closer returns the rank that has closed a chunk after chunk *from, and sets *from to that
 * chunk. It returns -1 if there is none. Begin with -1 in *from. It is one of the n ranks. */
int sm_closer(const sm_op *op, int *from);

/* sm_fail_peer gives up the chunks that a dead rank has claimed: nobody will end them. The
 * operation is closed by it. Returns how many there were. */
int sm_fail_peer(sm_op *op, int rank);

#endif

#define _GNU_SOURCE
#include "cma.h"
#include "counters.h"

#include <errno.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static const uint64_t *rows_of(const pb_op *op, int rank) {
	return (const uint64_t *)(op->block[rank] + 1);
}

/* lend writes the addresses of this rank's rows. Nobody reads those of the operation before. */
static int lend(pb_op *op) {
	uint64_t round = op->before + 1;
	if (op->published == op->rounds || !slot_is_free(op, round))
		return 0;
	for (int i = 0; i < op->lanes; i++)
		store(&rows_of(op, op->me)[i], (uint64_t)(uintptr_t)op->give[i].at);
	op->published = 1;
	show(&op->block[op->me]->published, round);
	return 1;
}

/* A reading is a part of what a rank has for this one, which the threads of this rank copy at once,
 * cut into pieces. */
typedef struct reading {
	pb_op *op;
	int rank, pieces;
	int next; /* piece that no thread has claimed */
	char *to;
	uint64_t from; /* in the memory of that rank */
	int64_t n;
	int gone, cause; /* why some piece did not come: its process has ended; errno */
} reading;

/* read_piece reads n bytes at an address of a rank. */
static void read_piece(reading *r, char *to, uint64_t address, int64_t n) {
	const pb_owner *owner = &r->op->owner[r->rank];
	char nonce[sizeof(owner->nonce)];
	struct iovec local[2] = {{nonce, sizeof(nonce)}, {to, (size_t)n}};
	/* These addresses are none of this process. */
	struct iovec remote[2] = {{(void *)(uintptr_t)owner->at, sizeof(nonce)},
							  {(void *)(uintptr_t)address, (size_t)n}};
	long got = syscall(SYS_process_vm_readv, (long)owner->pid, local, 2L, remote, 2L, 0L);
	int cause = got < 0 ? errno : EFAULT;
	int another = got >= (long)sizeof(nonce) && memcmp(nonce, owner->nonce, sizeof(nonce)) != 0;
	/* What the caller looks at next, must not be older than what was read. */
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	if (another || (got < 0 && cause == ESRCH))
		__atomic_store_n(&r->gone, 1, __ATOMIC_RELAXED);
	else if (got != (long)sizeof(nonce) + n)
		__atomic_store_n(&r->cause, cause, __ATOMIC_RELAXED);
}

static void read_pieces(void *of, int worker) {
	reading *r = of;
	(void)worker;
	for (int i; (i = __atomic_fetch_add(&r->next, 1, __ATOMIC_RELAXED)) < r->pieces;) {
		/* Pieces begin at pages. */
		const int64_t pages = (r->n + 4095) / 4096, at = pages * i / r->pieces * 4096;
		const int64_t n = least(pages * (i + 1) / r->pieces * 4096, r->n) - at;
		if (r->rank == r->op->me)
			copy_out(r->op, r->to + at, (const char *)(uintptr_t)r->from + at, n);
		else
			read_piece(r, r->to + at, r->from + (uint64_t)at, n);
	}
}

/* read copies what a reading says. Returns the number of steps, 0 if something did not come. */
static int read_all(reading r, int more) {
	pb_op *op = r.op;
	const int64_t threads = least(op->threads, r.n / PB_LEAST_PIECE);
	r.pieces = threads > 1 ? (int)threads : 1;
	if (r.pieces > 1)
		op->spread(read_pieces, &r, r.pieces, more);
	else
		read_pieces(&r, 0);
	if (r.gone) {
		op->gone = r.rank + 1;
	} else if (r.cause) {
		op->unreadable = r.rank + 1;
		op->cause = r.cause;
	}
	return r.gone || r.cause ? 0 : PB_PIECE_STEPS * r.pieces;
}

/* take copies the next pieces of what others have for this rank, beginning with its own part. */
static int take(pb_op *op) {
	int lane = lane_of(op);
	for (; op->taken < op->n; op->taken++, op->at = 0) {
		int i = (op->me + op->taken) % op->n, did;
		int64_t left = is_giver(op, i) ? op->get[i].bytes - op->at : 0;
		int64_t n = least(left, (int64_t)PB_PIECE * op->threads);
		uint64_t from;
		if (n <= 0)
			continue;
		if (i == op->me)
			from = (uint64_t)(uintptr_t)op->give[lane].at;
		else if (has(op, i, &op->block[i]->published, op->before + 1))
			from = load(&rows_of(op, i)[lane]);
		else
			return 0;
		did = read_all((reading){.op = op,
								 .rank = i,
								 .to = op->get[i].at + op->at,
								 .from = from + (uint64_t)op->at,
								 .n = n},
					   n < left || op->taken + 1 < op->n);
		if (did)
			op->at += n;
		return did;
	}
	finish(op, 1);
	return 1;
}

int pb_step_cma(pb_op *op) {
	if (op->gives && lend(op))
		return 1;
	return op->finished < op->rounds ? take(op) : 0;
}

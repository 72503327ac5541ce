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
	store(&op->block[op->me]->published.round, round);
	return 1;
}

/* read_piece reads n bytes at an address of a rank. Returns 0 if they did not come. */
static int read_piece(pb_op *op, int rank, char *to, uint64_t address, int64_t n) {
	const pb_owner *owner = &op->owner[rank];
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
	if (another || (got < 0 && cause == ESRCH)) {
		op->gone = rank + 1;
		return 0;
	}
	if (got != (long)sizeof(nonce) + n) {
		op->unreadable = rank + 1;
		op->cause = cause;
		return 0;
	}
	return 1;
}

/* take copies the next piece of what others have for this rank, beginning with its own part. */
static int take(pb_op *op) {
	int lane = lane_of(op);
	for (; op->taken < op->n; op->taken++, op->at = 0) {
		int i = (op->me + op->taken) % op->n;
		int64_t n = is_giver(op, i) ? least(op->get[i].bytes - op->at, PB_PIECE) : 0;
		char *to = op->get[i].at + op->at;
		if (n <= 0)
			continue;
		if (i == op->me)
			copy_out(op, to, op->give[lane].at + op->at, n);
		else if (!has(op, i, &op->block[i]->published, op->before + 1) ||
				 !read_piece(op, i, to, load(&rows_of(op, i)[lane]) + (uint64_t)op->at, n))
			return 0;
		op->at += n;
		return 1;
	}
	finish(op);
	return 1;
}

int pb_step_cma(pb_op *op) {
	if (op->gives && lend(op))
		return 1;
	return op->finished < op->rounds && take(op);
}

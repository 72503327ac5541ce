/* Threads of a rank that help the thread of a call with its copies and sums.
 *
 * The helpers belong to the process. The first call that wants them makes them; they sleep on a
 * futex between calls, and never end: the end of the process takes them, as a fork leaves them
 * behind. One call has them at a time, and another one that comes meanwhile does its work alone.
 *
 * What a call hands out is a share: a function that claims parts of the work until none is left.
 * The caller runs it itself, and helpers that come in time run it, too. Then the door is closed: a
 * helper that has not come yet stays out, and the caller waits for those inside. So no helper sees
 * memory of a call that has ended, and a helper that gets no core costs the call nothing. What a
 * share does is bounded: copies and sums, and no waits. */
#ifndef PMPI_THREADS_POOL_H
#define PMPI_THREADS_POOL_H

#include <stdint.h>

/* The most threads of a rank, the caller included. */
enum { PT_MOST = 64 };

/* A share claims parts of `work` and does them, until none is left. Each thread inside has another
 * worker: 0 is the caller, helpers have 1 and so on. */
typedef void (*pt_share)(void *work, int worker);

/* A pt_spreader runs a share on this thread and on workers - 1 helpers at most, PT_MOST - 1 if
 * these are more. It returns when nobody is inside. more says that this call spreads again at once:
 * helpers stay awake for a moment. */
typedef void (*pt_spreader)(pt_share share, void *work, int workers, int more);

/* pt_spread is the pt_spreader of this process. */
void pt_spread(pt_share share, void *work, int workers, int more);

/* pt_keep_to_cpus says whether no more threads run at once than the rank has CPUs at that time. */
void pt_keep_to_cpus(int keep);

/* pt_copy copies n bytes on so many threads. The two do not overlap. */
void pt_copy(void *to, const void *from, int64_t n, int workers);

/* pt_cpus returns on how many CPUs the rank may run: see cpus_of_rank in pool.c. */
int pt_cpus(void);

#endif

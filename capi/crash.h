/* What calls that are under way are about, for the line that is printed when a signal comes of the
 * memory of one of their tensors: a Go dump names no call. A call costs two stores for it. */
#ifndef PMPI_CRASH_H
#define PMPI_CRASH_H

#include <pthread.h>

#include "pmpi.h"

enum { CRASH_OP = 1, CRASH_WINDOW, CRASH_TABLE };

/* A call on the stack of the thread that waits in it: a pmpi_op, a pmpi_window_op, or n
 * pmpi_table_op. Signal handlers make calls inside others. */
typedef struct crash_call {
	struct crash_call *outer;
	const void *what;
	int32_t kind, n;
} crash_call;

/* A thread that makes calls. */
typedef struct crash_thread {
	struct crash_thread *next, **link;
	pthread_t self;
	crash_call *now; /* the innermost call, or NULL */
} crash_thread;

/* crash_join adds the calling thread, crash_leave removes it. */
void crash_join(crash_thread *t);
void crash_leave(crash_thread *t);

static inline void crash_begin(crash_thread *t, crash_call *c) {
	c->outer = t->now;
	__atomic_store_n(&t->now, c, __ATOMIC_RELEASE);
}

static inline void crash_end(crash_thread *t, const crash_call *c) {
	__atomic_store_n(&t->now, c->outer, __ATOMIC_RELEASE);
}

/* A call that a thread makes without a look at its state: Python's GIL is held all the time, so it
 * is the only one. NULL: there is none. */
extern crash_call *crash_at_once;

enum { CRASH_DIMS = 6 };

/* Where a tensor is, and what it is. */
typedef struct crash_tensor {
	const char *low, *end;
	int64_t count;
	int32_t dtype, ndim;
	int64_t shape[CRASH_DIMS]; /* not set if ndim is larger */
} crash_tensor;

/* An operation that goes on after its call. */
typedef struct crash_pending {
	struct crash_pending *next, **link;
	const uint32_t *state; /* PMPI_STATE_*, or NULL */
	int64_t group;
	int32_t code, n_send, n_recv;
	crash_tensor *tensors; /* first those of send */
} crash_pending;

/* crash_pend lists an operation under way, whose tensors has room for all buffers of op. crash_over
 * takes it off; it may be called again. The caller holds Python's GIL. */
void crash_pend(crash_pending *p, const pmpi_op *op);
void crash_over(crash_pending *p);

/* crash_watch begins to watch the signals, once: it goes in front of the handlers that there are,
 * which get every signal. */
void crash_watch(void);

#endif

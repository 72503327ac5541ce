// Streams: queues of operations that a few threads work off, late and in random order.
#define _GNU_SOURCE
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "fake.h"

enum { WORKERS = 4, POLL_US = 100 };

// An operation wakes one worker, which wakes another one if there is more to do. To wake all of
// them for every operation took half of the time of the tests.
static pthread_cond_t runnable = PTHREAD_COND_INITIALIZER;
static pthread_cond_t ended = PTHREAD_COND_INITIALIZER;
struct stream *streams;
static bool started, watched; // watched: a worker polls for changes by other processes
static __thread struct stream *per_thread[MAX_DEVICES]; // the thread's default streams

static uint64_t random_below(uint64_t n) {
	static uint64_t state;
	if (!state) {
		uint64_t seed = (uint64_t)setting("PMPI_FAKECUDA_SEED", 0);
		state = (seed ? seed : (uint64_t)time(NULL) ^ (uint64_t)getpid() << 20) * 2 + 1;
	}
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return n ? (state >> 16) % n : 0;
}

struct stream *stream_new(CUcontext ctx, bool blocking) {
	struct stream *s = calloc(1, sizeof *s);
	*s = (struct stream){.ctx = ctx, .blocking = blocking, .next = streams};
	s->tail = &s->head;
	return streams = s;
}

struct stream *stream_of(CUstream handle) {
	CUcontext ctx = current();
	if (handle <= STREAM_LEGACY) {
		if (!ctx->legacy)
			ctx->legacy = stream_new(ctx, false);
		return ctx->legacy;
	}
	if (handle == STREAM_PER_THREAD) {
		if (!per_thread[ctx->device])
			per_thread[ctx->device] = stream_new(ctx, true);
		return per_thread[ctx->device];
	}
	for (struct stream *s = streams; s; s = s->next)
		if ((CUstream)s == handle && !s->destroyed)
			return s;
	return NULL;
}

bool reached(struct point p) {
	if (p.shared)
		return p.shared->reached[p.number % 511] >= p.number;
	return !p.stream || p.stream->done >= p.number;
}

struct point end_of(struct stream *s) {
	return (struct point){s, NULL, s->queued};
}

// Returns what must happen before the first operation of s and has not happened, or NULL.
static const struct point *blocked_by(const struct stream *s) {
	for (int i = 0; i < s->head->n_after; i++)
		if (!reached(s->head->after[i]))
			return &s->head->after[i];
	return NULL;
}

// Returns a random stream whose first operation may run, or NULL. more says that there are others;
// polling that another process may unblock a stream.
static struct stream *pick(bool *more, bool *polling) {
	struct stream *picked = NULL;
	uint64_t n = 0;
	*polling = false;
	for (struct stream *s = streams; s; s = s->next) {
		if (!s->head || s->busy || s->held)
			continue;
		const struct point *blocked = blocked_by(s);
		if (blocked)
			*polling |= blocked->shared != NULL;
		else if (random_below(++n) == 0)
			picked = s;
	}
	*more = n > 1;
	return picked;
}

static void wait_for(pthread_cond_t *cond, bool polling) {
	if (!polling) {
		pthread_cond_wait(cond, &lock);
		return;
	}
	struct timespec until;
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_nsec += POLL_US * 1000;
	until.tv_sec += until.tv_nsec / 1000000000;
	until.tv_nsec %= 1000000000;
	pthread_cond_timedwait(cond, &lock, &until);
}

// Removes a stream that is destroyed and has ended. It is not freed, because events point to it.
void forget_stream(struct stream *s) {
	struct stream **p = &streams;
	if (!s->destroyed || s->head)
		return;
	while (*p && *p != s)
		p = &(*p)->next;
	if (*p)
		*p = s->next;
}

// One worker at a time polls for changes by other processes.
static void wait_for_work(bool polling) {
	bool watching = polling && !watched;
	watched |= watching;
	wait_for(&runnable, watching);
	if (watching)
		watched = false;
}

static void *work(void *unused) {
	prctl(PR_SET_TIMERSLACK, 1); // the process may have asked for late timers
	pthread_mutex_lock(&lock);
	for (;;) {
		bool more, polling;
		struct stream *s = pick(&more, &polling);
		if (!s) {
			wait_for_work(polling);
			continue;
		}
		if (more || (polling && !watched))
			pthread_cond_signal(&runnable);
		struct op *op = s->head;
		s->busy = true;
		bool idle = op->kind == OP_ORDER || op->kind == OP_FAULT;
		useconds_t delay =
			idle ? 0 : (useconds_t)random_below((uint64_t)setting("PMPI_FAKECUDA_DELAY", 300) + 1);
		bool faulted = s->ctx->error;
		pthread_mutex_unlock(&lock);
		if (delay)
			usleep(delay);
		if (!faulted && op->run)
			op->run(op);
		pthread_mutex_lock(&lock);
		if (op->over)
			op->over(op);
		free(op->staged);
		free(op->launch);
		free(op->after);
		s->head = op->next;
		if (!s->head)
			s->tail = &s->head;
		s->done = op->number;
		s->busy = false;
		free(op);
		forget_stream(s);
		pthread_cond_broadcast(&ended);
	}
	return NULL;
}

static void start_workers(void) {
	sigset_t set, before;
	sigfillset(&set); // signals are for the threads of the program
	pthread_sigmask(SIG_SETMASK, &set, &before);
	for (int i = 0; i < WORKERS; i++) {
		pthread_t thread;
		if (pthread_create(&thread, NULL, work, NULL))
			abort();
		pthread_detach(thread);
	}
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	started = true;
}

struct op *op_new(enum op_kind kind) {
	struct op *op = calloc(1, sizeof *op);
	op->kind = kind;
	return op;
}

void after(struct op *op, struct point p) {
	if (reached(p))
		return;
	op->after = realloc(op->after, sizeof p * (size_t)(op->n_after + 1));
	op->after[op->n_after++] = p;
}

void submit(struct stream *s, struct op *op) {
	if (s == s->ctx->legacy) {
		for (struct stream *t = streams; t; t = t->next)
			if (t->ctx == s->ctx && t->blocking)
				after(op, end_of(t));
	} else if (s->blocking && s->ctx->legacy) {
		after(op, end_of(s->ctx->legacy));
	}
	op->number = ++s->queued;
	*s->tail = op;
	s->tail = &op->next;
	if (!started)
		start_workers();
	if (s->head == op) // else a worker looks at it when what is before it has ended
		pthread_cond_signal(&runnable);
}

void await(struct point p) {
	while (!reached(p))
		wait_for(&ended, p.shared != NULL);
}

// Waits for what is queued now. New operations may be queued meanwhile.
void await_context(CUcontext ctx) {
	struct point points[256];
	int n = 0;
	for (struct stream *s = streams; s && n < 256; s = s->next)
		if (s->ctx == ctx && s->done < s->queued)
			points[n++] = end_of(s);
	while (n)
		await(points[--n]);
}

void look_again(void) {
	pthread_cond_broadcast(&runnable);
}

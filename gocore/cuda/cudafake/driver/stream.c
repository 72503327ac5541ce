// Streams and events: queues that a few threads work off, late and in random order.
#define _GNU_SOURCE
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "fake.h"

enum { WORKERS = 4, POLL_US = 100 };

static pthread_cond_t changed = PTHREAD_COND_INITIALIZER; // something was queued, or ended
static struct stream *streams;                            // but the destroyed ones that are done
static struct event *events;
static bool started;
static __thread struct stream *own[MAX_DEVICES]; // the thread's default streams

uint64_t random_below(uint64_t n) {
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

static struct stream *stream_new(struct context *ctx, bool blocking, int priority) {
	struct stream *s = calloc(1, sizeof *s);
	*s = (struct stream){.ctx = ctx, .blocking = blocking, .priority = priority, .next = streams};
	s->tail = &s->head;
	return streams = s;
}

struct stream *stream_of(CUstream handle) {
	struct context *ctx = current();
	if (handle <= STREAM_LEGACY) {
		if (!ctx->legacy)
			ctx->legacy = stream_new(ctx, false, 0);
		return ctx->legacy;
	}
	if (handle == STREAM_PER_THREAD) {
		if (!own[ctx->device])
			own[ctx->device] = stream_new(ctx, true, 0);
		return own[ctx->device];
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

// What must have happened before the head of s, if that is not done.
static const struct point *blocked_by(const struct stream *s) {
	for (int i = 0; i < s->head->n_after; i++)
		if (!reached(s->head->after[i]))
			return &s->head->after[i];
	return NULL;
}

// A stream whose head may run, any of them; polling says that other processes may unblock one.
static struct stream *pick(bool *polling) {
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
	return picked;
}

static void wait_changed(bool polling) {
	struct timespec until;
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_nsec += POLL_US * 1000;
	until.tv_sec += until.tv_nsec / 1000000000;
	until.tv_nsec %= 1000000000;
	if (polling)
		pthread_cond_timedwait(&changed, &lock, &until);
	else
		pthread_cond_wait(&changed, &lock);
}

static void drop_event(struct event *e) {
	if (!e->destroyed || e->recording)
		return;
	for (struct event **p = &events; *p; p = &(*p)->next) {
		if (*p == e) {
			*p = e->next;
			break;
		}
	}
	if (e->shared) {
		munmap(e->shared, sizeof *e->shared);
		close(e->fd);
	}
	free(e);
}

// Without the lock; what is queued after a fault does nothing.
static void execute(struct op *op) {
	switch (op->kind) {
	case OP_COPY:
		memmove(op->to, op->from, op->bytes);
		break;
	case OP_SET:
		memset(op->to, op->value, op->bytes);
		break;
	case OP_KERNEL:
		run_kernel(op->launch);
		break;
	default:
		break;
	}
}

static void finish(struct stream *s, struct op *op) {
	struct timespec now;
	switch (op->kind) {
	case OP_RECORD:
		clock_gettime(CLOCK_MONOTONIC, &now);
		op->event->time = (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
		if (op->event->shared)
			op->event->shared->reached[op->record % 511] = op->record;
		op->event->recording--;
		drop_event(op->event);
		break;
	case OP_FREE:
		memory_release(memory_at(op->dst));
		break;
	case OP_FAULT:
		s->ctx->error = op->value;
		break;
	default:
		break;
	}
	free(op->staged);
	free(op->launch);
	free(op->after);
}

static void *work(void *unused) {
	(void)unused;
	prctl(PR_SET_TIMERSLACK, 1); // the process may have asked for late timers
	pthread_mutex_lock(&lock);
	for (;;) {
		bool polling;
		struct stream *s = pick(&polling);
		if (!s) {
			wait_changed(polling);
			continue;
		}
		struct op *op = s->head;
		s->busy = true;
		bool idle = op->kind == OP_ORDER || op->kind == OP_FAULT;
		useconds_t delay =
			idle ? 0 : (useconds_t)random_below((uint64_t)setting("PMPI_FAKECUDA_DELAY", 300) + 1);
		bool faulted = s->ctx->error;
		pthread_mutex_unlock(&lock);
		if (delay)
			usleep(delay);
		if (!faulted)
			execute(op);
		pthread_mutex_lock(&lock);
		finish(s, op);
		s->head = op->next;
		if (!s->head)
			s->tail = &s->head;
		s->done = op->number;
		s->busy = false;
		free(op);
		for (struct stream **p = &streams; s->destroyed && !s->head && *p; p = &(*p)->next) {
			if (*p == s) {
				*p = s->next; // not freed: events name it
				break;
			}
		}
		pthread_cond_broadcast(&changed);
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

static void after(struct op *op, struct point p) {
	if (reached(p))
		return;
	op->after = realloc(op->after, sizeof p * (size_t)(op->n_after + 1));
	op->after[op->n_after++] = p;
}

void submit(struct stream *s, struct op *op) {
	if (s == s->ctx->legacy) {
		for (struct stream *t = streams; t; t = t->next)
			if (t->ctx == s->ctx && t->blocking)
				after(op, (struct point){t, NULL, t->queued});
	} else if (s->blocking && s->ctx->legacy) {
		after(op, (struct point){s->ctx->legacy, NULL, s->ctx->legacy->queued});
	}
	op->number = ++s->queued;
	*s->tail = op;
	s->tail = &op->next;
	if (!started)
		start_workers();
	pthread_cond_broadcast(&changed);
}

void await(struct point p) {
	while (!reached(p))
		wait_changed(p.shared != NULL);
}

// What is queued now; new work may come while it waits.
void await_context(struct context *ctx) {
	struct point points[256];
	int n = 0;
	for (struct stream *s = streams; s && n < 256; s = s->next)
		if (s->ctx == ctx && s->done < s->queued)
			points[n++] = (struct point){s, NULL, s->queued};
	while (n)
		await(points[--n]);
}

EXPORT CUresult cuCtxSynchronize(void) {
	ENTER(CONTEXT);
	pthread_mutex_lock(&lock);
	await_context(current());
	CUresult error = current()->error;
	pthread_mutex_unlock(&lock);
	return error;
}

EXPORT CUresult cuStreamCreateWithPriority(struct stream **s, unsigned flags, int priority) {
	ENTER(CONTEXT);
	if (flags & ~(unsigned)STREAM_NON_BLOCKING)
		return CUDA_ERROR_INVALID_VALUE;
	priority = priority > 0 ? 0 : priority < -5 ? -5 : priority;
	pthread_mutex_lock(&lock);
	*s = stream_new(current(), !(flags & STREAM_NON_BLOCKING), priority);
	pthread_mutex_unlock(&lock);
	return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamCreate(struct stream **s, unsigned flags) {
	ENTER(CONTEXT);
	return cuStreamCreateWithPriority(s, flags, 0);
}

// IN_STREAM finds s by handle, or returns; its block runs with the lock held and sets error.
#define IN_STREAM(s, handle)                                                                       \
	ENTER(CONTEXT);                                                                                \
	CUresult error = CUDA_SUCCESS;                                                                 \
	pthread_mutex_lock(&lock);                                                                     \
	struct stream *s = stream_of(handle);                                                          \
	if (!s)                                                                                        \
		error = CUDA_ERROR_INVALID_HANDLE;                                                         \
	else

#define LEAVE                                                                                      \
	pthread_mutex_unlock(&lock);                                                                   \
	return error

EXPORT CUresult cuStreamDestroy_v2(CUstream stream) {
	IN_STREAM(s, stream) if (stream <= STREAM_PER_THREAD) error = CUDA_ERROR_INVALID_HANDLE;
	else {
		s->destroyed = true; // what is queued still runs
		s->held = false;
		for (struct stream **p = &streams; !s->head && *p; p = &(*p)->next) {
			if (*p == s) {
				*p = s->next;
				break;
			}
		}
		pthread_cond_broadcast(&changed);
	}
	LEAVE;
}

EXPORT CUresult cuStreamQuery(CUstream stream) {
	IN_STREAM(s, stream)
	error = s->capturing          ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
			: s->done < s->queued ? CUDA_ERROR_NOT_READY
								  : s->ctx->error;
	LEAVE;
}

EXPORT CUresult cuStreamSynchronize(CUstream stream) {
	IN_STREAM(s, stream) if (s->capturing) error = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	else {
		if (s == s->ctx->legacy)
			submit(s, op_new(OP_ORDER)); // comes after the blocking streams
		await((struct point){s, NULL, s->queued});
		error = s->ctx->error;
	}
	LEAVE;
}

EXPORT CUresult cuStreamIsCapturing(CUstream stream, int *status) {
	IN_STREAM(s, stream) *status = s->capturing;
	LEAVE;
}

EXPORT CUresult cuStreamGetCtx(CUstream stream, struct context **ctx) {
	IN_STREAM(s, stream) *ctx = s->ctx;
	LEAVE;
}

struct event *event_new(unsigned flags) {
	struct event *e = calloc(1, sizeof *e);
	*e = (struct event){.ctx = current(), .flags = flags, .fd = -1, .next = events};
	return events = e;
}

struct event *event_of(struct event *handle) {
	for (struct event *e = events; e; e = e->next)
		if (e == handle && !e->destroyed)
			return e;
	return NULL;
}

// What the event stands for now: nothing, as long as it was not recorded.
static struct point point_of(const struct event *e) {
	if (!e->shared)
		return e->last;
	return (struct point){NULL, e->shared, e->shared->recorded};
}

EXPORT CUresult cuStreamWaitEvent(CUstream stream, struct event *event, unsigned flags) {
	IN_STREAM(s, stream)
	if (!event_of(event) || flags > 1) error =
		flags > 1 ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
	else {
		struct op *op = op_new(OP_ORDER);
		after(op, point_of(event));
		submit(s, op);
	}
	LEAVE;
}

EXPORT CUresult cuEventRecord(struct event *event, CUstream stream) {
	IN_STREAM(s, stream)
	if (!event_of(event) || event->ctx != s->ctx) error = CUDA_ERROR_INVALID_HANDLE;
	else {
		struct op *op = op_new(OP_RECORD);
		op->event = event;
		op->record = event->shared ? ++event->shared->recorded : 0;
		event->recording++;
		submit(s, op);
		event->last = (struct point){s, NULL, s->queued};
	}
	LEAVE;
}

EXPORT CUresult cuEventCreate(struct event **event, unsigned flags) {
	ENTER(CONTEXT);
	bool shared = flags & EVENT_INTERPROCESS;
	if (flags & ~7U || (shared && !(flags & EVENT_DISABLE_TIMING)))
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&lock);
	struct event *e = event_new(flags);
	if (shared) {
		e->owner = (int)getpid();
		e->fd = new_memfd(sizeof *e->shared, &e->nonce);
		e->shared = mmap(NULL, sizeof *e->shared, PROT_READ | PROT_WRITE, MAP_SHARED, e->fd, 0);
	}
	*event = e;
	pthread_mutex_unlock(&lock);
	return CUDA_SUCCESS;
}

// IN_EVENT is as IN_STREAM.
#define IN_EVENT(event)                                                                            \
	ENTER(CONTEXT);                                                                                \
	CUresult error = CUDA_SUCCESS;                                                                 \
	pthread_mutex_lock(&lock);                                                                     \
	if (!event_of(event))                                                                          \
		error = CUDA_ERROR_INVALID_HANDLE;                                                         \
	else

EXPORT CUresult cuEventDestroy_v2(struct event *event) {
	IN_EVENT(event) {
		event->destroyed = true;
		drop_event(event);
	}
	LEAVE;
}

EXPORT CUresult cuEventQuery(struct event *event) {
	IN_EVENT(event)
	error = reached(point_of(event)) ? event->ctx->error : CUDA_ERROR_NOT_READY;
	LEAVE;
}

EXPORT CUresult cuEventSynchronize(struct event *event) {
	IN_EVENT(event) {
		await(point_of(event));
		error = current()->error;
	}
	LEAVE;
}

EXPORT CUresult cuEventElapsedTime(float *ms, struct event *start, struct event *end) {
	IN_EVENT(start)
	if (!event_of(end) || (start->flags | end->flags) & EVENT_DISABLE_TIMING ||
		!start->last.stream || !end->last.stream) error = CUDA_ERROR_INVALID_HANDLE;
	else if (!reached(start->last) || !reached(end->last)) error = CUDA_ERROR_NOT_READY;
	else *ms = (float)(end->time - start->time);
	LEAVE;
}

// A copy or a memset; from is NULL for that.
static CUresult move(CUstream stream, CUdeviceptr dst, CUdeviceptr src, size_t bytes, int value,
					 enum op_kind kind, bool wait) {
	if (!bytes)
		return CUDA_SUCCESS;
	CUresult error = CUDA_SUCCESS;
	pthread_mutex_lock(&lock);
	struct stream *s = stream_of(stream);
	bool to_pageable, from_pageable = false;
	char *to = memory_access(dst, bytes, &to_pageable);
	char *from = kind == OP_COPY ? memory_access(src, bytes, &from_pageable) : to;
	if (!s)
		error = CUDA_ERROR_INVALID_HANDLE;
	else if (!to || !from || (to_pageable && kind == OP_SET))
		error = CUDA_ERROR_INVALID_VALUE;
	else {
		struct op *op = op_new(kind);
		op->dst = dst;
		op->src = src;
		op->bytes = bytes;
		op->value = value;
		op->to = to;
		op->from = from;
		if (from_pageable && !to_pageable) // it may change as soon as this returns
			op->from = op->staged = memcpy(malloc(bytes), from, bytes);
		submit(s, op);
		if (wait || to_pageable) {
			await((struct point){s, NULL, s->queued});
			error = s->ctx->error;
		}
	}
	pthread_mutex_unlock(&lock);
	return error;
}

#define COPY(name)                                                                                 \
	EXPORT CUresult name(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream) {        \
		ENTER(CONTEXT);                                                                            \
		return move(stream, dst, src, bytes, 0, OP_COPY, false);                                   \
	}
COPY(cuMemcpyAsync)
COPY(cuMemcpyHtoDAsync_v2)
COPY(cuMemcpyDtoHAsync_v2)
COPY(cuMemcpyDtoDAsync_v2)

EXPORT CUresult cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t bytes) {
	ENTER(CONTEXT);
	return move(STREAM_LEGACY, dst, src, bytes, 0, OP_COPY, true);
}

EXPORT CUresult cuMemsetD8Async(CUdeviceptr dst, unsigned char value, size_t n, CUstream stream) {
	ENTER(CONTEXT);
	return move(stream, dst, dst, n, value, OP_SET, false);
}

EXPORT int fakecuda_hold(CUstream stream, int hold) {
	IN_STREAM(s, stream) s->held = hold;
	pthread_cond_broadcast(&changed);
	LEAVE;
}

EXPORT int fakecuda_capture(CUstream stream, int on) {
	IN_STREAM(s, stream) s->capturing = on;
	LEAVE;
}

EXPORT int fakecuda_fault(CUstream stream, int code) {
	IN_STREAM(s, stream) {
		struct op *op = op_new(OP_FAULT);
		op->value = code;
		submit(s, op);
	}
	LEAVE;
}

static bool overlap(CUdeviceptr a, size_t n, CUdeviceptr b, size_t m) {
	return a < b + m && b < a + n;
}

static int count(CUdeviceptr p, size_t bytes, bool any, bool writes) {
	int n = 0;
	pthread_mutex_lock(&lock);
	for (struct stream *s = streams; s; s = s->next) {
		for (struct op *op = s->head; op; op = op->next) {
			bool moves = op->kind == OP_COPY || op->kind == OP_SET;
			bool uses = writes ? moves && overlap(op->dst, op->bytes, p, bytes)
							   : op->kind == OP_COPY && overlap(op->src, op->bytes, p, bytes);
			n += any || uses;
		}
	}
	pthread_mutex_unlock(&lock);
	return n;
}

EXPORT int fakecuda_pending(void) {
	return count(0, 0, true, false);
}

EXPORT int fakecuda_pending_writes(CUdeviceptr p, size_t bytes) {
	return count(p, bytes, false, true);
}

EXPORT int fakecuda_pending_reads(CUdeviceptr p, size_t bytes) {
	return count(p, bytes, false, false);
}

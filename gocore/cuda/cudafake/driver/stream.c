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

static pthread_cond_t changed = PTHREAD_COND_INITIALIZER; // something was queued, or has ended
static struct stream *streams;                            // without destroyed ones that have ended
static struct event *events;
static bool started;
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

static struct stream *stream_new(CUcontext ctx, bool blocking) {
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

static bool reached(struct point p) {
	if (p.shared)
		return p.shared->reached[p.number % 511] >= p.number;
	return !p.stream || p.stream->done >= p.number;
}

static struct point end_of(struct stream *s) {
	return (struct point){s, NULL, s->queued};
}

// Returns what must happen before the first operation of s and has not happened, or NULL.
static const struct point *blocked_by(const struct stream *s) {
	for (int i = 0; i < s->head->n_after; i++)
		if (!reached(s->head->after[i]))
			return &s->head->after[i];
	return NULL;
}

// Returns a random stream whose first operation may run, or NULL. polling says that another process
// may unblock a stream.
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
	if (!polling) {
		pthread_cond_wait(&changed, &lock);
		return;
	}
	struct timespec until;
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_nsec += POLL_US * 1000;
	until.tv_sec += until.tv_nsec / 1000000000;
	until.tv_nsec %= 1000000000;
	pthread_cond_timedwait(&changed, &lock, &until);
}

// Removes a stream that is destroyed and has ended. It is not freed, because events point to it.
static void forget_stream(struct stream *s) {
	struct stream **p = &streams;
	if (!s->destroyed || s->head)
		return;
	while (*p && *p != s)
		p = &(*p)->next;
	if (*p)
		*p = s->next;
}

static void forget_event(CUevent e) {
	CUevent *p = &events;
	if (!e->destroyed || e->recording)
		return;
	while (*p != e)
		p = &(*p)->next;
	*p = e->next;
	if (e->shared)
		close(e->fd); // it stays mapped, because waiting operations read it
	free(e);
}

// Called without the lock. Operations after a fault do nothing.
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
		forget_event(op->event);
		break;
	case OP_FREE:
		memory_release(op->memory);
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

// Only the first thread polls for changes by other processes.
static void *work(void *watching) {
	prctl(PR_SET_TIMERSLACK, 1); // the process may have asked for late timers
	pthread_mutex_lock(&lock);
	for (;;) {
		bool polling;
		struct stream *s = pick(&polling);
		if (!s) {
			wait_changed(polling && watching);
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
		forget_stream(s);
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
		if (pthread_create(&thread, NULL, work, i ? NULL : &started))
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
				after(op, end_of(t));
	} else if (s->blocking && s->ctx->legacy) {
		after(op, end_of(s->ctx->legacy));
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

EXPORT CUresult cuCtxSynchronize(void) {
	ENTER(CONTEXT);
	await_context(current());
	return current()->error;
}

EXPORT CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned flags, int priority) {
	ENTER(CONTEXT);
	(void)priority; // a hint, which the fake driver ignores
	if (flags & ~(unsigned)STREAM_NON_BLOCKING)
		return CUDA_ERROR_INVALID_VALUE;
	*stream = (CUstream)stream_new(current(), !flags);
	return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamCreate(CUstream *stream, unsigned flags) {
	ENTER(CONTEXT);
	if (flags & ~(unsigned)STREAM_NON_BLOCKING)
		return CUDA_ERROR_INVALID_VALUE;
	*stream = (CUstream)stream_new(current(), !flags);
	return CUDA_SUCCESS;
}

// IN_STREAM begins a function: s is the stream of that handle.
#define IN_STREAM(s, handle)                                                                       \
	ENTER(CONTEXT);                                                                                \
	struct stream *s = stream_of(handle);                                                          \
	if (!s)                                                                                        \
	return CUDA_ERROR_INVALID_HANDLE

EXPORT CUresult cuStreamDestroy_v2(CUstream stream) {
	IN_STREAM(s, stream);
	if (stream <= STREAM_PER_THREAD)
		return CUDA_ERROR_INVALID_HANDLE;
	s->destroyed = true; // queued operations still run
	s->held = false;
	forget_stream(s);
	pthread_cond_broadcast(&changed);
	return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamQuery(CUstream stream) {
	IN_STREAM(s, stream);
	if (s->capturing)
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	return s->done < s->queued ? CUDA_ERROR_NOT_READY : s->ctx->error;
}

EXPORT CUresult cuStreamSynchronize(CUstream stream) {
	IN_STREAM(s, stream);
	if (s->capturing)
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	if (s == s->ctx->legacy)
		submit(s, op_new(OP_ORDER)); // runs after the blocking streams
	await(end_of(s));
	return s->ctx->error;
}

EXPORT CUresult cuStreamIsCapturing(CUstream stream, int *status) {
	IN_STREAM(s, stream);
	*status = s->capturing;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamGetCtx(CUstream stream, CUcontext *ctx) {
	IN_STREAM(s, stream);
	*ctx = s->ctx;
	return CUDA_SUCCESS;
}

CUevent event_new(unsigned flags) {
	CUevent e = calloc(1, sizeof *e);
	*e = (struct event){.ctx = current(), .flags = flags, .next = events};
	return events = e;
}

CUevent event_of(CUevent handle) {
	CUevent e = events;
	while (e && (e != handle || e->destroyed))
		e = e->next;
	return e;
}

// What the event stands for now. It is nothing if the event was never recorded.
static struct point point_of(const struct event *e) {
	if (!e->shared)
		return e->last;
	return (struct point){NULL, e->shared, e->shared->recorded};
}

EXPORT CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags) {
	IN_STREAM(s, stream);
	if (!event_of(event) || flags > 1)
		return flags > 1 ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
	struct op *op = op_new(OP_ORDER);
	after(op, point_of(event));
	submit(s, op);
	return CUDA_SUCCESS;
}

EXPORT CUresult cuEventRecord(CUevent event, CUstream stream) {
	IN_STREAM(s, stream);
	if (!event_of(event) || event->ctx != s->ctx)
		return CUDA_ERROR_INVALID_HANDLE;
	struct op *op = op_new(OP_RECORD);
	op->event = event;
	op->record = event->shared ? ++event->shared->recorded : 0;
	event->recording++;
	submit(s, op);
	event->last = end_of(s);
	return CUDA_SUCCESS;
}

EXPORT CUresult cuEventCreate(CUevent *event, unsigned flags) {
	ENTER(CONTEXT);
	bool shared = flags & EVENT_INTERPROCESS;
	if (flags > 7 || (shared && !(flags & EVENT_DISABLE_TIMING)))
		return CUDA_ERROR_INVALID_VALUE;
	CUevent e = *event = event_new(flags);
	if (shared) {
		e->owner = (int)getpid();
		e->fd = new_memfd(sizeof *e->shared, &e->nonce);
		e->shared = mmap(NULL, sizeof *e->shared, PROT_READ | PROT_WRITE, MAP_SHARED, e->fd, 0);
	}
	return CUDA_SUCCESS;
}

EXPORT CUresult cuEventDestroy_v2(CUevent event) {
	ENTER(CONTEXT);
	if (!event_of(event))
		return CUDA_ERROR_INVALID_HANDLE;
	event->destroyed = true;
	forget_event(event);
	return CUDA_SUCCESS;
}

EXPORT CUresult cuEventQuery(CUevent event) {
	ENTER(CONTEXT);
	if (!event_of(event))
		return CUDA_ERROR_INVALID_HANDLE;
	return reached(point_of(event)) ? event->ctx->error : CUDA_ERROR_NOT_READY;
}

EXPORT CUresult cuEventSynchronize(CUevent event) {
	ENTER(CONTEXT);
	if (!event_of(event))
		return CUDA_ERROR_INVALID_HANDLE;
	await(point_of(event));
	return current()->error;
}

EXPORT CUresult cuEventElapsedTime(float *ms, CUevent start, CUevent end) {
	ENTER(CONTEXT);
	if (!event_of(start) || !event_of(end) || !start->last.stream || !end->last.stream ||
		(start->flags | end->flags) & EVENT_DISABLE_TIMING)
		return CUDA_ERROR_INVALID_HANDLE;
	if (!reached(start->last) || !reached(end->last))
		return CUDA_ERROR_NOT_READY;
	*ms = (float)(end->time - start->time);
	return CUDA_SUCCESS;
}

static CUresult copy(CUstream stream, CUdeviceptr dst, CUdeviceptr src, size_t bytes, bool wait) {
	struct stream *s = stream_of(stream);
	bool to_pageable, from_pageable;
	char *to = memory_access(dst, bytes, &to_pageable);
	char *from = memory_access(src, bytes, &from_pageable);
	if (s && !bytes)
		return CUDA_SUCCESS;
	if (!s || !to || !from)
		return s ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
	struct op *op = op_new(OP_COPY);
	op->dst = dst;
	op->src = src;
	op->bytes = bytes;
	op->to = to;
	op->from = from;
	if (from_pageable && !to_pageable) // the caller may change it as soon as this returns
		op->from = op->staged = memcpy(malloc(bytes), from, bytes);
	submit(s, op);
	if (!wait && !to_pageable)
		return CUDA_SUCCESS;
	await(end_of(s));
	return s->ctx->error;
}

#define COPY(name)                                                                                 \
	EXPORT CUresult name(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream) {        \
		ENTER(CONTEXT);                                                                            \
		return copy(stream, dst, src, bytes, false);                                               \
	}
COPY(cuMemcpyAsync)
COPY(cuMemcpyHtoDAsync_v2)
COPY(cuMemcpyDtoHAsync_v2)
COPY(cuMemcpyDtoDAsync_v2)

EXPORT CUresult cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t bytes) {
	ENTER(CONTEXT);
	return copy(STREAM_LEGACY, dst, src, bytes, true);
}

EXPORT CUresult cuMemsetD8Async(CUdeviceptr dst, unsigned char value, size_t n, CUstream stream) {
	IN_STREAM(s, stream);
	bool pageable;
	char *to = memory_access(dst, n, &pageable);
	if (!n)
		return CUDA_SUCCESS;
	if (!to || pageable)
		return CUDA_ERROR_INVALID_VALUE;
	struct op *op = op_new(OP_SET);
	op->dst = dst;
	op->bytes = n;
	op->to = to;
	op->value = value;
	submit(s, op);
	return CUDA_SUCCESS;
}

EXPORT int fakecuda_hold(CUstream stream, int hold) {
	IN_STREAM(s, stream);
	s->held = hold;
	pthread_cond_broadcast(&changed);
	return CUDA_SUCCESS;
}

EXPORT int fakecuda_capture(CUstream stream, int on) {
	IN_STREAM(s, stream);
	s->capturing = on;
	return CUDA_SUCCESS;
}

EXPORT int fakecuda_fault(CUstream stream, int code) {
	IN_STREAM(s, stream);
	struct op *op = op_new(OP_FAULT);
	op->value = code;
	submit(s, op);
	return CUDA_SUCCESS;
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

// The calls of streams and events, and copies.
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "fake.h"

static struct event *events;

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
	look_again();
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

static void record_over(struct op *op) {
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	op->event->time = (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
	if (op->event->shared)
		op->event->shared->reached[op->record % 511] = op->record;
	op->event->recording--;
	forget_event(op->event);
}

EXPORT CUresult cuEventRecord(CUevent event, CUstream stream) {
	IN_STREAM(s, stream);
	if (!event_of(event) || event->ctx != s->ctx)
		return CUDA_ERROR_INVALID_HANDLE;
	struct op *op = op_new(OP_RECORD);
	op->over = record_over;
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

static void run_copy(struct op *op) {
	memmove(op->to, op->from, op->bytes);
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
	op->run = run_copy;
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

static void run_set(struct op *op) {
	memset(op->to, op->value, op->bytes);
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
	op->run = run_set;
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
	look_again();
	return CUDA_SUCCESS;
}

EXPORT int fakecuda_capture(CUstream stream, int on) {
	IN_STREAM(s, stream);
	s->capturing = on;
	return CUDA_SUCCESS;
}

static void fault_over(struct op *op) {
	op->ctx->error = op->value;
}

EXPORT int fakecuda_fault(CUstream stream, int code) {
	IN_STREAM(s, stream);
	struct op *op = op_new(OP_FAULT);
	op->over = fault_over;
	op->ctx = s->ctx;
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

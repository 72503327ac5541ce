#define _GNU_SOURCE
#include "access.h"

#include "../primitives/doorbells.h"
#include "../primitives/words.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

// The number of a window is its place in this table plus a multiple of PLACES, and no number is
// used twice. So the number of a window that was freed is recognised.
enum { PLACES = 1 << 16 };

static pw_window *table[PLACES];
static int64_t number; // that was given last
static int32_t place;  // that was looked at last

// For so many nanoseconds it counts that a member was seen alive. The clock has steps of 1 to 10
// ms.
static const int64_t seen_lasts = 10000000;

static int64_t now(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
	return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

// room_for sees to it that w has memory for its members. No thread uses them.
static int room_for(pw_window *w, int32_t size) {
	if (w->room < size) {
		pw_member *members = calloc((size_t)size, sizeof *members);
		if (members == NULL)
			return 0;
		free(w->members);
		w->members = members;
		w->room = size;
	}
	memset(w->members, 0, (size_t)size * sizeof *w->members);
	return 1;
}

pw_window *pw_new(int32_t size) {
	for (int i = 0; i < PLACES; i++) {
		place = (place + 1) % PLACES;
		pw_window *w = table[place];
		if (w != NULL && w->size != 0)
			continue;
		if (w == NULL) {
			if ((w = calloc(1, sizeof *w)) == NULL)
				return NULL;
			w->place = place;
			__atomic_store_n(&table[place], w, __ATOMIC_RELEASE);
		}
		if (!room_for(w, size))
			return NULL;
		w->size = size;
		return w;
	}
	return NULL;
}

int64_t pw_publish(pw_window *w) {
	int64_t id = __atomic_add_fetch(&number, 1, __ATOMIC_RELAXED) * PLACES + w->place;
	__atomic_store_n(&w->id, id, __ATOMIC_SEQ_CST);
	return id;
}

void pw_close(pw_window *w) {
	__atomic_store_n(&w->id, 0, __ATOMIC_SEQ_CST);
	while (__atomic_load_n(&w->inside, __ATOMIC_SEQ_CST) != 0)
		sched_yield(); // they copy, and wait for nothing
}

void pw_recycle(pw_window *w) {
	w->size = 0;
}

// enter_window returns the window of a number, or NULL. leave_window must follow.
static pw_window *enter_window(int64_t id) {
	pw_window *w = id > 0 ? __atomic_load_n(&table[id % PLACES], __ATOMIC_ACQUIRE) : NULL;
	if (w == NULL)
		return NULL;
	__atomic_fetch_add(&w->inside, 1, __ATOMIC_SEQ_CST);
	if (__atomic_load_n(&w->id, __ATOMIC_SEQ_CST) == id)
		return w;
	__atomic_fetch_sub(&w->inside, 1, __ATOMIC_RELEASE);
	return NULL;
}

static void leave_window(pw_window *w) {
	__atomic_fetch_sub(&w->inside, 1, __ATOMIC_RELEASE);
}

int pw_enter(pw_window *w, int32_t member) {
	pw_control *c = w->members[member].control;
	sw_more32_in_turn(&c->slots[w->rank].users);
	if (sw_read32_in_turn(&c->freed) == 0)
		return 1;
	pw_leave(w, member);
	return 0;
}

void pw_leave(pw_window *w, int32_t member) {
	sw_less32(&w->members[member].control->slots[w->rank].users);
}

void pw_looked(pw_window *w, int32_t member) {
	__atomic_store_n(&w->members[member].looked, now(), __ATOMIC_RELAXED);
}

// alive tells whether the member was seen alive a moment ago. This process itself always is.
static int alive(const pw_window *w, int32_t member) {
	return member == w->rank ||
		   now() - __atomic_load_n(&w->members[member].looked, __ATOMIC_RELAXED) < seen_lasts;
}

// plain tells whether b has n contiguous elements of the window's dtype in host memory.
static int plain(const pw_buf *b, const pw_window *w, int64_t n) {
	return b->dtype == w->dtype && b->count == n && b->strides == NULL && b->device_type != 2 &&
		   b->device_type != 13 && (b->data != NULL || n == 0);
}

// within_target tells whether a tensor has elements in the memory of the member that a call is for.
static int within_target(const pw_window *w, const pw_member *m, const pw_buf *b) {
	const char *from = b->data, *end = m->base + m->count * w->itemsize;
	return from < end && m->base < from + b->count * w->itemsize;
}

// on_elements carries out a call that moves elements. Returns 0, or 1 with nothing done.
static int on_elements(const pw_window *w, const pw_op *op) {
	const pw_member *m = &w->members[op->rank];
	int64_t n = op->code == PW_GET ? op->recv.count : op->send.count;
	if (op->shape != NULL || n < 0 || op->offset < 0 || op->offset > m->count ||
		n > m->count - op->offset)
		return 1;
	int sends = op->code != PW_GET, recvs = op->code == PW_GET || op->code == PW_GET_ACCUMULATE ||
											op->code == PW_COMPARE_AND_SWAP;
	if ((sends && !plain(&op->send, w, n)) || (recvs && !plain(&op->recv, w, n)))
		return 1;
	char *at = m->base + op->offset * w->itemsize;
	size_t bytes = (size_t)(n * w->itemsize);
	switch (op->code) {
	case PW_PUT:
		memmove(at, op->send.data, bytes);
		return 0;
	case PW_GET:
		memmove(op->recv.data, at, bytes);
		return 0;
	case PW_COMPARE_AND_SWAP:
		if (n != 1 || !plain(&op->compare, w, 1) || w->itemsize > 8)
			return 1;
		return !pw_swap(m->control, 0, w->itemsize, at, op->compare.data, op->send.data,
						op->recv.data);
	}
	// A wait for the lock of elements above 8 bytes is not for here.
	if (w->itemsize > 8 || !pw_defined(w->dtype, op->reduce_op))
		return 1;
	// Elements that are combined with each other must be read before one is written.
	if (within_target(w, m, &op->send) || (recvs && within_target(w, m, &op->recv)))
		return 1;
	pw_combine(m->control, 0, w->dtype, op->reduce_op, at, 1, op->send.data,
			   recvs ? op->recv.data : NULL, n);
	return 0;
}

// take_signal takes a signal of a member, if there is one that was not taken. Returns 0, or 1.
static int take_signal(pw_window *w, int32_t member) {
	pw_control *own = w->members[w->rank].control;
	uint64_t *taken = &w->members[member].taken, was = __atomic_load_n(taken, __ATOMIC_RELAXED);
	while (sw_read64(&own->slots[member].signals) > was)
		if (__atomic_compare_exchange_n(taken, &was, was + 1, 0, __ATOMIC_ACQ_REL,
										__ATOMIC_RELAXED))
			return 0;
	return 1;
}

// on_member carries out a call that concerns one member. Returns 0, or 1 with nothing done.
static int on_member(pw_window *w, const pw_op *op) {
	if (op->rank < 0 || op->rank >= w->size)
		return 1;
	if (op->code == PW_WAIT_SIGNAL)
		return take_signal(w, op->rank);
	pw_control *c = w->members[op->rank].control;
	if (c == NULL || !alive(w, op->rank) || !pw_enter(w, op->rank))
		return 1;
	int rc = 1;
	if (op->code <= PW_COMPARE_AND_SWAP) {
		rc = on_elements(w, op);
	} else if (op->code == PW_SIGNAL) {
		sw_more64_in_turn(&c->slots[w->rank].signals);
		pmpi_ring();
		rc = 0;
	} else if (op->code == PW_FLUSH) {
		__atomic_thread_fence(__ATOMIC_SEQ_CST);
		rc = 0;
	}
	pw_leave(w, op->rank);
	return rc;
}

int pw_quick(const pw_op *op) {
	if (op->size != sizeof *op || op->code < PW_PUT || op->code > PW_WAIT_SIGNAL ||
		op->code == PW_FENCE)
		return 1;
	pw_window *w = enter_window(op->window);
	if (w == NULL)
		return 1;
	int rc = on_member(w, op);
	leave_window(w);
	return rc;
}

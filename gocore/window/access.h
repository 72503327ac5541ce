/* Windows in memory that this process maps, and accesses to them without Go.
 *
 * Every member of a window has a control block in its heap, beside the window's memory. The members
 * of its node map both. A member that accesses the memory counts itself in and out (users), and
 * looks in between whether the owner has freed the window. So an owner that has set freed and sees
 * no users knows that nobody touches its memory any more. The last that a member does with the
 * block is to say that it has left it: until then the owner keeps the block. A member of another
 * node never touches the block: the owner does what its messages say.
 *
 * An element is changed by one atomic instruction or a loop of compare-and-swap, by whichever
 * process, so no update is lost. The processor has none for elements above 8 bytes: they are
 * changed under the lock wide.
 *
 * A rank that is damaged may write anything into a control block. No length and no address comes
 * from there. */
#ifndef PMPI_WINDOW_ACCESS_H
#define PMPI_WINDOW_ACCESS_H

#include <stdint.h>

#pragma GCC visibility push(hidden)

/* The operations; pmpi.h has them as PMPI_WINDOW_*, and window.go too. */
enum {
	PW_PUT = 1,
	PW_GET = 2,
	PW_ACCUMULATE = 3,
	PW_GET_ACCUMULATE = 4,
	PW_COMPARE_AND_SWAP = 5,
	PW_FLUSH = 6,
	PW_FENCE = 7,
	PW_SIGNAL = 8,
	PW_WAIT_SIGNAL = 9,
	PW_LOCK = 10,
	PW_LOCK_SHARED = 11,
	PW_UNLOCK = 12,
	PW_FREE = 13
};

/* The ways to combine that no collective has. The others are PMPI_REDUCE_*. */
enum { PW_REPLACE = 101, PW_NO_OP = 102, PW_LAND = 103, PW_LOR = 104, PW_LXOR = 105 };

enum { PW_LINE = 64 };

/* What member i does with a control block. */
typedef struct pw_slot {
	_Alignas(PW_LINE) uint32_t users; /* threads of it that are in the memory */
	uint32_t left;                    /* it does not touch the block any more */
	uint32_t reading;                 /* it holds the lock, shared */
	uint32_t reserved;
	uint64_t signals; /* how often it has signalled */
} pw_slot;

typedef struct pw_control {
	_Alignas(PW_LINE) uint32_t freed;     /* the owner gives the memory back */
	_Alignas(PW_LINE) uint32_t wide;      /* 1 + the member that changes elements above 8 bytes */
	_Alignas(PW_LINE) uint32_t exclusive; /* 1 + the member that holds the lock, or waits for it
										   * while others hold it shared */
	pw_slot slots[];
} pw_control;

/* A member, as this process sees it. */
typedef struct pw_member {
	char *base;          /* its memory; NULL: it is reached by messages */
	int64_t count;       /* elements */
	pw_control *control; /* NULL where base is */
	int64_t looked;      /* when this process last looked whether the member lives */
	uint64_t taken;      /* signals of the member that were waited for */
} pw_member;

/* A window. The struct stays when the window is freed, and is used again for another one. */
typedef struct pw_window {
	int64_t id;         /* its number; 0: it takes no calls */
	int32_t inside;     /* threads that are in pw_quick with it */
	int32_t place;      /* in the table of all windows */
	int32_t rank, size; /* of this process, and of all members; 0 members: the struct is free */
	int32_t dtype, itemsize;
	int32_t room; /* members for which there is memory */
	int32_t reserved;
	pw_member *members;
} pw_window;

/* A tensor, as pmpi_buf. */
typedef struct pw_buf {
	void *data;
	int64_t count;
	int32_t dtype, device_type, device_id, ndim;
	const int64_t *shape, *strides;
} pw_buf;

/* A call, as pmpi_window_op. */
typedef struct pw_op {
	uint32_t size;
	int32_t code;
	int64_t window;
	int32_t rank;
	int32_t reduce_op;
	int64_t offset;
	pw_buf send, recv, compare;
	int32_t ndim;
	int32_t reserved;
	const int64_t *shape, *strides;
	int64_t timeout_ns;
} pw_op;

/* pw_new takes a struct with size members, all zero. Returns NULL if there is no memory, or there
 * are too many windows. pw_publish gives it a number, by which pw_quick finds it, and returns that.
 * pw_close takes the number away, and waits for the threads that are in pw_quick. pw_recycle gives
 * the struct back. One thread at a time calls pw_new and pw_recycle. */
pw_window *pw_new(int32_t size);
int64_t pw_publish(pw_window *w);
void pw_close(pw_window *w);
void pw_recycle(pw_window *w);

/* pw_quick carries out a call on memory that is mapped, without a wait. Returns 0; or 1 with
 * nothing done, because the call is wrong, the member is reached by messages, or it is time to look
 * whether it lives. */
int pw_quick(const pw_op *op);

/* pw_enter counts this process in at a member that is mapped. Returns 0 if the owner has freed the
 * window, else 1: pw_leave must follow. */
int pw_enter(pw_window *w, int32_t member);
void pw_leave(pw_window *w, int32_t member);

/* pw_looked notes that the member lived just now. */
void pw_looked(pw_window *w, int32_t member);

/* pw_combine combines n elements of a target with those at x, one after another. The target's have
 * a distance of step elements. old, unless it is NULL, gets the elements before. x is NULL for
 * PW_NO_OP. For elements above 8 bytes, holder is 1 + the member in whose name the lock is taken.
 * Returns how many were combined: fewer than n if another member holds that lock. A dtype for which
 * reduce is not defined gives -1. */
int64_t pw_combine(pw_control *c, uint32_t holder, int32_t dtype, int32_t reduce, char *at,
				   int64_t step, const char *x, char *old, int64_t n);

/* pw_swap stores value in the element at at if that equals expected. old gets the element before.
 * Returns 1; or 0 with nothing done if another member holds the lock of elements above 8 bytes. */
int pw_swap(pw_control *c, uint32_t holder, int32_t itemsize, char *at, const char *expected,
			const char *value, char *old);

/* pw_defined tells whether reduce is defined for the dtype. */
int pw_defined(int32_t dtype, int32_t reduce);

#pragma GCC visibility pop

#endif

/* The line that is printed when SIGSEGV or SIGBUS comes of the memory of a tensor: the file of a
 * np.memmap of mode "r" under a tensor of torch, which does not know that it is read-only; a file
 * that another program has cut. After it the handlers that were there get the signal: Go's, which
 * dumps its stacks, or Python's faulthandler, or Paddle's.
 *
 * The handler looks for the address in the calls under way. Other threads go on meanwhile, so it
 * may see a call that ends at that moment. It takes no lock, allocates nothing, and prints once. */
#define _GNU_SOURCE
#include "crash.h"

#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include "../gocore/crash/groups.h"

/* In gocore/crash/groups.c. They are weak, because cgo links the files of this folder without those
 * of others to see what they import. */
__attribute__((weak)) const crash_group *crash_group_of(int64_t id);
__attribute__((weak)) const crash_group *crash_group_of_window(int64_t window);

enum { MOST_LOOKS = 100000 }; /* of a list that changes while it is read */

crash_call *crash_at_once;

static pthread_mutex_t joining = PTHREAD_MUTEX_INITIALIZER;
static crash_thread *threads;
static crash_pending *pendings;

void crash_join(crash_thread *t) {
	t->self = pthread_self();
	pthread_mutex_lock(&joining);
	t->next = threads;
	t->link = &threads;
	if (threads)
		threads->link = &t->next;
	__atomic_store_n(&threads, t, __ATOMIC_RELEASE);
	pthread_mutex_unlock(&joining);
}

void crash_leave(crash_thread *t) {
	pthread_mutex_lock(&joining);
	*t->link = t->next;
	if (t->next)
		t->next->link = t->link;
	pthread_mutex_unlock(&joining);
}

/* note describes a tensor. */
static void note(crash_tensor *t, const pmpi_buf *b) {
	const int64_t size = pmpi_dtype_size(b->dtype);
	int64_t low = 0, high = b->count - 1; /* elements before and after the first one */
	if (b->strides && b->shape && b->count > 0) {
		high = 0;
		for (int32_t d = 0; d < b->ndim; d++) {
			const int64_t reach = (b->shape[d] - 1) * b->strides[d];
			*(reach < 0 ? &low : &high) += reach;
		}
	}
	t->low = (const char *)b->data + low * size;
	t->end = b->count > 0 ? (const char *)b->data + (high + 1) * size : t->low;
	t->count = b->count;
	t->dtype = b->dtype;
	t->ndim = b->shape ? b->ndim : 1;
	for (int32_t d = 0; d < t->ndim && t->ndim <= CRASH_DIMS; d++)
		t->shape[d] = b->shape ? b->shape[d] : b->count;
}

void crash_pend(crash_pending *p, const pmpi_op *op) {
	p->group = op->group;
	p->code = op->code;
	p->n_send = op->n_send;
	p->n_recv = op->n_recv;
	for (int32_t i = 0; i < op->n_send; i++)
		note(&p->tensors[i], &op->send[i]);
	for (int32_t i = 0; i < op->n_recv; i++)
		note(&p->tensors[op->n_send + i], &op->recv[i]);
	p->next = pendings;
	p->link = &pendings;
	if (pendings)
		pendings->link = &p->next;
	__atomic_store_n(&pendings, p, __ATOMIC_RELEASE);
}

void crash_over(crash_pending *p) {
	if (p->link == NULL)
		return;
	*p->link = p->next;
	if (p->next)
		p->next->link = p->link;
	p->link = NULL;
}

/* ---- which tensor an address is in ---- */

/* found is a tensor of a call, and what is wrong with it. */
typedef struct found {
	const char *call, *role;
	const crash_group *group;
	int64_t number; /* of the group or table */
	int32_t index;  /* of the tensor on its side; -1: there is no other */
	int written;    /* the call writes to it */
	crash_tensor tensor;
	const char *why;
} found;

static const char *const window_calls[] = {
	[PMPI_WINDOW_PUT] = "Window.put",
	[PMPI_WINDOW_GET] = "Window.get",
	[PMPI_WINDOW_ACCUMULATE] = "Window.accumulate",
	[PMPI_WINDOW_GET_ACCUMULATE] = "Window.get_accumulate",
	[PMPI_WINDOW_COMPARE_AND_SWAP] = "Window.compare_and_swap",
};

static const char *const table_calls[] = {
	[PMPI_TABLE_PULL] = "pull",
	[PMPI_TABLE_PUSH] = "push",
	[PMPI_TABLE_READ] = "read",
	[PMPI_TABLE_WRITE] = "write",
	[PMPI_TABLE_IDS] = "ids",
	[PMPI_KV_PUSH] = "push",
	[PMPI_KV_PULL] = "pull",
	[PMPI_KV_PUSH_PULL] = "push_pull",
	[PMPI_KV_WAIT] = "wait",
	[PMPI_KV_TAKE] = "take",
	[PMPI_KV_REPLY] = "reply",
	[PMPI_TABLE_LOOK] = "look",
	[PMPI_TABLE_LOOK_ZEROS] = "look",
	[PMPI_TABLE_READ_STATES] = "read_states",
	[PMPI_TABLE_WRITE_STATES] = "write_states",
	[PMPI_TABLE_REMOVE] = "remove",
};

#define NAME_OF(list, code)                                                                        \
	((code) > 0 && (size_t)(code) < sizeof(list) / sizeof *(list) && (list)[code] ? (list)[code]   \
																				  : "a call")

static int is_in(const crash_tensor *t, const char *address) {
	return address >= t->low && address < t->end;
}

/* in_buffer tells whether an address is in a buffer, or may be, and then fills f. */
static int in_buffer(const pmpi_buf *b, const char *address, found *f) {
	note(&f->tensor, b);
	return address == NULL || is_in(&f->tensor, address);
}

static int in_op(const pmpi_op *op, const char *address, found *f) {
	f->call = pmpi_op_name(op->code);
	f->number = op->group;
	f->group = crash_group_of(op->group);
	for (int side = 1; side >= 0; side--) { /* first what is written to */
		const pmpi_buf *bufs = side ? op->recv : op->send;
		const int32_t n = side ? op->n_recv : op->n_send;
		for (int32_t i = 0; bufs && i < n; i++) {
			if (in_buffer(&bufs[i], address, f)) {
				f->role = side ? "recv tensor" : "send tensor";
				f->index = i;
				f->written = side;
				return 1;
			}
		}
	}
	return 0;
}

static int in_window(const pmpi_window_op *op, const char *address, found *f) {
	const pmpi_buf *bufs[] = {&op->recv, &op->send, &op->compare};
	static const char *const roles[] = {"recv tensor", "send tensor", "tensor to compare with"};
	f->call = NAME_OF(window_calls, op->code);
	f->number = op->window;
	f->group = crash_group_of_window(op->window);
	f->index = -1;
	for (int i = 0; i < 3; i++) {
		f->role = roles[i];
		f->written = i == 0;
		if (bufs[i]->data && in_buffer(bufs[i], address, f))
			return 1;
	}
	return 0;
}

static int in_tables(const pmpi_table_op *ops, int32_t n, const char *address, found *f) {
	static const char *const roles[] = {"tensor of ids", "tensor of rows", "tensor of states"};
	for (int32_t k = 0; k < n; k++) {
		const pmpi_buf *bufs[] = {&ops[k].ids, &ops[k].values, &ops[k].states};
		f->call = NAME_OF(table_calls, ops[k].code);
		f->number = ops[k].table;
		f->group = NULL;
		f->index = -1;
		for (int i = 0; i < 3; i++) {
			f->role = roles[i];
			f->written = pmpi_table_writes(ops[k].code) >> i & 1;
			if (bufs[i]->data && in_buffer(bufs[i], address, f))
				return 1;
		}
	}
	return 0;
}

static int in_call(const crash_call *c, const char *address, found *f) {
	if (c->kind == CRASH_OP)
		return in_op(c->what, address, f);
	if (c->kind == CRASH_WINDOW)
		return in_window(c->what, address, f);
	return in_tables(c->what, c->n, address, f);
}

static int in_pending(const crash_pending *p, const char *address, found *f) {
	if (p->state && (__atomic_load_n(p->state, __ATOMIC_RELAXED) & PMPI_STATE_OVER))
		return 0;
	for (int32_t i = p->n_send + p->n_recv - 1; i >= 0; i--) {
		if (!is_in(&p->tensors[i], address))
			continue;
		f->tensor = p->tensors[i];
		f->call = pmpi_op_name(p->code);
		f->number = p->group;
		f->group = crash_group_of(p->group);
		f->written = i >= p->n_send;
		f->role = f->written ? "recv tensor" : "send tensor";
		f->index = f->written ? i - p->n_send : i;
		return 1;
	}
	return 0;
}

/* look_here finds the call that this thread is in, and a tensor of it. Returns the kind of the
 * call, or 0. */
static int look_here(found *f) {
	const crash_call *c = crash_at_once;
	int looks = 0;
	for (const crash_thread *t = threads; t && c == NULL && looks++ < MOST_LOOKS; t = t->next)
		if (pthread_equal(t->self, pthread_self()))
			c = t->now;
	return c && in_call(c, NULL, f) ? c->kind : 0;
}

/* look finds the tensor that an address is in. Returns the kind of its call, or 0. */
static int look(const char *address, found *f) {
	int looks = 0;
	if (crash_at_once && in_call(crash_at_once, address, f))
		return crash_at_once->kind;
	for (const crash_thread *t = threads; t && looks++ < MOST_LOOKS; t = t->next)
		for (const crash_call *c = t->now; c && looks++ < MOST_LOOKS; c = c->outer)
			if (in_call(c, address, f))
				return c->kind;
	for (const crash_pending *p = pendings; p && looks++ < MOST_LOOKS; p = p->next)
		if (in_pending(p, address, f))
			return CRASH_OP;
	return 0;
}

/* ---- the line ---- */

typedef struct line {
	size_t n;
	char text[1024];
} line;

static void add(line *l, const char *s) {
	while (*s && l->n < sizeof l->text)
		l->text[l->n++] = *s++;
}

static void add_number(line *l, int64_t v) {
	char digits[24];
	size_t n = sizeof digits;
	uint64_t left = v < 0 ? -(uint64_t)v : (uint64_t)v;
	digits[--n] = 0;
	do
		digits[--n] = (char)('0' + left % 10);
	while (left /= 10);
	if (v < 0)
		digits[--n] = '-';
	add(l, digits + n);
}

static void add_tensor(line *l, const crash_tensor *t) {
	add(l, pmpi_dtype_name(t->dtype));
	add(l, "[");
	if (t->ndim > CRASH_DIMS) {
		add_number(l, t->count);
		add(l, " elements");
	}
	for (int32_t d = 0; d < t->ndim && t->ndim <= CRASH_DIMS; d++) {
		add(l, d ? ", " : "");
		add_number(l, t->shape[d]);
	}
	add(l, "]");
}

/* why says what is wrong with the memory. */
static const char *why(int number, int code, const found *f) {
	if (number == SIGBUS)
		return "the file behind its memory is too short for it, or has no room left";
	if (code == SEGV_MAPERR)
		return "its memory is not mapped: it was given back too early, or the address is wrong";
	if (f->written)
		return "its memory cannot be written to, as that of a file that is open for reading "
			   "(np.memmap of mode \"r\"; torch.from_numpy loses that it is read-only)";
	return "its memory cannot be read";
}

/* tell prints the line, if it finds the call. A handler that got the signal first, as faulthandler
 * when it was enabled after crash_watch, sends it to its own thread again, without the address. */
static void tell(int number, const siginfo_t *info) {
	found f;
	line l;
	memset(&f, 0, sizeof f);
	l.n = 0;
	int kind = 0;
	if (info->si_code > 0) {
		kind = look(info->si_addr, &f);
		f.why = why(number, info->si_code, &f);
	} else if (info->si_code == SI_TKILL && info->si_pid == getpid()) {
		kind = look_here(&f);
		f.why = "another handler got the signal first and keeps of which memory it came; "
				"probably this tensor's cannot be written to, or another's of the call";
	}
	static int told;
	if (kind == 0 || __atomic_exchange_n(&told, 1, __ATOMIC_SEQ_CST))
		return;
	add(&l, "paddlempi: ");
	if (f.group) {
		add(&l, "rank ");
		add_number(&l, f.group->rank);
		add(&l, ": ");
	}
	add(&l, number == SIGBUS ? "SIGBUS in " : "SIGSEGV in ");
	add(&l, f.call);
	add(&l, kind == CRASH_TABLE ? " of " : " on the ");
	if (f.group) {
		add(&l, f.group->text);
	} else {
		add(&l, kind == CRASH_TABLE ? "table " : kind == CRASH_WINDOW ? "window " : "group ");
		add_number(&l, f.number);
	}
	add(&l, ": ");
	add(&l, f.role);
	if (f.index >= 0) {
		add(&l, " ");
		add_number(&l, f.index);
	}
	add(&l, " (");
	add_tensor(&l, &f.tensor);
	add(&l, "): ");
	add(&l, f.why);
	add(&l, "; see \"A crash\" in docs/errors.md\n");
	for (size_t done = 0; done < l.n;) {
		const ssize_t wrote = write(STDERR_FILENO, l.text + done, l.n - done);
		if (wrote <= 0)
			break;
		done += (size_t)wrote;
	}
}

/* ---- the signals ---- */

static const int watched[] = {SIGSEGV, SIGBUS};
enum { WATCHED = sizeof watched / sizeof *watched };
static struct sigaction before[WATCHED];
static pid_t owner; /* not a child, which has its own calls, but our lists */

static void on_signal(int number, siginfo_t *info, void *context) {
	const struct sigaction *then = &before[number == watched[1]];
	if (getpid() == owner)
		tell(number, info);
	if (then->sa_flags & SA_SIGINFO) {
		then->sa_sigaction(number, info, context);
	} else if (then->sa_handler != SIG_DFL && then->sa_handler != SIG_IGN) {
		then->sa_handler(number);
	} else {
		sigaction(number, then, NULL); /* it comes again, at the same instruction */
		if (info->si_code <= 0)
			raise(number);
	}
}

void crash_watch(void) {
	static int begun;
	if (__atomic_exchange_n(&begun, 1, __ATOMIC_SEQ_CST))
		return;
	owner = getpid();
	for (int i = 0; i < WATCHED; i++) {
		struct sigaction ours;
		if (sigaction(watched[i], NULL, &before[i]))
			continue;
		ours = before[i];
		ours.sa_flags = (ours.sa_flags | SA_SIGINFO | SA_ONSTACK) & ~SA_RESETHAND;
		ours.sa_sigaction = on_signal;
		sigaction(watched[i], &ours, NULL);
	}
}

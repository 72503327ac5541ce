/* The functions of pmpi.h. Each one tests the fork flag before it calls Go: in the child of a fork
 * Go's runtime has lost its other threads, and a call may never return. */
#define _GNU_SOURCE
#include "guard.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "_cgo_export.h"
#include "crash.h"
#include "quick.h"

static int forked;
/* The state of one thread. It is on the heap and freed by a pthread key, because Go makes all
 * thread-local memory of this object static, and a late dlopen gets very little of that. */
typedef struct thread_state {
	pmpi_error error; /* of the latest call that failed */
	int interrupting; /* depth of interrupt checks that this thread is in */
	crash_thread crash;
} thread_state;

static __thread thread_state *this_thread;
static pthread_key_t state_key;
static int (*interrupt)(void);

static void in_child(void) {
	forked = 1;
}

static void thread_ends(void *state) {
	crash_leave(&((thread_state *)state)->crash);
	free(state);
}

__attribute__((constructor)) static void prepare(void) {
	pthread_atfork(NULL, NULL, in_child);
	pthread_key_create(&state_key, thread_ends);
}

static thread_state *current(void) {
	static thread_state no_memory; /* shared by threads for which there is no memory */
	if (__builtin_expect(this_thread == NULL, 0)) {
		this_thread = calloc(1, sizeof *this_thread);
		if (this_thread == NULL)
			return &no_memory;
		crash_join(&this_thread->crash);
		pthread_setspecific(state_key, this_thread);
	}
	return this_thread;
}

static pmpi_error *last_error(void) {
	return &current()->error;
}

int pmpi_guard_forked(void) {
	return forked;
}

static int fork_error(void) {
	pmpi_error *e = last_error();
	e->code = PMPI_ERR_FORKED;
	e->mpi_class = 0;
	e->n_ranks = 0;
	strcpy(e->message,
		   "this process is a fork of the one that loaded paddlempi's core, which cannot run here; "
		   "use it in the parent only, or start processes with the \"spawn\" method");
	return PMPI_ERR_FORKED;
}

#define GUARD()                                                                                    \
	if (__builtin_expect(forked, 0))                                                               \
	return fork_error()

int pmpi_control(const char *method, const char *request, char **reply) {
	GUARD();
	int rc = goControl((char *)method, (char *)request, reply, last_error());
	if (strcmp(method, "init") == 0) {
		pmpi_guard_exit(rc == 0); /* also after an error, because MPI may have been initialised */
		crash_watch(); /* in front of the handlers of MPI, and of what the program imports */
	}
	return rc;
}

void pmpi_free(char *reply) {
	free(reply);
}

int pmpi_submit(const pmpi_op *op, pmpi_work *work, pmpi_result *result) {
	GUARD();
	thread_state *t = current();
	crash_call call = {.what = op, .kind = CRASH_OP};
	crash_begin(&t->crash, &call);
	int rc = 0;
	const int pauses = op->flags & PMPI_FLAG_ASYNC ? 0 : QUICK_PAUSES;
	if (quick_is_for(op) && quick_message(op, result, QUICK_MOST, pauses) == 0) {
		if (work)
			*work = 0;
	} else {
		rc = goSubmit((pmpi_op *)op, work, result, t->interrupting, &t->error);
	}
	crash_end(&t->crash, &call);
	return rc;
}

int pmpi_prepare(pmpi_op *op) {
	GUARD();
	return goPrepare(op, last_error());
}

void pmpi_unprepare(uint64_t prepared) {
	if (!forked)
		goUnprepare(prepared);
}

int pmpi_refuse(int64_t group, int32_t code) {
	GUARD();
	return goRefuse(group, code, last_error());
}

int pmpi_test(pmpi_work work) {
	if (forked)
		return -fork_error();
	return goTest(work, last_error());
}

int pmpi_wait(pmpi_work work, int64_t limit_ns, pmpi_result *result) {
	GUARD();
	return goWait(work, limit_ns, result, 0, last_error());
}

int pmpi_finish(pmpi_work work, int64_t limit_ns, pmpi_result *result) {
	GUARD();
	return goWait(work, limit_ns, result, 1, last_error());
}

int pmpi_order(pmpi_work work, uint64_t stream) {
	GUARD();
	return goOrder(work, stream, last_error());
}

int pmpi_table(const pmpi_table_op *ops, int32_t n, int64_t *count) {
	GUARD();
	crash_watch(); /* tables need no init */
	thread_state *t = current();
	crash_call call = {.what = ops, .kind = CRASH_TABLE, .n = n};
	crash_begin(&t->crash, &call);
	int rc = goTable((pmpi_table_op *)ops, n, count, &t->error);
	crash_end(&t->crash, &call);
	return rc;
}

/* In gocore/window/access.c. It is weak, because cgo links the files of this folder without those
 * of others to see what they import. */
struct pw_op;
__attribute__((weak, visibility("hidden"))) int pw_quick(const struct pw_op *op);

int pmpi_guard_window(const pmpi_window_op *op) {
	return forked ? 1 : pw_quick((const struct pw_op *)op);
}

int pmpi_window_new(const pmpi_buf *memory, int64_t group, int64_t timeout_ns, int64_t *window) {
	GUARD();
	thread_state *t = current();
	return goWindowNew((pmpi_buf *)memory, group, timeout_ns, t->interrupting, window, &t->error);
}

int pmpi_window(const pmpi_window_op *op) {
	GUARD();
	thread_state *t = current();
	crash_call call = {.what = op, .kind = CRASH_WINDOW};
	crash_begin(&t->crash, &call);
	int rc = pw_quick((const struct pw_op *)op);
	if (rc)
		rc = goWindow((pmpi_window_op *)op, t->interrupting, &t->error);
	crash_end(&t->crash, &call);
	return rc;
}

void *pmpi_heap_alloc(int64_t bytes) {
	if (__builtin_expect(forked, 0)) {
		fork_error();
		return NULL;
	}
	return goHeapAlloc(bytes, last_error());
}

int pmpi_heap_free(void *memory) {
	return forked ? 0 : goHeapFree(memory, last_error());
}

int pmpi_release(pmpi_work work) {
	/* In a child it is not known when MPI, in the parent, is done with the memory. */
	return forked ? 1 : goRelease(work);
}

int pmpi_memory_is_free(pmpi_work work) {
	return forked ? 0 : goMemoryFree(work);
}

pmpi_work pmpi_next_released(void) {
	return forked ? 0 : goNextReleased();
}

int pmpi_next_completions(pmpi_completion *out, int room, int64_t limit_ns) {
	if (forked) {
		fork_error();
		return 0;
	}
	return goNextCompletions(out, room, limit_ns);
}

void pmpi_hurry(pmpi_work work) {
	if (!forked)
		goHurry(work);
}

int pmpi_take_completion(pmpi_work work) {
	return forked ? 0 : goTakeCompletion(work);
}

int pmpi_completion_fd(void) {
	if (forked) {
		fork_error();
		return -1;
	}
	return goCompletionFD();
}

const pmpi_error *pmpi_last_error(void) {
	return last_error();
}

void pmpi_set_interrupt(int (*check)(void)) {
	interrupt = check;
}

/* Called by Go during a wait. Returns what the caller's check returned. Calls that the check makes
 * are nested in that wait, and interrupting says so. */
int pmpi_guard_interrupt(void) {
	if (interrupt == NULL)
		return 0;
	thread_state *t = current();
	t->interrupting++;
	int stop = interrupt();
	t->interrupting--;
	return stop;
}

/* Go handles signals on the alternate stack that a thread had when it first entered Go. Python's
 * faulthandler, which pytest enables, removes its alternate stack when Python ends, and the next
 * signal of Go's scheduler would then be fatal. This function sets another one; functions that run
 * at exit call it. */
static void signal_stack(void) {
	static char room[64 << 10];
	stack_t now;
	if (sigaltstack(NULL, &now) == 0 && (now.ss_flags & SS_DISABLE)) {
		stack_t replacement = {.ss_sp = room, .ss_size = sizeof room};
		sigaltstack(&replacement, NULL);
	}
}

/* Called by the MPI library inside MPI_Finalize. */
void pmpi_guard_finalize(void) {
	if (forked)
		return;
	signal_stack();
	goBeforeFinalize();
}

/* The process whose exit matters. The exit handler compares process ids too, because a child made
 * by vfork or clone runs exit handlers, but no atfork handler. */
static pid_t owner;

void pmpi_exit(int status) {
	if (forked || (owner != 0 && owner != getpid()))
		return;
	signal_stack();
	goExit(status);
}

static void at_exit(int status, void *unused) {
	static int ran;
	(void)unused;
	if (!ran++)
		pmpi_exit(status);
}

/* MPI may register handlers of its own, which end what MPI_Finalize has not: MPICH tells its
 * launcher only there that this process ends in order. So ours has to run before them, and is
 * registered after MPI_Init. An init that fails may have come that far or not, so that each one
 * registers it until one succeeds. */
void pmpi_guard_exit(int succeeded) {
	static int registered;
	if (registered)
		return;
	owner = getpid();
	registered = succeeded;
	on_exit(at_exit, NULL); /* unlike those of atexit, handlers of on_exit receive the status */
}

static pmpi_op describe(int32_t code, int64_t group) {
	pmpi_op op;
	memset(&op, 0, sizeof op);
	op.size = sizeof op;
	op.code = code;
	op.group = group;
	op.root = -1;
	op.timeout_ns = -1;
	return op;
}

static pmpi_buf flat(const void *data, int64_t count, int32_t dtype) {
	pmpi_buf b;
	memset(&b, 0, sizeof b);
	b.data = (void *)data;
	b.count = count;
	b.dtype = dtype;
	b.device_type = 1;
	return b;
}

int pmpi_send(const void *data, int64_t count, int32_t dtype, int32_t peer, int32_t tag,
			  int64_t group) {
	pmpi_buf b = flat(data, count, dtype);
	pmpi_op op = describe(PMPI_OP_SEND, group);
	op.peer = peer;
	op.tag = tag;
	op.n_send = 1;
	op.send = &b;
	return pmpi_submit(&op, NULL, NULL);
}

int pmpi_recv(void *data, int64_t count, int32_t dtype, int32_t peer, int32_t tag, int64_t group,
			  pmpi_result *result) {
	pmpi_buf b = flat(data, count, dtype);
	pmpi_op op = describe(PMPI_OP_RECV, group);
	op.peer = peer;
	op.tag = tag;
	op.n_recv = 1;
	op.recv = &b;
	return pmpi_submit(&op, NULL, result);
}

int pmpi_allreduce(const void *send, void *recv, int64_t count, int32_t dtype, int32_t reduce_op,
				   int64_t group) {
	pmpi_buf s = flat(send, count, dtype), r = flat(recv, count, dtype);
	pmpi_op op = describe(PMPI_OP_ALL_REDUCE, group);
	op.reduce_op = reduce_op;
	op.n_send = send != NULL && send != recv;
	op.send = &s;
	op.n_recv = 1;
	op.recv = &r;
	return pmpi_submit(&op, NULL, NULL);
}

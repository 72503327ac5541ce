/* The functions of MPI that jaxlib calls, over the core's groups. Counts are ints, as in MPI: XLA
 * casts its own without a check, so a negative one is an array that is too long. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "trampoline.h"

/* Error classes, in the numbering of the MPI-5 ABI, and a level. */
enum { ERR_COUNT = 2, ERR_COMM = 5, ERR_REQUEST = 7, ERR_OTHER = 16, ERR_NO_MEM = 39 };
enum { THREAD_MULTIPLE = 3 };

static comm world;
static int finalized;

int paddlempi_trampoline_start(const pmpi_functions *core, int rank, int size,
							   double split_seconds) {
	this_job.rank = rank;
	this_job.size = size;
	this_job.split_seconds = split_seconds;
	this_job.core = core;
	world = (comm){.rank = rank, .size = size};
	int rc = split_start();
	if (rc)
		this_job.core = NULL;
	return rc;
}

void paddlempi_trampoline_devices(int (*count)(void)) {
	this_job.local_devices = count;
}

comm *comm_of(intptr_t handle) {
	if (handle == 0 || this_job.core == NULL)
		return NULL;
	return handle == WORLD ? &world : (comm *)handle;
}

/* usable returns 0 if calls on c can succeed, else an error code. */
static int usable(const char *function, const comm *c) {
	if (__builtin_expect(c != NULL && c->why == NULL, 1))
		return 0;
	if (this_job.core == NULL)
		return own_error(function, ERR_OTHER,
						 "the library has no core; paddlempi.jax.initialize() gives it one");
	if (c == NULL)
		return own_error(function, ERR_COMM, "MPI_COMM_NULL is no communicator");
	return own_error(function, ERR_COMM, "%s", c->why);
}

static int too_long(const char *function, int count) {
	return own_error(function, ERR_COUNT,
					 "the count is %d: XLA has passed more than 2^31 - 1 elements or bytes, which "
					 "it cannot do with MPI; use smaller arrays, or paddlempi.jax's functions",
					 count);
}

static pmpi_op operation(int code, const comm *c) {
	return (pmpi_op){.size = sizeof(pmpi_op), .code = code, .group = c->group, .timeout_ns = -1};
}

static pmpi_buf buffer(const void *data, int64_t count, intptr_t type) {
	return (pmpi_buf){.data = (void *)data, .count = count, .dtype = (int32_t)type};
}

/* bytes_of returns the bytes of count elements. Other types have names, but XLA does not use them.
 */
static int64_t bytes_of(intptr_t type, int64_t count) {
	switch (type) {
	case PMPI_DTYPE_INT16:
	case PMPI_DTYPE_UINT16:
		return 2 * count;
	case PMPI_DTYPE_INT32:
	case PMPI_DTYPE_UINT32:
	case PMPI_DTYPE_FLOAT32:
		return 4 * count;
	case PMPI_DTYPE_INT64:
	case PMPI_DTYPE_UINT64:
	case PMPI_DTYPE_FLOAT64:
	case PMPI_DTYPE_COMPLEX64:
		return 8 * count;
	case PMPI_DTYPE_COMPLEX128:
		return 16 * count;
	default:
		return count;
	}
}

static int no_memory(const char *function, int64_t bytes) {
	return own_error(function, ERR_NO_MEM, "no memory for %lld bytes", (long long)bytes);
}

/* wait_for_memory waits until MPI has finished with the memory of a call that failed on one node,
 * because XLA gives it to others afterwards. If a message cannot be taken back in that time,
 * because its receiver lives and does not come, the job ends. */
static void wait_for_memory(pmpi_work work, int code) {
	enum { PATIENCE_MS = 10000 };
	for (int ms = 0; ms < PATIENCE_MS && !this_job.core->memory_is_free(work); ms++)
		nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
	if (this_job.core->release(work) == 0)
		return;
	char text[1024];
	error_text(code, text, sizeof text);
	fprintf(stderr,
			"paddlempi: the memory of a call that failed is still in use, and XLA cannot keep it; "
			"the job ends. The error of the call: %s\n",
			text);
	this_job.core->control("abort", "{\"status\": 1}", NULL);
}

/* run carries op out on c, with one buffer to send and one to receive; a count below 0 stands for
 * no buffer. Between nodes the core gets copies (copy.c). */
static int run(const char *function, const comm *c, pmpi_op *op, pmpi_buf send, pmpi_buf recv) {
	void *result = recv.data;
	copy in = {0}, out = {0};
	op->send = &send;
	op->recv = &recv;
	op->n_send = send.count >= 0;
	op->n_recv = recv.count >= 0;
	if (!c->one_node) {
		in = copy_new(op->n_send ? bytes_of(send.dtype, send.count) : 0, send.data);
		out = copy_new(op->n_recv ? bytes_of(recv.dtype, recv.count) : 0, NULL);
		if (in.data == NULL || out.data == NULL) {
			copy_free(in);
			copy_free(out);
			return no_memory(function, bytes_of(send.dtype, send.count));
		}
		send.data = in.data;
		recv.data = out.data;
	}
	pmpi_work work = 0;
	int code = this_job.core->submit(op, &work, NULL) ? core_error(function) : 0;
	if (__builtin_expect(work != 0, 0)) {
		if (c->one_node)
			wait_for_memory(work, code);
		else if (this_job.core->release(work) != 0)
			return code; /* the copies are left behind */
	}
	if (!c->one_node) {
		if (code == 0 && op->n_recv)
			memcpy(result, out.data, bytes_of(recv.dtype, recv.count));
		copy_free(in);
		copy_free(out);
	}
	return code;
}

/* ---- the environment ---- */

EXPORT int MPIABI_Init_thread(int *argc, char ***argv, int required, int *provided);
int MPIABI_Init_thread(int *argc, char ***argv, int required, int *provided) {
	(void)argc, (void)argv, (void)required;
	*provided = THREAD_MULTIPLE; /* what the core asks of every MPI */
	return usable("MPI_Init_thread", &world);
}

EXPORT int MPIABI_Query_thread(int *provided);
int MPIABI_Query_thread(int *provided) {
	*provided = THREAD_MULTIPLE;
	return 0;
}

/* XLA refuses to make communicators on other threads than the main one. The core takes calls from
 * all threads. */
EXPORT int MPIABI_Is_thread_main(int *flag);
int MPIABI_Is_thread_main(int *flag) {
	*flag = 1;
	return 0;
}

EXPORT int MPIABI_Initialized(int *flag);
int MPIABI_Initialized(int *flag) {
	*flag = this_job.core != NULL;
	return 0;
}

/* The core's own exit ends MPI, after everybody has left. */
EXPORT int MPIABI_Finalize(void);
int MPIABI_Finalize(void) {
	finalized = 1;
	return 0;
}

EXPORT int MPIABI_Finalized(int *flag);
int MPIABI_Finalized(int *flag) {
	*flag = finalized;
	return 0;
}

EXPORT int MPIABI_Get_version(int *version, int *subversion);
int MPIABI_Get_version(int *version, int *subversion) {
	*version = 3;
	*subversion = 1;
	return 0;
}

EXPORT int MPIABI_Get_library_version(char *text, int *length);
int MPIABI_Get_library_version(char *text, int *length) {
	*length = sprintf(text, "paddlempi's library for XLA's collectives");
	return 0;
}

EXPORT int MPIABI_Error_string(int code, char *text, int *length);
int MPIABI_Error_string(int code, char *text, int *length) {
	error_text(code, text, 1024);
	*length = (int)strlen(text);
	return 0;
}

EXPORT int MPIABI_Error_class(int code, int *class);
int MPIABI_Error_class(int code, int *class) {
	char text[1024];
	*class = error_text(code, text, sizeof text);
	return 0;
}

/* ---- communicators ---- */

EXPORT int MPIABI_Comm_rank(intptr_t handle, int *rank);
int MPIABI_Comm_rank(intptr_t handle, int *rank) {
	comm *c = comm_of(handle);
	*rank = c ? c->rank : 0; /* XLA takes it as it is, also after an error */
	return usable("MPI_Comm_rank", c);
}

EXPORT int MPIABI_Comm_size(intptr_t handle, int *size);
int MPIABI_Comm_size(intptr_t handle, int *size) {
	comm *c = comm_of(handle);
	*size = c ? c->size : 1;
	return usable("MPI_Comm_size", c);
}

EXPORT int MPIABI_Comm_split(intptr_t handle, int colour, int key, intptr_t *made);
int MPIABI_Comm_split(intptr_t handle, int colour, int key, intptr_t *made) {
	static const char name[] = "MPI_Comm_split";
	*made = 0;
	int code = usable(name, comm_of(handle));
	if (code)
		return code;
	if (handle != WORLD)
		return own_error(name, ERR_COMM, "only MPI_COMM_WORLD can be split");
	comm *c = split(colour, key);
	*made = (intptr_t)c;
	return c ? usable(name, c) : 0;
}

/* Called when XLA forgets its communicators; with those that are left this is at the very end, when
 * the core may be gone. Only what is called before MPI_Finalize frees the group. */
EXPORT int MPIABI_Comm_free(intptr_t *handle);
int MPIABI_Comm_free(intptr_t *handle) {
	comm *c = comm_of(*handle);
	if (c != NULL && c != &world && c->why == NULL) {
		c->why = "the communicator was freed";
		if (!finalized) {
			char request[64];
			snprintf(request, sizeof request, "{\"group\": %lld}", (long long)c->group);
			this_job.core->control("destroy_group", request, NULL);
		}
	}
	*handle = 0;
	return 0;
}

/* ---- collectives ---- */

EXPORT int MPIABI_Allreduce(const void *send, void *recv, int count, intptr_t type, intptr_t op,
							intptr_t handle);
int MPIABI_Allreduce(const void *send, void *recv, int count, intptr_t type, intptr_t op,
					 intptr_t handle) {
	static const char name[] = "MPI_Allreduce";
	comm *c = comm_of(handle);
	int code = usable(name, c);
	if (code)
		return code;
	if (count < 0)
		return too_long(name, count);
	pmpi_op o = operation(PMPI_OP_ALL_REDUCE, c);
	pmpi_buf from = buffer(send, count, type), to = buffer(recv, count, type);
	o.reduce_op = (int32_t)op;
	return run(name, c, &o, from, to);
}

EXPORT int MPIABI_Allgather(const void *send, int n_send, intptr_t send_type, void *recv,
							int n_recv, intptr_t recv_type, intptr_t handle);
int MPIABI_Allgather(const void *send, int n_send, intptr_t send_type, void *recv, int n_recv,
					 intptr_t recv_type, intptr_t handle) {
	static const char name[] = "MPI_Allgather";
	comm *c = comm_of(handle);
	int code = usable(name, c);
	if (code)
		return code;
	if (n_send < 0 || n_recv < 0)
		return too_long(name, n_send < 0 ? n_send : n_recv);
	pmpi_op o = operation(PMPI_OP_ALL_GATHER, c);
	pmpi_buf from = buffer(send, n_send, send_type);
	pmpi_buf to = buffer(recv, (int64_t)n_recv * c->size, recv_type);
	return run(name, c, &o, from, to);
}

EXPORT int MPIABI_Reduce_scatter(const void *send, void *recv, const int *counts, intptr_t type,
								 intptr_t op, intptr_t handle);
int MPIABI_Reduce_scatter(const void *send, void *recv, const int *counts, intptr_t type,
						  intptr_t op, intptr_t handle) {
	static const char name[] = "MPI_Reduce_scatter";
	comm *c = comm_of(handle);
	int code = usable(name, c);
	if (code)
		return code;
	for (int i = 0; i < c->size; i++) {
		if (counts[i] < 0)
			return too_long(name, counts[i]);
		if (counts[i] != counts[0]) /* XLA's parts are equal */
			return own_error(name, ERR_COUNT, "part 0 has %d elements and part %d has %d",
							 counts[0], i, counts[i]);
	}
	pmpi_op o = operation(PMPI_OP_REDUCE_SCATTER, c);
	pmpi_buf from = buffer(send, (int64_t)counts[0] * c->size, type);
	pmpi_buf to = buffer(recv, counts[0], type);
	o.reduce_op = (int32_t)op;
	return run(name, c, &o, from, to);
}

/* ---- messages: all_to_all is a chain of Sendrecv, collective_permute Irecv, Isend and Wait ----
 */

EXPORT int MPIABI_Sendrecv(const void *send, int n_send, intptr_t send_type, int to, int send_tag,
						   void *recv, int n_recv, intptr_t recv_type, int from, int recv_tag,
						   intptr_t handle, void *status);
int MPIABI_Sendrecv(const void *send, int n_send, intptr_t send_type, int to, int send_tag,
					void *recv, int n_recv, intptr_t recv_type, int from, int recv_tag,
					intptr_t handle, void *status) {
	static const char name[] = "MPI_Sendrecv";
	(void)status; /* always MPI_STATUS_IGNORE */
	comm *c = comm_of(handle);
	int code = usable(name, c);
	if (code)
		return code;
	if (n_send < 0 || n_recv < 0)
		return too_long(name, n_send < 0 ? n_send : n_recv);
	pmpi_op o = operation(PMPI_OP_SENDRECV, c);
	pmpi_buf out = buffer(send, n_send, send_type), in = buffer(recv, n_recv, recv_type);
	o.peer = to;
	o.tag = send_tag;
	o.peer2 = from;
	o.tag2 = recv_tag;
	return run(name, c, &o, out, in);
}

/* A message that was asked for. XLA asks for a receive, a send or both, and then waits for each. It
 * does not wait for the other one if one fails, so nothing may be under way between the calls: the
 * first Wait carries out both. */
typedef struct request {
	const char *function;
	comm *on;
	pmpi_buf buf;
	int peer, tag;
	int over, code; /* set by the Wait of either */
} request;

enum { SEND, RECV };

/* What this thread has asked for and not waited for. One of each: XLA has no more, and the next one
 * takes the place of what XLA has left behind after an error, which nobody can free. */
static __thread request *asked[2];

static int ask(const char *function, int kind, void *data, int n, intptr_t type, int peer, int tag,
			   intptr_t handle, intptr_t *out) {
	comm *c = comm_of(handle);
	*out = 0;
	int error = usable(function, c);
	if (error == 0 && n < 0)
		error = too_long(function, n);
	request *r = error ? NULL : malloc(sizeof *r);
	if (r == NULL) {
		asked[SEND] = asked[RECV] = NULL;
		return error ? error : no_memory(function, sizeof *r);
	}
	*r = (request){function, c, buffer(data, n, type), peer, tag, 0, 0};
	asked[kind] = r;
	*out = (intptr_t)r;
	return 0;
}

/* carry_out makes one call of what this thread has asked for on the communicator of r. */
static void carry_out(request *r) {
	static const pmpi_buf none = {.count = -1};
	request *send = asked[SEND] && asked[SEND]->on == r->on ? asked[SEND] : NULL;
	request *recv = asked[RECV] && asked[RECV]->on == r->on ? asked[RECV] : NULL;
	pmpi_op o = operation(!send ? PMPI_OP_RECV : !recv ? PMPI_OP_SEND : PMPI_OP_SENDRECV, r->on);
	o.peer = send ? send->peer : recv->peer;
	o.tag = send ? send->tag : recv->tag;
	if (send && recv) {
		o.peer2 = recv->peer;
		o.tag2 = recv->tag;
	}
	int code = run(r->function, r->on, &o, send ? send->buf : none, recv ? recv->buf : none);
	if (send) {
		send->over = 1;
		send->code = code;
	}
	if (recv) {
		recv->over = 1;
		recv->code = code;
	}
	asked[SEND] = asked[RECV] = NULL;
}

EXPORT int MPIABI_Isend(const void *data, int n, intptr_t type, int to, int tag, intptr_t handle,
						intptr_t *out);
int MPIABI_Isend(const void *data, int n, intptr_t type, int to, int tag, intptr_t handle,
				 intptr_t *out) {
	return ask("MPI_Isend", SEND, (void *)data, n, type, to, tag, handle, out);
}

EXPORT int MPIABI_Irecv(void *data, int n, intptr_t type, int from, int tag, intptr_t handle,
						intptr_t *out);
int MPIABI_Irecv(void *data, int n, intptr_t type, int from, int tag, intptr_t handle,
				 intptr_t *out) {
	return ask("MPI_Irecv", RECV, data, n, type, from, tag, handle, out);
}

EXPORT int MPIABI_Wait(intptr_t *handle, void *status);
int MPIABI_Wait(intptr_t *handle, void *status) {
	(void)status; /* always MPI_STATUS_IGNORE */
	request *r = (request *)*handle;
	*handle = 0;
	if (r == NULL)
		return 0; /* as MPI: the request was over */
	if (!r->over && r != asked[SEND] && r != asked[RECV])
		return own_error("MPI_Wait", ERR_REQUEST,
						 "there is no such message: this thread has asked for another one since");
	if (!r->over)
		carry_out(r);
	int code = r->code;
	free(r);
	return code;
}

/* The functions of MPI that jaxlib calls, over the core's groups. Counts are ints, as in MPI: XLA
 * casts its own without a check, so a negative one is an array that is too long. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <stdio.h>
#include <string.h>

#include "trampoline.h"

enum { ERR_COUNT = 2, ERR_COMM = 5, ERR_REQUEST = 7, ERR_OTHER = 16, THREAD_MULTIPLE = 3 };

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
	return own_error(function, 39, "no memory for a copy of %lld bytes", (long long)bytes);
}

/* run carries op out with one buffer of each kind. copies says whether the core gets copies of them
 * (copy.c). */
static int run(const char *function, pmpi_op *op, pmpi_buf send, pmpi_buf recv, int copies) {
	int64_t in_bytes = bytes_of(send.dtype, send.count);
	int64_t out_bytes = bytes_of(recv.dtype, recv.count);
	void *result = recv.data;
	copy in, out;
	if (copies) {
		in = copy_new(in_bytes, send.data);
		out = copy_new(out_bytes, NULL);
		if (in.data == NULL || out.data == NULL) {
			copy_free(in);
			copy_free(out);
			return no_memory(function, in_bytes + out_bytes);
		}
		send.data = in.data;
		recv.data = out.data;
	}
	op->send = &send;
	op->recv = &recv;
	op->n_send = op->n_recv = 1;
	pmpi_work work = 0;
	int rc = this_job.core->submit(op, &work, NULL);
	int code = rc ? core_error(function) : 0;
	if (__builtin_expect(work != 0, 0) && this_job.core->release(work) != 0)
		return code; /* the copies are left behind */
	if (copies) {
		if (rc == 0)
			memcpy(result, out.data, out_bytes);
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
	return run(name, &o, from, to, !c->one_node);
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
	return run(name, &o, from, to, !c->one_node);
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
	return run(name, &o, from, to, !c->one_node);
}

/* ---- messages: all_to_all is a chain of Sendrecv, collective_permute Irecv, Isend and Wait ----
 *
 * XLA does not wait for the other requests of a permutation when one has failed, and a message that
 * was given up cannot be taken back. So these calls always get copies. */

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
	return run(name, &o, out, in, 1);
}

/* A message under way. */
typedef struct request {
	pmpi_work work; /* 0: over */
	copy memory;
	int64_t bytes;
	void *result; /* where a received message belongs; NULL for a send */
} request;

static int start(const char *function, int code, void *data, int n, intptr_t type, int peer,
				 int tag, intptr_t handle, intptr_t *out) {
	comm *c = comm_of(handle);
	*out = 0;
	int error = usable(function, c);
	if (error)
		return error;
	if (n < 0)
		return too_long(function, n);
	int64_t bytes = bytes_of(type, n);
	int receives = code == PMPI_OP_RECV;
	request *r = calloc(1, sizeof *r);
	if (r != NULL)
		r->memory = copy_new(bytes, receives ? NULL : data);
	if (r == NULL || r->memory.data == NULL) {
		free(r);
		return no_memory(function, bytes);
	}
	r->bytes = bytes;
	r->result = receives ? data : NULL;
	pmpi_op o = operation(code, c);
	pmpi_buf b = buffer(r->memory.data, n, type);
	o.flags = PMPI_FLAG_ASYNC;
	o.peer = peer;
	o.tag = tag;
	if (receives) {
		o.recv = &b;
		o.n_recv = 1;
	} else {
		o.send = &b;
		o.n_send = 1;
	}
	int rc = this_job.core->submit(&o, &r->work, NULL);
	if (rc) {
		error = core_error(function);
		if (r->work == 0 || this_job.core->release(r->work) == 0)
			copy_free(r->memory);
		free(r);
		return error;
	}
	*out = (intptr_t)r;
	return 0;
}

EXPORT int MPIABI_Isend(const void *data, int n, intptr_t type, int to, int tag, intptr_t handle,
						intptr_t *out);
int MPIABI_Isend(const void *data, int n, intptr_t type, int to, int tag, intptr_t handle,
				 intptr_t *out) {
	return start("MPI_Isend", PMPI_OP_SEND, (void *)data, n, type, to, tag, handle, out);
}

EXPORT int MPIABI_Irecv(void *data, int n, intptr_t type, int from, int tag, intptr_t handle,
						intptr_t *out);
int MPIABI_Irecv(void *data, int n, intptr_t type, int from, int tag, intptr_t handle,
				 intptr_t *out) {
	return start("MPI_Irecv", PMPI_OP_RECV, data, n, type, from, tag, handle, out);
}

EXPORT int MPIABI_Wait(intptr_t *handle, void *status);
int MPIABI_Wait(intptr_t *handle, void *status) {
	static const char name[] = "MPI_Wait";
	(void)status; /* always MPI_STATUS_IGNORE */
	request *r = (request *)*handle;
	if (r == NULL)
		return 0; /* as MPI: the request was over */
	if (this_job.core == NULL)
		return own_error(name, ERR_REQUEST, "there is no such request");
	*handle = 0;
	int error = 0, kept = 0;
	if (r->work != 0) {
		pmpi_result result = {0};
		if (this_job.core->finish(r->work, -1, &result))
			error = core_error(name);
		if (!result.released)
			kept = this_job.core->release(r->work) != 0;
	}
	if (!kept) {
		if (!error && r->result != NULL)
			memcpy(r->result, r->memory.data, r->bytes);
		copy_free(r->memory);
	}
	free(r);
	return error;
}

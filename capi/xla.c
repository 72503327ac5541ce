#ifdef PMPI_PYMODULE
/* Operations as custom calls of XLA, JAX's compiler. XLA calls one handler for all operations, by
 * its typed foreign function interface (xla_ffi.h), on the thread that called the jitted function
 * or on one of its own. No Python runs in a call.
 *
 * Each call of a compiled program has one attribute, "call", an array of int64 with what the
 * descriptor of the operation has besides buffers. Its operands are the send side, its results the
 * receive side. Tokens among them only order the calls. */
#define _GNU_SOURCE
#include "xla.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "pmpi.h"
#include "pytools.h"
#include "xla_ffi.h"

/* What the attribute has, in this order (python/paddlempi/jax/calls.py writes it). It may be
 * longer: what follows tells programs of the compilation cache apart. */
enum { CODE, REDUCE_OP, SCALE, GROUP, ROOT, PEER, TAG, PEER2, TAG2, FIELDS };

/* ---- errors ---- */

/* kind_of returns XLA's code for one of the core, which JAX puts before the text. */
static XLA_FFI_Error_Code kind_of(int32_t code) {
	switch (code) {
	case PMPI_ERR_MISMATCH:
	case PMPI_ERR_REFUSED:
		return XLA_FFI_Error_Code_ABORTED;
	case PMPI_ERR_TIMEOUT:
		return XLA_FFI_Error_Code_DEADLINE_EXCEEDED;
	case PMPI_ERR_INTERRUPTED:
		return XLA_FFI_Error_Code_CANCELLED;
	case PMPI_ERR_PEER_LEFT:
	case PMPI_ERR_PEER_DIED:
	case PMPI_ERR_PROC_FAILED:
	case PMPI_ERR_REVOKED:
		return XLA_FFI_Error_Code_UNAVAILABLE;
	case PMPI_ERR_NO_MEMORY:
		return XLA_FFI_Error_Code_RESOURCE_EXHAUSTED;
	case PMPI_ERR_MPI:
	case PMPI_ERR_PANIC:
		return XLA_FFI_Error_Code_INTERNAL;
	}
	return XLA_FFI_Error_Code_FAILED_PRECONDITION;
}

static XLA_FFI_Error *make_error(const XLA_FFI_CallFrame *frame, int32_t code, const char *text) {
	XLA_FFI_Error_Create_Args args = {
		.struct_size = XLA_FFI_Error_Create_Args_STRUCT_SIZE,
		.message = text,
		.errc = kind_of(code),
	};
	return frame->api->XLA_FFI_Error_Create(&args);
}

/* ---- signals ---- */

/* A thread of XLA cannot ask Python whether a signal came, and the main thread, which could, waits
 * in JAX for the result. So SIGINT is counted here before Python's handler sees it. */
static _Atomic unsigned interrupts;
static struct sigaction pythons;
static __thread unsigned begun_at; /* 1 + interrupts when this thread's call began; 0: no call */

static void count(int number, siginfo_t *info, void *context) {
	interrupts++;
	if (pythons.sa_flags & SA_SIGINFO)
		pythons.sa_sigaction(number, info, context);
	else
		pythons.sa_handler(number);
}

/* Not if SIGINT is ignored, or nobody handles it. A program that sets a handler of SIGINT later
 * takes ours away, and another call of this function brings it back. */
void xla_count_interrupts(void) {
	struct sigaction now;
	if (sigaction(SIGINT, NULL, &now) || now.sa_handler == SIG_DFL || now.sa_handler == SIG_IGN ||
		((now.sa_flags & SA_SIGINFO) && now.sa_sigaction == count))
		return;
	pythons = now;
	now.sa_flags |= SA_SIGINFO | SA_ONSTACK;
	now.sa_sigaction = count;
	sigaction(SIGINT, &now, NULL);
}

int xla_interrupted(void) {
	return begun_at != 0 && begun_at != 1 + interrupts;
}

static int raise_again(void *error) {
	PyErr_SetObject((PyObject *)((PyObject *)error)->ob_type, error);
	Py_DecRef(error);
	return -1;
}

/* put_off takes the exception of a signal handler off this thread, the main one, and lets Python
 * raise it as soon as it runs again. JAX raises the error of the call in between, over any
 * exception that is set. */
static void put_off(void) {
	PyGILState_STATE s = PyGILState_Ensure();
	PyObject *type, *error, *traceback;
	PyErr_Fetch(&type, &error, &traceback);
	PyErr_NormalizeException(&type, &error, &traceback);
	if (error && Py_AddPendingCall(raise_again, error))
		PyErr_WriteUnraisable(error); /* no room for it */
	if (type)
		Py_DecRef(type);
	if (traceback)
		Py_DecRef(traceback);
	PyGILState_Release(s);
}

int xla_submit(const pmpi_op *op, pmpi_work *work, pmpi_result *result) {
	begun_at = 1 + interrupts;
	int rc = pmpi_submit(op, work, result);
	begun_at = 0;
	if (rc == PMPI_ERR_INTERRUPTED && syscall(SYS_gettid) == getpid())
		put_off();
	return rc;
}

/* ---- the call ---- */

static int32_t dtype_of(XLA_FFI_DataType dtype) {
	switch (dtype) {
	case XLA_FFI_DataType_PRED:
		return PMPI_DTYPE_BOOL;
	case XLA_FFI_DataType_S8:
		return PMPI_DTYPE_INT8;
	case XLA_FFI_DataType_S16:
		return PMPI_DTYPE_INT16;
	case XLA_FFI_DataType_S32:
		return PMPI_DTYPE_INT32;
	case XLA_FFI_DataType_S64:
		return PMPI_DTYPE_INT64;
	case XLA_FFI_DataType_U8:
		return PMPI_DTYPE_UINT8;
	case XLA_FFI_DataType_U16:
		return PMPI_DTYPE_UINT16;
	case XLA_FFI_DataType_U32:
		return PMPI_DTYPE_UINT32;
	case XLA_FFI_DataType_U64:
		return PMPI_DTYPE_UINT64;
	case XLA_FFI_DataType_F16:
		return PMPI_DTYPE_FLOAT16;
	case XLA_FFI_DataType_BF16:
		return PMPI_DTYPE_BFLOAT16;
	case XLA_FFI_DataType_F32:
		return PMPI_DTYPE_FLOAT32;
	case XLA_FFI_DataType_F64:
		return PMPI_DTYPE_FLOAT64;
	case XLA_FFI_DataType_C64:
		return PMPI_DTYPE_COMPLEX64;
	case XLA_FFI_DataType_C128:
		return PMPI_DTYPE_COMPLEX128;
	case XLA_FFI_DataType_F8E4M3FN:
		return PMPI_DTYPE_FLOAT8_E4M3FN;
	case XLA_FFI_DataType_F8E4M3FNUZ:
		return PMPI_DTYPE_FLOAT8_E4M3FNUZ;
	case XLA_FFI_DataType_F8E5M2:
		return PMPI_DTYPE_FLOAT8_E5M2;
	case XLA_FFI_DataType_F8E5M2FNUZ:
		return PMPI_DTYPE_FLOAT8_E5M2FNUZ;
	case XLA_FFI_DataType_F8E8M0FNU:
		return PMPI_DTYPE_FLOAT8_E8M0FNU;
	default:
		return 0;
	}
}

enum { MOST_BUFFERS = 2 };

/* read_buffers describes the buffers among values, and leaves out tokens. Returns their number, or
 * -1 if there are more than MOST_BUFFERS. */
static int32_t read_buffers(void **values, int64_t size, pmpi_buf *out) {
	int32_t n = 0;
	for (int64_t i = 0; i < size; i++) {
		const XLA_FFI_Buffer *b = values[i];
		if (b->dtype == XLA_FFI_DataType_TOKEN)
			continue;
		if (n == MOST_BUFFERS)
			return -1;
		int64_t count = 1;
		for (int64_t d = 0; d < b->rank; d++)
			count *= b->dims[d];
		out[n++] = (pmpi_buf){
			.data = b->data, .count = count, .dtype = dtype_of(b->dtype), .device_type = 1};
	}
	return n;
}

static const int64_t *read_call(const XLA_FFI_Attrs *attrs) {
	if (attrs->size != 1 || attrs->types[0] != XLA_FFI_AttrType_ARRAY)
		return NULL;
	const XLA_FFI_Array *a = attrs->attrs[0];
	return a->dtype == XLA_FFI_DataType_S64 && a->size >= FIELDS ? a->data : NULL;
}

/* wait_for_memory waits until MPI has finished with the memory of a call that failed, because XLA
 * gives it to others afterwards. If that takes longer than MPI can need to take back its messages,
 * the job ends. */
static void wait_for_memory(pmpi_work work, const char *text) {
	enum { PATIENCE_MS = 10000 };
	for (int ms = 0; ms < PATIENCE_MS && !pmpi_memory_is_free(work); ms++)
		nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
	if (pmpi_release(work)) {
		fprintf(
			stderr,
			"paddlempi: MPI still uses the memory of a call that failed, and XLA cannot keep it; "
			"the job ends. The error of the call: %s\n",
			text);
		pmpi_control("abort", "{\"status\": 1}", NULL);
	}
}

static XLA_FFI_Error *carry_out(XLA_FFI_CallFrame *frame) {
	const int64_t *call = read_call(&frame->attrs);
	if (call == NULL)
		return make_error(frame, PMPI_ERR_ARGUMENT,
						  "paddlempi: the attribute of the custom call is not the one that this "
						  "release writes: compile the function again");
	pmpi_buf send[MOST_BUFFERS], recv[MOST_BUFFERS];
	pmpi_op op = {
		.size = sizeof op,
		.code = (int32_t)call[CODE],
		.reduce_op = (int32_t)call[REDUCE_OP],
		.group = call[GROUP],
		.root = (int32_t)call[ROOT],
		.peer = (int32_t)call[PEER],
		.tag = (int32_t)call[TAG],
		.peer2 = (int32_t)call[PEER2],
		.tag2 = (int32_t)call[TAG2],
		.n_send = read_buffers(frame->args.args, frame->args.size, send),
		.n_recv = read_buffers(frame->rets.rets, frame->rets.size, recv),
		.send = send,
		.recv = recv,
		.timeout_ns = -1,
	};
	memcpy(&op.scale, &call[SCALE], sizeof op.scale);
	int in_place = op.code == PMPI_OP_BROADCAST || op.code == PMPI_OP_EXSCAN;
	if (in_place && op.n_send == 1 && op.n_recv == 1) {
		/* A rank may keep what it has. XLA was told that the result may lie where the operand does.
		 */
		if (recv[0].data != send[0].data)
			memcpy(recv[0].data, send[0].data,
				   (size_t)(send[0].count * pmpi_dtype_size(send[0].dtype)));
		op.n_send = 0;
	}
	pmpi_work work = 0;
	pmpi_result result;
	int rc = xla_submit(&op, &work, &result);
	if (rc == 0)
		return NULL;
	const pmpi_error *error = pmpi_last_error();
	char text[PMPI_ERROR_TEXT + 64];
	snprintf(text, sizeof text, "paddlempi: %s", error->message);
	if (work != 0)
		wait_for_memory(work, text);
	return make_error(frame, rc, text);
}

/* handle is what XLA calls: once to ask for which version of its interface it was written, and then
 * for every call. */
static XLA_FFI_Error *handle(XLA_FFI_CallFrame *frame) {
	XLA_FFI_Extension_Base *asks = frame->extension_start;
	if (asks && asks->type == XLA_FFI_Extension_Metadata) {
		XLA_FFI_Metadata *told = ((XLA_FFI_Metadata_Extension *)asks)->metadata;
		told->api_version.major_version = XLA_FFI_API_MAJOR;
		told->api_version.minor_version = XLA_FFI_API_MINOR;
		told->traits = 0;
		return NULL;
	}
	return carry_out(frame);
}

PyObject *py_xla_handler(PyObject *self, PyObject *const *args, Py_ssize_t n) {
	(void)self, (void)args;
	if (!wants(n, 0, 0, "xla_handler"))
		return NULL;
	xla_count_interrupts();
	return PyLong_FromLongLong((int64_t)(intptr_t)handle);
}
#endif

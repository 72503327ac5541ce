#ifdef PMPI_PYMODULE
/* The extension module paddlempi._core: pmpi.h for Python. Functions take positional
 * arguments only, and raise the exceptions of paddlempi.errors. The GIL is dropped in
 * every call that can wait. */
#define _GNU_SOURCE
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "guard.h"
#include "slack.h"
#include "tensor.h"

static PyObject *errors; /* dict: code -> exception class */

/* ---- errors ---- */

static PyObject *raise_error(const pmpi_error *e) {
	PyObject *code = PyLong_FromLongLong(e->code);
	PyObject *class = errors && code ? PyDict_GetItemWithError(errors, code) : NULL;
	PyObject *text = PyUnicode_DecodeUTF8(e->message, (Py_ssize_t)strlen(e->message), "replace");
	PyObject *ranks = PyTuple_New(e->n_ranks), *error = NULL,
			 *mpi_class = PyLong_FromLongLong(e->mpi_class);
	if (code == NULL || text == NULL || ranks == NULL || mpi_class == NULL)
		goto done;
	for (int i = 0; i < e->n_ranks; i++)
		PyTuple_SetItem(ranks, i, PyLong_FromLongLong(e->ranks[i]));
	error = PyObject_CallFunctionObjArgs(class ? class : PyExc_RuntimeError, text, NULL);
	if (error && PyObject_SetAttrString(error, "ranks", ranks) == 0 &&
		PyObject_SetAttrString(error, "mpi_class", mpi_class) == 0)
		PyErr_SetObject((PyObject *)error->ob_type, error);
done:
	if (error)
		Py_DecRef(error);
	if (mpi_class)
		Py_DecRef(mpi_class);
	if (ranks)
		Py_DecRef(ranks);
	if (text)
		Py_DecRef(text);
	if (code)
		Py_DecRef(code);
	return NULL;
}

PyObject *raise_code(int code, const char *format, ...) {
	pmpi_error e = {.code = code};
	va_list args;
	va_start(args, format);
	vsnprintf(e.message, sizeof e.message, format, args);
	va_end(args);
	return raise_error(&e);
}

/* raise_last sets the exception of the call that just returned rc. An interrupt has
 * set its own: KeyboardInterrupt, or whatever the signal handler raised. */
static PyObject *raise_last(int rc) {
	if (rc == PMPI_ERR_INTERRUPTED && PyErr_Occurred())
		return NULL;
	return raise_error(pmpi_last_error());
}

/* ---- arguments ---- */

/* as_int reads an int32; a value beyond it is an error, not another value. */
static int32_t as_int(PyObject *const *args, Py_ssize_t n, Py_ssize_t i, int32_t absent) {
	if (i >= n)
		return absent;
	long long v = PyLong_AsLongLong(args[i]);
	if (v != (int32_t)v)
		raise_code(PMPI_ERR_ARGUMENT,
				   "%lld, the argument of the core at position %ld, needs more than 32 bits", v,
				   (long)i);
	return (int32_t)v;
}

static double as_double(PyObject *const *args, Py_ssize_t n, Py_ssize_t i, double absent) {
	return i < n ? PyFloat_AsDouble(args[i]) : absent;
}

static PyObject *at(PyObject *const *args, Py_ssize_t n, Py_ssize_t i) {
	return i < n ? args[i] : Py_None;
}

/* to_ns reads seconds; below 0 stands for "none". Values past 290 years are cut. */
static int64_t to_ns(double s) {
	return s < 0 ? -1 : s > 9e9 ? INT64_MAX : (int64_t)(s * 1e9);
}

static int wants(Py_ssize_t n, Py_ssize_t least, Py_ssize_t most, const char *name) {
	if (n >= least && n <= most)
		return 1;
	PyErr_Format(PyExc_TypeError, "%s() takes %zd to %zd positional arguments, got %zd", name,
				 least, most, n);
	return 0;
}

static PyObject *none(void) {
	Py_IncRef(Py_None);
	return Py_None;
}

/* result_tuple is (source, bytes, tag) of a synchronous operation, with n 4 (.., device). */
static PyObject *result_tuple(const pmpi_result *r, int n) {
	PyObject *t = PyTuple_New(n);
	if (t == NULL)
		return NULL;
	PyTuple_SetItem(t, 0, PyLong_FromLongLong(r->source));
	PyTuple_SetItem(t, 1, PyLong_FromLongLong(r->bytes));
	PyTuple_SetItem(t, 2, PyLong_FromLongLong(r->tag));
	if (n > 3)
		PyTuple_SetItem(t, 3, PyLong_FromLongLong(r->device));
	return t;
}

static int has_result(int32_t code) {
	return code == PMPI_OP_RECV || code == PMPI_OP_SENDRECV || code == PMPI_OP_PROBE;
}

/* ---- operations ---- */

/* What an operation keeps alive that goes on after its call: the tensors, and the exports of
 * those that have the buffer protocol. Freed when MPI and the device are done with them,
 * which may be later than the end of the operation for its caller. All of it is guarded by the GIL.
 */
typedef struct held {
	struct held *next;
	pmpi_work work;
	PyObject *send, *recv; /* NULL once they were let go */
	int32_t n;
	int has_result;
	Py_buffer views[];
} held;

static held *all_held;
static int
	orphans; /* those of them whose work was released, and that pmpi_next_released will return */

/* own returns a new reference to tensors, which are the items of a list, not the list: its owner
 * may change it. */
static PyObject *own(PyObject *tensors) {
	if (PyType_GetFlags(tensors->ob_type) & TPFLAGS_LIST) {
		PyObject *items = PyList_AsTuple(tensors);
		if (items)
			return items;
		PyErr_Clear(); /* no memory: the list will do unless it is changed */
	}
	Py_IncRef(tensors);
	return tensors;
}

/* hold keeps the tensors of work, which has been submitted: where there is no memory to write that
 * down they are kept for ever. */
static void hold(pmpi_work work, PyObject *send, PyObject *recv, side *a, side *b,
				 int with_result) {
	int32_t n = a->n_views + b->n_views;
	held *h = malloc(sizeof *h + (size_t)n * sizeof h->views[0]);
	if (h == NULL) {
		own(send);
		own(recv);
		a->n_views = b->n_views = 0;
		return;
	}
	memcpy(h->views, a->views, (size_t)a->n_views * sizeof h->views[0]);
	memcpy(h->views + a->n_views, b->views, (size_t)b->n_views * sizeof h->views[0]);
	a->n_views = b->n_views = 0;
	h->work = work;
	h->send = own(send);
	h->recv = own(recv);
	h->n = n;
	h->has_result = with_result;
	h->next = all_held;
	all_held = h;
}

static held *find(pmpi_work work) {
	for (held *h = all_held; h; h = h->next)
		if (h->work == work)
			return h;
	return NULL;
}

/* empty lets go of what h keeps. Destructors may run, and call anything here. */
static void empty(held *h) {
	PyObject *send = h->send, *recv = h->recv;
	int32_t n = h->n;
	h->send = h->recv = NULL;
	h->n = 0;
	for (int32_t i = 0; i < n; i++)
		PyBuffer_Release(&h->views[i]);
	if (send)
		Py_DecRef(send);
	if (recv)
		Py_DecRef(recv);
}

static void let_go(pmpi_work work) {
	for (held **p = &all_held; *p; p = &(*p)->next) {
		if ((*p)->work == work) {
			held *h = *p;
			*p = h->next;
			empty(h);
			free(h);
			return;
		}
	}
}

/* release_held forgets work, with what it keeps now or when that may be freed. */
static void release_held(pmpi_work work) {
	if (pmpi_release(work))
		orphans++;
	else
		let_go(work);
}

/* collect frees what released works keep that are over by now. */
static void collect(void) {
	pmpi_work work;
	while (orphans > 0 && (work = pmpi_next_released()) != 0) {
		orphans--;
		let_go(work);
	}
}

/* refuse_pending tells the group that this call of a collective went wrong here, and
 * keeps the exception that is set. */
static void refuse_pending(int64_t group, int32_t code) {
	PyObject *t, *v, *tb;
	PyErr_Fetch(&t, &v, &tb);
	PyThreadState *ts = PyEval_SaveThread();
	pmpi_refuse(group, code);
	PyEval_RestoreThread(ts);
	PyErr_Restore(t, v, tb);
}

static PyObject *py_submit(PyObject *self, PyObject *const *args, Py_ssize_t n) {
	(void)self;
	if (!wants(n, 4, 15, "submit"))
		return NULL;
	collect();
	side send, recv;
	send.n = send.n_views = recv.n = recv.n_views = 0;
	send.on_device = recv.on_device = 0;
	pmpi_op op;
	memset(&op, 0, sizeof op);
	op.size = sizeof op;
	op.code = as_int(args, n, 0, 0);
	op.group = PyLong_AsLongLong(args[1]);
	op.reduce_op = as_int(args, n, 4, 0);
	op.flags = (uint32_t)as_int(args, n, 5, 0);
	op.root = as_int(args, n, 6, -1);
	op.peer = as_int(args, n, 7, -1);
	op.tag = as_int(args, n, 8, 0);
	op.timeout_ns = to_ns(as_double(args, n, 9, -1));
	op.scale = as_double(args, n, 10, 1);
	op.peer2 = as_int(args, n, 13, -1);
	op.tag2 = as_int(args, n, 14, 0);
	if (PyErr_Occurred()) {
		refuse_pending(op.group, op.code);
		return NULL;
	}

	PyObject *out = NULL;
	if (side_describe(&send, args[2], "send") || side_split(&send, at(args, n, 11), "send"))
		recv.bufs = recv.room, recv.views = recv.view_room, recv.n_dims = 0, recv.more_dims = NULL;
	else if (!(side_describe(&recv, args[3], "recv") ||
			   side_split(&recv, at(args, n, 12), "recv") ||
			   side_stream(&send, &recv, &op.stream))) {
		op.send = send.bufs;
		op.n_send = send.n;
		op.recv = recv.bufs;
		op.n_recv = recv.n;
		pmpi_work work = 0;
		pmpi_result result;
		PyThreadState *ts = PyEval_SaveThread();
		int rc = pmpi_submit(&op, &work, &result);
		PyEval_RestoreThread(ts);
		if (work != 0) {
			PyObject *t, *v, *tb; /* what a signal handler raised */
			PyErr_Fetch(&t, &v, &tb);
			hold(work, args[2], args[3], &send, &recv, has_result(op.code));
			if (rc)
				release_held(work);
			PyErr_Restore(t, v, tb);
		}
		if (rc) {
			raise_last(rc);
		} else if (op.flags & PMPI_FLAG_ASYNC) {
			out = PyLong_FromUnsignedLongLong(work);
		} else {
			out = has_result(op.code) ? result_tuple(&result, 3) : none();
		}
		goto done;
	}
	refuse_pending(op.group, op.code); /* does nothing for a message */
done:
	side_release(&send);
	side_release(&recv);
	return out;
}

static PyObject *py_refuse(PyObject *self, PyObject *const *args, Py_ssize_t n) {
	(void)self;
	if (!wants(n, 2, 3, "refuse"))
		return NULL;
	int32_t code = (int32_t)PyLong_AsLongLong(args[0]);
	int64_t group = PyLong_AsLongLong(args[1]);
	if (PyErr_Occurred())
		return NULL;
	refuse_pending(group, code);
	return none();
}

static PyObject *py_wait(PyObject *self, PyObject *const *args, Py_ssize_t n) {
	(void)self;
	if (!wants(n, 1, 2, "wait"))
		return NULL;
	pmpi_work work = PyLong_AsUnsignedLongLong(args[0]);
	int64_t limit = to_ns(as_double(args, n, 1, -1));
	if (PyErr_Occurred())
		return NULL;
	pmpi_result result;
	PyThreadState *ts = PyEval_SaveThread();
	int rc = pmpi_wait(work, limit, &result);
	PyEval_RestoreThread(ts);
	if (rc)
		return raise_last(rc);
	held *h = find(work);
	int received = h && h->has_result;
	if (h && result.device == 0)
		empty(h);
	if (!received && result.device == 0)
		return none();
	if (!received)
		result.source = result.tag = -1;
	return result_tuple(&result, 4);
}

static PyObject *py_order(PyObject *self, PyObject *const *args, Py_ssize_t n) {
	(void)self;
	if (!wants(n, 2, 2, "order"))
		return NULL;
	pmpi_work work = PyLong_AsUnsignedLongLong(args[0]);
	uint64_t stream = PyLong_AsUnsignedLongLong(args[1]);
	if (PyErr_Occurred())
		return NULL;
	PyThreadState *ts = PyEval_SaveThread();
	int rc = pmpi_order(work, stream);
	PyEval_RestoreThread(ts);
	return rc ? raise_last(rc) : none();
}

static PyObject *py_test(PyObject *self, PyObject *const *args, Py_ssize_t n) {
	(void)self;
	if (!wants(n, 1, 1, "test"))
		return NULL;
	pmpi_work work = PyLong_AsUnsignedLongLong(args[0]);
	if (PyErr_Occurred())
		return NULL;
	PyThreadState *ts = PyEval_SaveThread();
	int rc = pmpi_test(work);
	PyEval_RestoreThread(ts);
	return rc < 0 ? raise_last(-rc) : PyBool_FromLong(rc);
}

static PyObject *py_release(PyObject *self, PyObject *const *args, Py_ssize_t n) {
	(void)self;
	if (!wants(n, 1, 1, "release"))
		return NULL;
	pmpi_work work = PyLong_AsUnsignedLongLong(args[0]);
	if (PyErr_Occurred())
		return NULL;
	release_held(work);
	collect();
	return none();
}

static PyObject *py_let_go(PyObject *self, PyObject *const *args, Py_ssize_t n) {
	(void)self;
	if (!wants(n, 1, 1, "let_go"))
		return NULL;
	pmpi_work work = PyLong_AsUnsignedLongLong(args[0]);
	if (PyErr_Occurred())
		return NULL;
	held *h = find(work);
	if (h)
		empty(h);
	return none();
}

static PyObject *py_notify(PyObject *self, PyObject *const *args, Py_ssize_t n) {
	(void)self;
	if (!wants(n, 1, 1, "notify"))
		return NULL;
	pmpi_work work = PyLong_AsUnsignedLongLong(args[0]);
	if (PyErr_Occurred())
		return NULL;
	int rc = pmpi_notify(work);
	return rc ? raise_last(rc) : none();
}

static PyObject *py_next_completion(PyObject *self, PyObject *const *args, Py_ssize_t n) {
	(void)self;
	if (!wants(n, 0, 1, "next_completion"))
		return NULL;
	int64_t limit = to_ns(as_double(args, n, 0, -1));
	if (PyErr_Occurred())
		return NULL;
	if (pmpi_guard_forked()) {
		pmpi_next_completion(0);
		return raise_last(PMPI_ERR_FORKED);
	}
	PyThreadState *ts = PyEval_SaveThread();
	pmpi_work work = pmpi_next_completion(limit);
	PyEval_RestoreThread(ts);
	collect();
	return PyLong_FromUnsignedLongLong(work);
}

static PyObject *py_completion_fd(PyObject *self, PyObject *const *args, Py_ssize_t n) {
	(void)self, (void)args;
	if (!wants(n, 0, 0, "completion_fd"))
		return NULL;
	int fd = pmpi_completion_fd();
	return fd < 0 ? raise_last(PMPI_ERR_FORKED) : PyLong_FromLongLong(fd);
}

static PyObject *py_control(PyObject *self, PyObject *const *args, Py_ssize_t n) {
	(void)self;
	if (!wants(n, 2, 2, "control"))
		return NULL;
	const char *method = PyUnicode_AsUTF8AndSize(args[0], NULL);
	const char *request = method ? PyUnicode_AsUTF8AndSize(args[1], NULL) : NULL;
	if (request == NULL)
		return NULL;
	char *reply = NULL;
	PyThreadState *ts = PyEval_SaveThread();
	int rc = pmpi_control(method, request, &reply);
	PyEval_RestoreThread(ts);
	if (rc)
		return raise_last(rc);
	PyObject *out = PyUnicode_FromString(reply);
	pmpi_free(reply);
	return out;
}

/* ---- what Python teaches the core ---- */

static PyObject *py_register(PyObject *self, PyObject *const *args, Py_ssize_t n) {
	(void)self;
	if (!wants(n, 2, 2, "register") || tensor_register(args[0], args[1]))
		return NULL;
	return none();
}

static PyObject *py_set_resolver(PyObject *self, PyObject *const *args, Py_ssize_t n) {
	(void)self;
	if (!wants(n, 1, 1, "set_resolver") || tensor_set_resolver(args[0]))
		return NULL;
	return none();
}

static PyObject *py_set_errors(PyObject *self, PyObject *const *args, Py_ssize_t n) {
	(void)self;
	if (!wants(n, 1, 1, "set_errors"))
		return NULL;
	Py_IncRef(args[0]);
	PyObject *old = errors;
	errors = args[0];
	if (old)
		Py_DecRef(old);
	return none();
}

static PyObject *py_forked(PyObject *self, PyObject *const *args, Py_ssize_t n) {
	(void)self, (void)args;
	if (!wants(n, 0, 0, "forked"))
		return NULL;
	return PyBool_FromLong(pmpi_guard_forked());
}

/* Asked by waits at most every 50 ms: runs Python's signal handlers, which only the
 * main thread does, and leaves what they raise set. Other threads must not ask for the
 * GIL here: when Python ends it ends daemon threads that do, in the middle of Go. */
static int check_signals(void) {
	if (syscall(SYS_gettid) != getpid())
		return 0;
	PyGILState_STATE s = PyGILState_Ensure();
	int stop = PyErr_CheckSignals();
	PyGILState_Release(s);
	return stop;
}

#define METHOD(name, doc) {#name, (void *)py_##name, METH_FASTCALL, doc}

static PyMethodDef methods[] = {
	METHOD(submit,
		   "submit(code, group, send, recv, reduce_op=0, flags=0, root=-1, peer=-1, tag=0, "
		   "timeout=-1.0, scale=1.0,\n"
		   "send_splits=None, recv_splits=None, peer2=-1, tag2=0)\n\n"
		   "Carry out one operation: None, or (source, bytes, tag) of a receive. With the ASYNC "
		   "flag: the\n"
		   "number of the work, 0 if it is over. timeout in seconds, below 0: the group's."),
	METHOD(refuse, "refuse(code, group, message): tell the group that this rank takes no part in "
				   "its next collective."),
	METHOD(wait,
		   "wait(work, timeout=-1.0): None, or (source, bytes, tag, device) of a receive or where\n"
		   "device, 1 + its number, still works on it; raises what the work ended with."),
	METHOD(order,
		   "order(work, stream): make a CUDA stream wait for what the work left on its device."),
	METHOD(test, "test(work): whether it is over, on its device too."),
	METHOD(release,
		   "release(work): forget it; it goes on if it is not over, and its tensors are kept "
		   "until then."),
	METHOD(let_go,
		   "let_go(work): free its tensors now: their allocator knows who still uses them."),
	METHOD(notify, "notify(work): report its end by next_completion."),
	METHOD(next_completion,
		   "next_completion(timeout=-1.0): a work that ended, 0 if none did. Drops the GIL."),
	METHOD(completion_fd,
		   "completion_fd(): an eventfd, readable while next_completion has something."),
	METHOD(control, "control(method, json): call a method of the core; returns JSON."),
	METHOD(register, "register(type, describe): how to read tensors of a type; see _buffer.py."),
	METHOD(set_resolver, "set_resolver(f): f(x) registers the type of x or raises TypeError."),
	METHOD(set_errors, "set_errors({code: class}): the exceptions to raise."),
	METHOD(forked, "forked(): whether this process is a fork of the one that loaded the core."),
	{NULL, NULL, 0, NULL},
};

static PyModuleDef module = {
	.ob_base = {1, NULL},
	.m_name = "paddlempi._core",
	.m_doc = "The core of paddlempi (Go) and its tensors (C). Internal: use the package.",
	.m_size = -1,
	.m_methods = methods,
};

__attribute__((visibility("default"))) PyObject *PyInit__core(void) {
	pmpi_slack_restore();
	pmpi_set_interrupt(check_signals);
	return PyModule_Create2(&module, PYTHON_API_VERSION_STABLE);
}
#endif

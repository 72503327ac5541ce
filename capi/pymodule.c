#ifdef PMPI_PYMODULE
/* The extension module paddlempi._core: pmpi.h for Python. Functions take positional arguments
 * only, except for submit, and raise the exceptions of paddlempi.errors. Every call that can wait
 * drops the GIL. */
#define _GNU_SOURCE
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "functions.h"
#include "gil.h"
#include "guard.h"
#include "operation.h"
#include "prepared.h"
#include "pytools.h"
#include "slack.h"
#include "submit.h"
#include "table.h"
#include "tensor.h"
#include "torch_ops.h"
#include "window.h"
#include "xla.h"

/* ---- calls of the core ---- */

static PyObject *py_refuse(PyObject *self, PyObject *const *args, Py_ssize_t n) {
	(void)self;
	if (!wants(n, 2, 3, "refuse"))
		return NULL;
	int32_t code = (int32_t)PyLong_AsLongLong(args[0]);
	int64_t group = PyLong_AsLongLong(args[1]);
	if (PyErr_Occurred())
		return NULL;
	if (!prepared_wanted()) /* to prepare a call is local */
		operation_refuse(group, code);
	return none();
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
	gil_take(ts);
	if (rc)
		return raise_last(rc);
	PyObject *out = PyUnicode_FromString(reply);
	pmpi_free(reply);
	return out;
}

static PyObject *py_functions(PyObject *self, PyObject *const *args, Py_ssize_t n) {
	static const pmpi_functions table = {
		.size = sizeof table,
		.control = pmpi_control,
		.free = pmpi_free,
		.submit = xla_submit,
		.release = pmpi_release,
		.memory_is_free = pmpi_memory_is_free,
		.last_error = pmpi_last_error,
		.window_new = pmpi_window_new,
		.window = pmpi_window,
		.heap_alloc = pmpi_heap_alloc,
		.heap_free = pmpi_heap_free,
	};
	(void)self, (void)args;
	if (!wants(n, 0, 0, "functions"))
		return NULL;
	xla_count_interrupts();
	return PyLong_FromLongLong((int64_t)(intptr_t)&table);
}

static PyObject *py_heap_alloc(PyObject *self, PyObject *const *args, Py_ssize_t n) {
	(void)self;
	if (!wants(n, 1, 1, "heap_alloc"))
		return NULL;
	int64_t bytes = PyLong_AsLongLong(args[0]);
	if (PyErr_Occurred())
		return NULL;
	void *memory = pmpi_heap_alloc(bytes);
	return memory ? PyLong_FromLongLong((int64_t)(intptr_t)memory) : raise_last(PMPI_ERR_NO_MEMORY);
}

static PyObject *py_heap_free(PyObject *self, PyObject *const *args, Py_ssize_t n) {
	(void)self;
	if (!wants(n, 1, 1, "heap_free"))
		return NULL;
	int64_t address = PyLong_AsLongLong(args[0]);
	if (PyErr_Occurred())
		return NULL;
	int rc = pmpi_heap_free((void *)(intptr_t)address);
	return rc ? raise_last(rc) : none();
}

/* ---- registration ---- */

static PyObject *py_register(PyObject *self, PyObject *const *args, Py_ssize_t n) {
	(void)self;
	if (!wants(n, 2, 3, "register") || tensor_register(args[0], args[1], n > 2 ? args[2] : Py_None))
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
	set_errors(args[0]);
	return none();
}

static PyObject *py_forked(PyObject *self, PyObject *const *args, Py_ssize_t n) {
	(void)self, (void)args;
	if (!wants(n, 0, 0, "forked"))
		return NULL;
	return PyBool_FromLong(pmpi_guard_forked());
}

static PyObject *py_ending(PyObject *self, PyObject *const *args, Py_ssize_t n) {
	(void)self;
	if (!wants(n, 1, 1, "ending"))
		return NULL;
	double seconds = PyFloat_AsDouble(args[0]);
	if (PyErr_Occurred())
		return NULL;
	gil_ending(to_ns(seconds));
	return none();
}

/* Waits call this every 50 ms or less often. It runs Python's signal handlers, which only the main
 * thread does, and leaves their exception set. Other threads must not take the GIL here: when
 * Python ends, it ends daemon threads that try to, in the middle of Go. */
static int check_signals(void) {
	if (syscall(SYS_gettid) != getpid())
		return xla_interrupted();
	PyGILState_STATE s = PyGILState_Ensure();
	int stop = PyErr_CheckSignals();
	PyGILState_Release(s);
	return stop;
}

#define METHOD(name, doc) {#name, (void *)py_##name, METH_FASTCALL, doc}

static PyMethodDef methods[] = {
	{"submit", (void *)py_submit, METH_FASTCALL | METH_KEYWORDS,
	 "submit(code, group, send, recv, reduce_op=0, flags=0, *, root=-1, peer=-1, tag=0,\n"
	 "timeout=-1.0, scale=1.0, send_splits=None, recv_splits=None, peer2=-1, tag2=0)\n\n"
	 "Carry out one operation. Returns None, (source, bytes, tag) of a receive or a probe, or\n"
	 "with the flag ASYNC an Operation. timeout is in seconds; below 0 stands for the group's.\n"
	 "Frameworks that count versions of a tensor are told that recv was written to: at once and\n"
	 "again at the end; with the flag ONCE at once only; with QUIET not at all."},
	METHOD(refuse, "refuse(code, group, message): tell the group that this rank takes no part in "
				   "its next collective, which is of operation code."),
	METHOD(prepare_next, "prepare_next(type): let this thread's next submit() prepare its call "
						 "instead of carrying it out, and make an object of type, a subclass of "
						 "prepared_type(). refuse() does nothing meanwhile. One thread at a time."),
	METHOD(prepared, "prepared(ranks=None): end what prepare_next() began. Returns the object, or "
					 "None if submit() was not called. ranks are the global ranks of its group."),
	METHOD(prepared_type, "prepared_type(): the base class of prepared calls."),
	METHOD(next_completions, "next_completions(timeout=-1.0, awake=None): wait until operations "
							 "with notify() have ended; returns the list of their contexts, empty "
							 "after timeout seconds (below 0: no limit). After the wait it first "
							 "calls awake()."),
	METHOD(awaited, "awaited(): the contexts of operations whose end was not reported yet."),
	METHOD(completion_fd,
		   "completion_fd(): an eventfd, readable while next_completions() would not wait."),
	METHOD(control, "control(method, json): call a method of the core; returns JSON."),
	METHOD(table,
		   "table(code, table, ids, values, states=None, learning_rate=None, step=0): a call of "
		   "pmpi_table; returns its count."),
	METHOD(
		tables,
		"tables(code, ((table, ids, values, learning_rate or None), ...)): one call of pmpi_table "
		"on several tables: one request to each server, and for a push one step."),
	METHOD(window_new, "window_new(tensor, group, timeout): make a window; returns its number."),
	METHOD(window,
		   "window(code, window, rank, offset=0, send=None, recv=None, reduce_op=0, timeout=-1.0, "
		   "shape=None, strides=None): a call of pmpi_window."),
	METHOD(
		window_atomic,
		"window_atomic(window, dtype, rank, index, value, reduce_op, expected=absent): combine an "
		"element with a Python number, or with expected compare and swap it; returns the element "
		"before."),
	METHOD(functions, "functions(): the address of a table of functions; see functions.h."),
	METHOD(heap_alloc, "heap_alloc(bytes): take memory of this rank's heap; returns its address."),
	METHOD(heap_free, "heap_free(address): give memory of heap_alloc back; in a fork: nothing."),
	METHOD(register,
		   "register(type, describe, bump=None): functions that describe a tensor of a type, and "
		   "that bump its version after it was written to; see _buffer.py."),
	METHOD(set_resolver, "set_resolver(f): f(x) registers the type of x or raises TypeError."),
	METHOD(
		set_elsewhere,
		"set_elsewhere(f): f(recv, send, code, group, root, reduce_op, scale, is_async) carries "
		"out "
		"a call whose tensors cannot be written to, and returns its result. It raises after it has "
		"refused the call, or returns None if it knows nothing of such tensors."),
	METHOD(set_errors, "set_errors({code: class}): set the exceptions that stand for error codes."),
	METHOD(ending,
		   "ending(seconds): this thread is about to end Python. Other threads do not come "
		   "back from this module for so long, and never again if Python ends in that time."),
	METHOD(xla_handler,
		   "xla_handler(): the address of the function that XLA calls for an operation of "
		   "a compiled program. It also lets SIGINT end such calls."),
	METHOD(
		torch_kernels,
		"torch_kernels(python, from_handle, to_handle): register kernels in C of the operators of "
		"torch.ops.paddlempi. python has their kernels in Python as attributes; the others are "
		"torch's functions for tensors and capsules. False: this torch lacks what they need."),
	METHOD(
		torch_group,
		"torch_group(name, group=-1, size=0): let those kernels take a name for a group; without "
		"a size no longer."),
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
	/* Types, exceptions and the GIL of this module are those of one interpreter. The words are
	 * those of CPython 3.12, which refuses most subinterpreters itself. */
	if (PyInterpreterState_GetID(PyInterpreterState_Get()) != 0) {
		PyErr_SetString(PyExc_ImportError,
						"module paddlempi._core does not support loading in subinterpreters");
		return NULL;
	}
	pmpi_set_interrupt(check_signals);
	if (operation_prepare() || submit_prepare() || prepared_prepare())
		return NULL;
	return PyModule_Create2(&module, PYTHON_API_VERSION_STABLE);
}
#endif

#ifdef PMPI_PYMODULE
/* Python's submit: it turns arguments into a call. */
#define _GNU_SOURCE
#include "submit.h"

#include <string.h>

#include "kept.h"
#include "operation.h"
#include "prepared.h"
#include "pytools.h"

static const char *const field_names[] = {"root",  "peer",        "tag",         "timeout", "scale",
										  "peer2", "send_splits", "recv_splits", "tag2"};
enum { ROOT, PEER, TAG, TIMEOUT, SCALE, PEER2, SEND_SPLITS, RECV_SPLITS, TAG2, FIELDS };
static PyObject *fields[FIELDS]; /* interned */

static int field(PyObject *name) {
	for (int i = 0; i < FIELDS; i++)
		if (name == fields[i])
			return i;
	for (int i = 0; i < FIELDS; i++)
		if (PyUnicode_CompareWithASCIIString(name, field_names[i]) == 0)
			return i;
	PyErr_Format(PyExc_TypeError, "submit() has no argument named %S", name);
	return -1;
}

/* as_int reads an int32. A value that needs more bits is an error and is not cut. */
static int32_t as_int(PyObject *x, const char *name) {
	long long v = PyLong_AsLongLong(x);
	if (v != (int32_t)v)
		raise_code(PMPI_ERR_ARGUMENT, "%s=%lld needs more than 32 bits", name, v);
	return (int32_t)v;
}

static int read_fields(pmpi_op *op, PyObject *const *values, PyObject *names,
					   PyObject **send_splits, PyObject **recv_splits) {
	for (Py_ssize_t i = 0; names && i < PyTuple_Size(names); i++) {
		PyObject *x = values[i];
		int which = field(PyTuple_GetItem(names, i));
		switch (which) {
		case ROOT:
			op->root = as_int(x, "root");
			break;
		case PEER:
			op->peer = as_int(x, "peer");
			break;
		case TAG:
			op->tag = as_int(x, "tag");
			break;
		case TIMEOUT:
			op->timeout_ns = to_ns(PyFloat_AsDouble(x));
			break;
		case SCALE:
			op->scale = PyFloat_AsDouble(x);
			break;
		case PEER2:
			op->peer2 = as_int(x, "peer2");
			break;
		case TAG2:
			op->tag2 = as_int(x, "tag2");
			break;
		case SEND_SPLITS:
			*send_splits = x;
			break;
		case RECV_SPLITS:
			*recv_splits = x;
			break;
		default:
			return -1;
		}
	}
	return PyErr_Occurred() ? -1 : 0;
}

static PyObject *elsewhere; /* see py_set_elsewhere */

PyObject *py_set_elsewhere(PyObject *self, PyObject *const *args, Py_ssize_t n) {
	(void)self;
	if (!wants(n, 1, 1, "set_elsewhere"))
		return NULL;
	assign(&elsewhere, args[0]);
	return none();
}

/* describe_failed ends a call whose tensors could not be described; the exception is set. Tensors
 * that cannot be written to, as JAX's, are no error if elsewhere() carries out the call. Returns
 * its result, or NULL with an exception set, after it has told the other ranks. */
static PyObject *describe_failed(const call *c) {
	if (elsewhere == NULL || c->recv == Py_None)
		return call_refuse(c);
	PyObject *t, *v, *tb;
	PyErr_Fetch(&t, &v, &tb);
	PyObject *numbers[] = {
		PyLong_FromLongLong(c->op.code), PyLong_FromLongLong(c->op.group),
		PyLong_FromLongLong(c->op.root), PyLong_FromLongLong(c->op.reduce_op),
		PyFloat_FromDouble(c->op.scale), PyBool_FromLong(c->op.flags & PMPI_FLAG_ASYNC),
	};
	PyObject *out =
		PyObject_CallFunctionObjArgs(elsewhere, c->recv, c->send, numbers[0], numbers[1],
									 numbers[2], numbers[3], numbers[4], numbers[5], NULL);
	for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
		if (numbers[i])
			Py_DecRef(numbers[i]);
	if (out == Py_None) { /* it has nothing to do with these tensors */
		Py_DecRef(out);
		PyErr_Restore(t, v, tb);
		return call_refuse(c);
	}
	PyObject *dropped[] = {t, v, tb};
	for (int i = 0; i < 3; i++)
		if (dropped[i])
			Py_DecRef(dropped[i]);
	return out;
}

PyObject *py_submit(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *names) {
	(void)self;
	if (!wants(n, 4, 6, "submit"))
		return NULL;
	if (kept_orphans != NULL)
		kept_collect();
	call c = {.send = args[2], .recv = args[3], .send_splits = Py_None, .recv_splits = Py_None};
	pmpi_op *op = &c.op;
	op->size = sizeof *op;
	op->code = as_int(args[0], "code");
	op->group = PyLong_AsLongLong(args[1]);
	op->reduce_op = n > 4 ? as_int(args[4], "reduce_op") : 0;
	c.flags = n > 5 ? as_int(args[5], "flags") : 0;
	op->flags = (uint32_t)(c.flags & ~(SUBMIT_QUIET | SUBMIT_ONCE));
	op->root = op->peer = op->peer2 = -1;
	op->timeout_ns = -1;
	op->scale = 1;
	int wrong = read_fields(op, args + n, names, &c.send_splits, &c.recv_splits);
	if (__builtin_expect(prepared_wanted(), 0))
		return wrong ? NULL : prepared_take(&c);
	if (wrong)
		return call_refuse(&c);
	side send, recv;
	PyObject *out =
		call_describe(&c, &send, &recv) ? describe_failed(&c) : call_carry_out(&c, &send, &recv);
	side_release(&send);
	side_release(&recv);
	return out;
}

int submit_prepare(void) {
	for (int i = 0; i < FIELDS; i++)
		if ((fields[i] = PyUnicode_InternFromString(field_names[i])) == NULL)
			return -1;
	return 0;
}
#endif

#ifdef PMPI_PYMODULE
/* Python's submit: it turns arguments into a pmpi_op, and carries out synchronous operations. */
#define _GNU_SOURCE
#include "submit.h"

#include <string.h>

#include "gil.h"
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

PyObject *result_tuple(const pmpi_result *r) {
	PyObject *t = PyTuple_New(3);
	if (t == NULL)
		return NULL;
	PyTuple_SetItem(t, 0, PyLong_FromLongLong(r->source));
	PyTuple_SetItem(t, 1, PyLong_FromLongLong(r->bytes));
	PyTuple_SetItem(t, 2, PyLong_FromLongLong(r->tag));
	return t;
}

/* run carries out a synchronous op on the calling thread. Returns a tuple, None, or NULL with an
 * exception. */
static PyObject *run(pmpi_op *op, PyObject *send, PyObject *recv, side *a, side *b, int flags) {
	pmpi_work work = 0;
	pmpi_result result;
	PyThreadState *ts = PyEval_SaveThread();
	int rc = pmpi_submit(op, &work, &result);
	gil_take(ts);
	if (rc == 0) {
		if (!(flags & SUBMIT_QUIET))
			tensor_written(recv);
		return pmpi_op_has_result(op->code) ? result_tuple(&result) : none();
	}
	if (work != 0)
		kept_linger(work, send, recv, a, b);
	return raise_last(rc);
}

int call_describe(call *c, side *send, side *recv) {
	send->n = send->n_views = recv->n = recv->n_views = 0;
	send->on_device = recv->on_device = 0;
	if (side_describe(send, c->send, "send") || side_split(send, c->send_splits, "send")) {
		recv->bufs = recv->room, recv->views = recv->view_room;
		recv->n_dims = 0, recv->more_dims = NULL;
		return -1;
	}
	if (side_describe(recv, c->recv, "recv") || side_split(recv, c->recv_splits, "recv") ||
		side_stream(send, recv, &c->op.stream))
		return -1;
	c->op.send = send->bufs;
	c->op.n_send = send->n;
	c->op.recv = recv->bufs;
	c->op.n_recv = recv->n;
	return 0;
}

PyObject *call_refuse(const call *c) {
	name_error(pmpi_op_name(c->op.code));
	operation_refuse(c->op.group, c->op.code);
	return NULL;
}

PyObject *call_carry_out(call *c, side *send, side *recv) {
	return c->op.flags & PMPI_FLAG_ASYNC
			   ? operation_start(&c->op, c->send, c->recv, send, recv, c->flags)
			   : run(&c->op, c->send, c->recv, send, recv, c->flags);
}

PyObject *py_submit(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *names) {
	(void)self;
	if (!wants(n, 4, 6, "submit"))
		return NULL;
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
		call_describe(&c, &send, &recv) ? call_refuse(&c) : call_carry_out(&c, &send, &recv);
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

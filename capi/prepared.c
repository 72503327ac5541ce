#ifdef PMPI_PYMODULE
/* The Python object of a call that is made again and again: paddlempi.PreparedCall is its subclass.
 * It owns what submit is called with. The tensors are described at every call, because their memory
 * may change; that is a small part of what a call takes. The GIL guards all fields. */
#define _GNU_SOURCE
#include "prepared.h"

#include <stdlib.h>

#include "gil.h"
#include "kept.h"
#include "operation.h"
#include "pytools.h"

typedef struct extent {
	int64_t count;
	int32_t dtype;
} extent;

typedef struct prepared {
	PyObject head;
	call call;       /* owns its objects; op has no buffers. send is NULL once it was freed */
	extent *extents; /* of the tensors as they were: first those of send, then those of recv */
	int32_t n_send, n_recv;
	PyObject *operation; /* what start() has begun and wait() has not ended, or NULL */
	PyObject *ranks;     /* a sequence: the global rank of each rank of the group; NULL: the same */
	int64_t source;      /* the rank of the group from which the last message came, or -1 */
	char writes;         /* a call writes to the tensors of recv */
	char busy;           /* a thread is inside a call */
} prepared;

static PyTypeObject *type;
static PyObject *subtype; /* the type of the object that is to be made */
static prepared *taken;   /* the object that was made */
PyThreadState *prepared_for;

static const char *name_of(const prepared *p) {
	return pmpi_op_name(p->call.op.code);
}

/* ---- how one is made ---- */

static extent extent_of(const pmpi_buf *b) {
	return (extent){.count = b->count, .dtype = b->dtype};
}

/* note_extents notes how long the tensors are. Returns 0, or -1 with an exception set. */
static int note_extents(prepared *p, const side *send, const side *recv) {
	p->n_send = send->n;
	p->n_recv = recv->n;
	p->extents = malloc((size_t)(send->n + recv->n + 1) * sizeof *p->extents);
	if (p->extents == NULL) {
		PyErr_NoMemory();
		return -1;
	}
	for (int32_t i = 0; i < send->n; i++)
		p->extents[i] = extent_of(&send->bufs[i]);
	for (int32_t i = 0; i < recv->n; i++)
		p->extents[send->n + i] = extent_of(&recv->bufs[i]);
	return 0;
}

/* own returns a new reference to x. If x is a list, which the caller may change, it returns a tuple
 * of its items. */
static PyObject *own(PyObject *x) {
	if (PyType_GetFlags(x->ob_type) & TPFLAGS_LIST)
		return PyList_AsTuple(x);
	Py_IncRef(x);
	return x;
}

/* check lets the core check the call. Returns 0, or -1 with an exception set. */
static int check(prepared *p) {
	side send, recv;
	int rc = call_describe(&p->call, &send, &recv);
	if (rc) {
		name_error(name_of(p));
	} else if ((rc = note_extents(p, &send, &recv)) == 0) {
		PyThreadState *ts = PyEval_SaveThread();
		int code = pmpi_prepare(&p->call.op);
		gil_take(ts);
		if (code) {
			raise_last(code);
			rc = -1;
		}
	}
	side_release(&send);
	side_release(&recv);
	p->call.op.send = p->call.op.recv = NULL;
	return rc;
}

PyObject *prepared_take(const call *c) {
	if (taken)
		return raise_code(PMPI_ERR_UNSUPPORTED, "prepare: a call that is several operations");
	prepared *p = (prepared *)PyType_GenericAlloc((PyTypeObject *)subtype, 0);
	if (p == NULL)
		return NULL;
	p->call.op = c->op;
	p->call.op.flags &= ~(uint32_t)PMPI_FLAG_ASYNC;
	p->call.flags = c->flags;
	p->source = -1;
	if ((p->call.send = own(c->send)) && (p->call.recv = own(c->recv)) &&
		(p->call.send_splits = own(c->send_splits)) &&
		(p->call.recv_splits = own(c->recv_splits)) && check(p) == 0) {
		p->writes = !(c->flags & SUBMIT_QUIET);
		if (!tensor_has_version(p->call.recv))
			p->call.flags |= SUBMIT_QUIET; /* nobody to tell */
		taken = p;
		pmpi_result none_yet = {.source = -1, .tag = -1};
		return pmpi_op_has_result(c->op.code) ? result_tuple(&none_yet) : none();
	}
	Py_DecRef(&p->head);
	return NULL;
}

PyObject *py_prepare_next(PyObject *self, PyObject *const *args, Py_ssize_t n) {
	(void)self;
	if (!wants(n, 1, 1, "prepare_next"))
		return NULL;
	assign(&subtype, args[0]);
	prepared_for = PyThreadState_Get();
	return none();
}

PyObject *py_prepared(PyObject *self, PyObject *const *args, Py_ssize_t n) {
	(void)self;
	if (!wants(n, 0, 1, "prepared"))
		return NULL;
	prepared *p = taken;
	taken = NULL;
	prepared_for = NULL;
	if (p == NULL)
		return none();
	if (n > 0 && args[0] != Py_None)
		assign(&p->ranks, args[0]);
	return &p->head;
}

PyObject *py_prepared_type(PyObject *self, PyObject *const *args, Py_ssize_t n) {
	(void)self, (void)args;
	if (!wants(n, 0, 0, "prepared_type"))
		return NULL;
	Py_IncRef((PyObject *)type);
	return (PyObject *)type;
}

/* ---- its calls ---- */

/* unchanged tells whether a side's tensors are as long as they were, and of the same dtypes. If
 * not, it sets an exception. */
static int unchanged(const prepared *p, const side *s, const extent *were, int32_t n,
					 const char *name) {
	for (int32_t i = 0; i < n && s->n == n; i++) {
		if (s->bufs[i].dtype != were[i].dtype) {
			raise_code(PMPI_ERR_TYPE,
					   "%s tensor %d has another dtype than when the call was "
					   "prepared; prepare it again",
					   name, i);
			return 0;
		}
		if (s->bufs[i].count != were[i].count) {
			raise_code(PMPI_ERR_ARGUMENT,
					   "%s tensor %d has %lld elements; it had %lld when the call was prepared; "
					   "prepare it again",
					   name, i, (long long)s->bufs[i].count, (long long)were[i].count);
			return 0;
		}
	}
	return s->n == n;
}

/* is_idle tells whether a call may begin. If not, it sets an exception. */
static int is_idle(const prepared *p) {
	if (p->call.send == NULL)
		raise_code(PMPI_ERR_ARGUMENT, "%s: the prepared call was freed", name_of(p));
	else if (p->busy)
		raise_code(PMPI_ERR_ARGUMENT,
				   "%s: the prepared call is under way in another thread, or in "
				   "the call that a signal handler interrupted; one at a time",
				   name_of(p));
	else if (p->operation)
		raise_code(PMPI_ERR_ARGUMENT,
				   "%s: the prepared call was started and has not ended: call wait() first",
				   name_of(p));
	else
		return 1;
	return 0;
}

/* carry_out makes the call, with further flags of its op. Returns as call_carry_out. */
static PyObject *carry_out(prepared *p, uint32_t flags) {
	kept_collect();
	if (!is_idle(p))
		return NULL;
	call c = p->call;
	c.op.flags |= flags;
	p->busy = 1;
	side send, recv;
	PyObject *out = call_describe(&c, &send, &recv) ||
							!unchanged(p, &send, p->extents, p->n_send, "send") ||
							!unchanged(p, &recv, p->extents + p->n_send, p->n_recv, "recv")
						? call_refuse(&c)
						: call_carry_out(&c, &send, &recv);
	side_release(&send);
	side_release(&recv);
	p->busy = 0;
	return out;
}

/* global_rank returns the global rank of a rank of the group. */
static PyObject *global_rank(const prepared *p, int64_t rank) {
	return p->ranks && rank >= 0 ? PySequence_GetItem(p->ranks, (Py_ssize_t)rank)
								 : PyLong_FromLongLong(rank);
}

static PyObject *prepared_call(PyObject *self, PyObject *args, PyObject *named) {
	prepared *p = (prepared *)self;
	if (PyTuple_Size(args) != 0 || named != NULL) {
		PyErr_SetString(PyExc_TypeError, "a prepared call takes no arguments");
		return NULL;
	}
	PyObject *out = carry_out(p, 0);
	if (out == NULL || out == Py_None)
		return out;
	p->source = PyLong_AsLongLong(PyTuple_GetItem(out, 0));
	Py_DecRef(out);
	return global_rank(p, p->source);
}

static PyObject *prepared_start(PyObject *self, PyObject *unused) {
	(void)unused;
	prepared *p = (prepared *)self;
	PyObject *operation = carry_out(p, PMPI_FLAG_ASYNC);
	if (operation == NULL)
		return NULL;
	p->operation = operation;
	return none();
}

/* prepared_finish waits for what start() has begun. Returns None, or the operation if a device goes
 * on with it. */
static PyObject *prepared_finish(PyObject *self, PyObject *const *args, Py_ssize_t n) {
	prepared *p = (prepared *)self;
	if (!wants(n, 1, 1, "finish"))
		return NULL;
	int64_t limit = to_ns(PyFloat_AsDouble(args[0]));
	if (PyErr_Occurred())
		return NULL;
	PyObject *o = p->operation;
	if (o == NULL)
		return raise_code(PMPI_ERR_ARGUMENT,
						  "%s: the prepared call was not started: wait() ends "
						  "what start() has begun, once",
						  name_of(p));
	Py_IncRef(o);
	int64_t source = -1;
	int state = operation_finish(o, limit, &source);
	if (state != OPERATION_UNDER_WAY && p->operation == o) {
		p->operation = NULL;
		p->source = source;
		Py_DecRef(o);
	}
	if (state == OPERATION_ON_DEVICE)
		return o;
	Py_DecRef(o);
	return state == OPERATION_OVER ? none() : NULL;
}

static PyObject *get_operation(PyObject *self, void *unused) {
	(void)unused;
	PyObject *o = ((prepared *)self)->operation;
	if (o == NULL)
		return none();
	Py_IncRef(o);
	return o;
}

static PyObject *get_written(PyObject *self, void *unused) {
	(void)unused;
	prepared *p = (prepared *)self;
	if (p->call.send == NULL || !p->writes)
		return none();
	Py_IncRef(p->call.recv);
	return p->call.recv;
}

static PyObject *get_source(PyObject *self, void *unused) {
	(void)unused;
	prepared *p = (prepared *)self;
	return global_rank(p, p->source);
}

static PyObject *get_name(PyObject *self, void *unused) {
	(void)unused;
	return PyUnicode_FromString(name_of((prepared *)self));
}

/* ---- the object ---- */

static int prepared_traverse(PyObject *self, visitproc visit, void *arg) {
	prepared *p = (prepared *)self;
	PyObject *seen[] = {(PyObject *)self->ob_type, p->call.send, p->call.recv, p->call.send_splits,
						p->call.recv_splits,       p->operation, p->ranks};
	for (size_t i = 0; i < sizeof seen / sizeof seen[0]; i++) {
		int rc = seen[i] ? visit(seen[i], arg) : 0;
		if (rc)
			return rc;
	}
	return 0;
}

/* prepared_clear drops all that p holds. An operation under way keeps its tensors itself. */
static int prepared_clear(PyObject *self) {
	prepared *p = (prepared *)self;
	PyObject **held[] = {&p->call.send,        &p->call.recv, &p->call.send_splits,
						 &p->call.recv_splits, &p->operation, &p->ranks};
	for (size_t i = 0; i < sizeof held / sizeof held[0]; i++) {
		PyObject *x = *held[i];
		*held[i] = NULL;
		if (x)
			Py_DecRef(x);
	}
	pmpi_unprepare(p->call.op.prepared);
	p->call.op.prepared = 0;
	return 0;
}

static PyObject *prepared_free(PyObject *self, PyObject *unused) {
	(void)unused;
	prepared *p = (prepared *)self;
	if (p->busy)
		return raise_code(PMPI_ERR_ARGUMENT, "%s: the prepared call is under way", name_of(p));
	prepared_clear(self);
	return none();
}

static void prepared_dealloc(PyObject *self) {
	prepared *p = (prepared *)self;
	PyObject_GC_UnTrack(self);
	PyObject *t, *v, *tb;
	PyErr_Fetch(&t, &v, &tb);
	prepared_clear(self);
	free(p->extents);
	PyTypeObject *of = self->ob_type;
	PyObject_GC_Del(self);
	Py_DecRef((PyObject *)of);
	PyErr_Restore(t, v, tb);
}

static PyMethodDef prepared_methods[] = {
	{"start", (void *)prepared_start, METH_NOARGS,
	 "start(): begin the operation and return at once. wait() must follow before the next one."},
	{"finish", (void *)prepared_finish, METH_FASTCALL,
	 "finish(timeout): wait for what start() has begun. Returns None, or the Operation if a device "
	 "goes on with it."},
	{"free", (void *)prepared_free, METH_NOARGS,
	 "free(): drop the tensors. What start() has begun goes on, and keeps its tensors."},
	{NULL, NULL, 0, NULL},
};

static PyGetSetDef prepared_getset[] = {
	{"operation", get_operation, NULL, "What start() has begun and wait() has not ended.", NULL},
	{"written", get_written, NULL, "The tensors that a call writes to, or None.", NULL},
	{"source", get_source, NULL, "The global rank from which the last message came, or -1.", NULL},
	{"name", get_name, NULL, "The name of the operation.", NULL},
	{NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot prepared_slots[] = {
	{Py_tp_dealloc, (void *)prepared_dealloc},
	{Py_tp_traverse, (void *)prepared_traverse},
	{Py_tp_clear, (void *)prepared_clear},
	{Py_tp_call, (void *)prepared_call},
	{Py_tp_methods, prepared_methods},
	{Py_tp_getset, prepared_getset},
	{Py_tp_doc, "A call that is made again and again. Only prepared() returns one."},
	{0, NULL},
};

static PyType_Spec prepared_spec = {
	.name = "paddlempi._core.Prepared",
	.basicsize = sizeof(prepared),
	.flags = TPFLAGS_DEFAULT | TPFLAGS_BASETYPE | TPFLAGS_DISALLOW_INSTANTIATION | TPFLAGS_HAVE_GC,
	.slots = prepared_slots,
};

int prepared_prepare(void) {
	type = (PyTypeObject *)PyType_FromSpec(&prepared_spec);
	return type ? 0 : -1;
}
#endif

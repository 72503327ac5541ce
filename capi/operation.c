#ifdef PMPI_PYMODULE
/* The Python object of an operation that goes on after its call. It owns the number of the core's
 * work, the tensors and the outcome. Neither Python nor C has another table of works. An operation
 * costs two calls of the core: submit, and then wait() or next_completions(), which returns its
 * end. The GIL guards all fields, except for the word state of kept. */
#define _GNU_SOURCE
#include "operation.h"

#include <stdlib.h>
#include <time.h>

#include "gil.h"
#include "guard.h"
#include "kept.h"
#include "pytools.h"
#include "tensor.h"

/* Invariant: once done is 1, error and result are the outcome and do not change, except that test()
 * sets error if it finds the device lost. */
typedef struct operation {
	PyObject head;
	pmpi_work work;   /* 0: the core has released it */
	pmpi_work number; /* what work was at first */
	kept *kept;       /* NULL if nothing is kept any more */
	pmpi_result result;
	PyObject *error;                   /* the exception with which it ended, or NULL */
	PyObject *at_end;                  /* called once at the end, or NULL */
	PyObject *contexts;                /* a list, for next_completions, or NULL; see notify */
	struct operation *previous, *next; /* in the list awaited */
	char done, concluding, has_result, bump_at_end, device_done;
	char late; /* the contexts were given with late, so a thread may take them */
} operation;

static PyTypeObject *type;
static operation *awaited; /* operations with a context */

/* ---- the end of an operation ---- */

/* yield_gil lets other threads have the GIL for a moment. */
static void yield_gil(void) {
	PyThreadState *ts = PyEval_SaveThread();
	nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
	gil_take(ts);
}

/* last_exception returns the exception of the call that has just returned rc, and does not set
 * it. */
static PyObject *last_exception(int rc) {
	PyObject *t, *error, *tb;
	raise_last(rc);
	PyErr_Fetch(&t, &error, &tb);
	if (t)
		Py_DecRef(t);
	if (tb)
		Py_DecRef(tb);
	return error;
}

/* call calls f(). Nobody is there to get its exception. */
static void call(PyObject *f) {
	PyObject *answer = PyObject_CallFunctionObjArgs(f, NULL);
	if (answer)
		Py_DecRef(answer);
	else
		PyErr_WriteUnraisable(f);
}

/* conclude records the outcome of o, once, and drops its tensors unless MPI or a device still uses
 * them. If rc is not 0, the error is that of this thread's latest call of the core. */
static void conclude(operation *o, int rc, const pmpi_result *r) {
	if (r->released && rc == 0)
		o->work = 0;
	while (o->concluding && !o->done)
		yield_gil(); /* another thread runs at_end */
	if (o->done)
		return;
	o->concluding = 1;
	if (rc) {
		o->error = last_exception(rc);
		o->result = (pmpi_result){.source = -1, .tag = -1};
	} else {
		o->result = *r;
		if (!o->has_result)
			o->result.source = o->result.tag = -1;
	}
	if (o->bump_at_end && o->kept)
		tensor_written(o->kept->recv);
	if (o->at_end) {
		call(o->at_end);
		Py_DecRef(o->at_end);
		o->at_end = NULL;
	}
	o->done = 1;
	if (rc == 0 && r->device == 0 && o->kept) {
		kept *k = o->kept;
		if (o->work == 0)
			o->kept = NULL;
		kept_drop(k);
		if (o->work == 0)
			free(k);
	}
}

/* settle waits until o has ended, for at most limit_ns. Returns 0 if o has ended. Returns -1 with a
 * Python exception set if the limit has passed or a signal handler raised. */
static int settle(operation *o, int64_t limit_ns) {
	if (o->done)
		return 0;
	pmpi_result r = {0};
	PyThreadState *ts = PyEval_SaveThread();
	int rc = pmpi_finish(o->work, limit_ns, &r);
	gil_take(ts);
	if (rc == PMPI_ERR_INTERRUPTED && PyErr_Occurred())
		return -1;
	/* Another thread got the end of the operation, and the core has released the work. Wait until
	 * that thread has recorded the outcome. */
	while (rc && r.released && !o->done)
		yield_gil();
	if (o->done)
		return 0;
	if (rc == PMPI_ERR_NOT_READY) {
		raise_last(rc);
		return -1;
	}
	conclude(o, rc, &r);
	return 0;
}

/* ---- the beginning ---- */

void operation_refuse(int64_t group, int32_t code) {
	PyObject *t, *v, *tb;
	PyErr_Fetch(&t, &v, &tb);
	PyThreadState *ts = PyEval_SaveThread();
	pmpi_refuse(group, code); /* does nothing for a message */
	gil_take(ts);
	PyErr_Restore(t, v, tb);
}

PyObject *operation_start(pmpi_op *op, PyObject *send, PyObject *recv, side *a, side *b,
						  int flags) {
	operation *o = (operation *)PyType_GenericAlloc(type, 0);
	kept *k = o ? kept_new(a, b) : NULL;
	if (k == NULL) {
		if (o)
			Py_DecRef(&o->head);
		operation_refuse(op->group, op->code);
		return NULL;
	}
	o->kept = k;
	o->has_result = (char)pmpi_op_has_result(op->code);
	op->cookie = (uint64_t)(uintptr_t)o;
	op->state = &k->state;
	PyThreadState *ts = PyEval_SaveThread();
	int rc = pmpi_submit(op, &o->work, &o->result);
	gil_take(ts);
	o->number = o->work;
	if (o->work != 0)
		kept_take(k, op, send, recv, a, b); /* even after an error: MPI may still use the memory */
	if (rc) {
		raise_last(rc);
		Py_DecRef(&o->head);
		return NULL;
	}
	if (!(flags & SUBMIT_QUIET))
		tensor_written(recv);
	o->bump_at_end = !(flags & (SUBMIT_QUIET | SUBMIT_ONCE));
	if (o->work == 0) { /* it is over, and k has taken nothing */
		o->kept = NULL;
		free(k);
		pmpi_result r = o->result;
		r.released = 1;
		conclude(o, 0, &r);
	}
	return &o->head;
}

/* ---- the object ---- */

/* The collector must see the error: an exception holds the frames that it passed through, and a
 * frame may hold this object, which is a cycle. The collector does not see the tensors, because it
 * could free them while MPI uses them. */
static int op_traverse(PyObject *self, visitproc visit, void *arg) {
	operation *o = (operation *)self;
	PyObject *seen[] = {(PyObject *)self->ob_type, o->error, o->at_end, o->contexts};
	for (size_t i = 0; i < sizeof seen / sizeof seen[0]; i++) {
		int rc = seen[i] ? visit(seen[i], arg) : 0;
		if (rc)
			return rc;
	}
	return 0;
}

static int op_clear(PyObject *self) {
	operation *o = (operation *)self;
	PyObject *error = o->error, *at_end = o->at_end;
	o->error = o->at_end = NULL;
	if (error)
		Py_DecRef(error);
	if (at_end)
		Py_DecRef(at_end);
	return 0;
}

static void op_dealloc(PyObject *self) {
	operation *o = (operation *)self;
	PyObject_GC_UnTrack(self);
	PyObject *t, *v, *tb;
	PyErr_Fetch(&t, &v, &tb);
	if (o->kept)
		kept_release(o->work, o->kept);
	op_clear(self);
	PyTypeObject *of = self->ob_type;
	PyObject_GC_Del(self);
	Py_DecRef((PyObject *)of);
	if (kept_orphans != NULL)
		kept_collect();
	PyErr_Restore(t, v, tb);
}

static PyObject *raise_error_of(operation *o) {
	PyErr_SetObject((PyObject *)o->error->ob_type, o->error);
	return NULL;
}

static PyObject *op_wait(PyObject *self, PyObject *const *args, Py_ssize_t n) {
	operation *o = (operation *)self;
	if (!wants(n, 0, 1, "wait"))
		return NULL;
	if (!o->done) {
		int64_t limit = n > 0 ? to_ns(PyFloat_AsDouble(args[0])) : -1;
		if (PyErr_Occurred() || settle(o, limit))
			return NULL;
	}
	return o->error ? raise_error_of(o) : none();
}

int operation_finish(PyObject *self, int64_t limit_ns, int64_t *source) {
	operation *o = (operation *)self;
	if (settle(o, limit_ns))
		return OPERATION_UNDER_WAY;
	*source = o->result.source;
	if (o->error) {
		raise_error_of(o);
		return OPERATION_FAILED;
	}
	return o->result.device ? OPERATION_ON_DEVICE : OPERATION_OVER;
}

/* note_device_done records that the device is done too, and drops the tensors. */
static void note_device_done(operation *o) {
	o->device_done = 1;
	if (o->kept)
		kept_drop(o->kept);
}

static PyObject *op_test(PyObject *self, PyObject *unused) {
	(void)unused;
	operation *o = (operation *)self;
	if (o->done && (o->device_done || o->error || o->result.device == 0))
		return PyBool_FromLong(1);
	PyThreadState *ts = PyEval_SaveThread();
	int rc = pmpi_test(o->work);
	gil_take(ts);
	if (rc == 0)
		return PyBool_FromLong(0);
	PyObject *lost = NULL;
	if (rc < 0 && !o->done && rc != -PMPI_ERR_CUDA && rc != -PMPI_ERR_ARGUMENT)
		return raise_last(-rc);
	if (rc == -PMPI_ERR_CUDA) { /* the device is lost: nothing will happen on it any more */
		lost = last_exception(-rc);
	}
	if (!o->done && settle(o, 0)) {
		if (lost)
			Py_DecRef(lost);
		if (!o->done) { /* another thread is recording the outcome at this moment */
			PyErr_Clear();
			return PyBool_FromLong(0);
		}
		PyErr_Clear();
	}
	if (o->result.device)
		note_device_done(o);
	if (lost && o->error == NULL)
		o->error = lost;
	else if (lost)
		Py_DecRef(lost);
	return PyBool_FromLong(1);
}

static PyObject *op_order(PyObject *self, PyObject *const *args, Py_ssize_t n) {
	if (!wants(n, 1, 1, "order"))
		return NULL;
	uint64_t stream = PyLong_AsUnsignedLongLong(args[0]);
	if (PyErr_Occurred())
		return NULL;
	pmpi_work work = ((operation *)self)->work;
	PyThreadState *ts = PyEval_SaveThread();
	int rc = pmpi_order(work, stream);
	gil_take(ts);
	return rc ? raise_last(rc) : none();
}

static PyObject *op_let_go(PyObject *self, PyObject *unused) {
	(void)unused;
	operation *o = (operation *)self;
	if (o->kept)
		kept_drop(o->kept);
	return none();
}

static PyObject *op_at_end(PyObject *self, PyObject *const *args, Py_ssize_t n) {
	operation *o = (operation *)self;
	if (!wants(n, 1, 1, "at_end"))
		return NULL;
	while (o->concluding && !o->done)
		yield_gil();
	if (o->done)
		return PyBool_FromLong(0);
	assign(&o->at_end, args[0]);
	return PyBool_FromLong(1);
}

/* raise_forked sets the exception of a call in the child of a fork. Returns NULL. */
static PyObject *raise_forked(void) {
	pmpi_next_completions(NULL, 0, 0); /* in the child it only sets the error */
	return raise_last(PMPI_ERR_FORKED);
}

/* wish tells the core what to do at the end of o. It sets the bits of the argument set in the state
 * word, and clears those of the argument clear. Returns 0. If o is already over for the core, it
 * changes nothing and returns 1; the core has then seen the bits that were set before. */
static int wish(operation *o, uint32_t set, uint32_t clear) {
	if (o->done || o->kept == NULL)
		return 1;
	uint32_t *state = &o->kept->state;
	uint32_t seen = __atomic_load_n(state, __ATOMIC_SEQ_CST);
	while (!(seen & PMPI_STATE_OVER))
		if (__atomic_compare_exchange_n(state, &seen, (seen | set) & ~clear, 0, __ATOMIC_SEQ_CST,
										__ATOMIC_SEQ_CST))
			return 0;
	return 1;
}

/* extend appends items to a list. Returns 0, or -1 with an exception. */
static int extend(PyObject *list, PyObject *items) {
	for (Py_ssize_t i = 0; i < PyList_Size(items); i++)
		if (PyList_Append(list, PyList_GetItem(items, i)))
			return -1;
	return 0;
}

static PyObject *op_notify(PyObject *self, PyObject *const *args, Py_ssize_t n) {
	operation *o = (operation *)self;
	if (!wants(n, 1, 2, "notify"))
		return NULL;
	int late = n > 1 && PyObject_IsTrue(args[1]);
	if (pmpi_guard_forked() && !o->done)
		return raise_forked();
	if (o->contexts == NULL) {
		PyObject *contexts = PyList_New(0);
		if (contexts == NULL)
			return NULL;
		if (wish(o, PMPI_STATE_NOTIFY | (late ? PMPI_STATE_LATE : 0), 0)) {
			Py_DecRef(contexts);
			return PyBool_FromLong(0);
		}
		o->late = (char)late;
		o->contexts = contexts;
		Py_IncRef(self); /* the cookie is a reference until the completion is read */
		o->next = awaited;
		if (awaited)
			awaited->previous = o;
		awaited = o;
	} else if (o->late && !late) {
		o->late = 0;
		wish(o, 0, PMPI_STATE_LATE);
	}
	if (!late)
		pmpi_hurry(o->work);
	return PyList_Append(o->contexts, args[0]) ? NULL : PyBool_FromLong(1);
}

/* take_off_list takes o off the list awaited, and drops the reference that the cookie was. Returns
 * the contexts of o. */
static PyObject *take_off_list(operation *o) {
	PyObject *contexts = o->contexts;
	if (o->previous)
		o->previous->next = o->next;
	else
		awaited = o->next;
	if (o->next)
		o->next->previous = o->previous;
	o->previous = o->next = NULL;
	o->contexts = NULL;
	Py_DecRef(&o->head);
	return contexts;
}

static PyObject *op_take_contexts(PyObject *self, PyObject *unused) {
	(void)unused;
	operation *o = (operation *)self;
	/* If the core has seen the wish, it is about to list the completion, or next_completions() has
	 * read it and is about to take o off the list. */
	while (o->contexts && o->late) {
		if (!wish(o, 0, PMPI_STATE_NOTIFY | PMPI_STATE_LATE) || pmpi_take_completion(o->number))
			return take_off_list(o);
		yield_gil();
	}
	return PyList_New(0);
}

PyObject *py_next_completions(PyObject *self, PyObject *const *args, Py_ssize_t n) {
	(void)self;
	enum { BATCH = 32 };
	pmpi_completion ended[BATCH];
	if (!wants(n, 0, 2, "next_completions"))
		return NULL;
	int64_t limit = n > 0 ? to_ns(PyFloat_AsDouble(args[0])) : -1;
	if (PyErr_Occurred())
		return NULL;
	if (pmpi_guard_forked())
		return raise_forked();
	PyThreadState *ts = PyEval_SaveThread();
	int got = pmpi_next_completions(ended, BATCH, limit);
	gil_take(ts);
	if (n > 1 && args[1] != Py_None)
		call(args[1]);
	PyObject *contexts = PyList_New(0);
	for (int i = 0; i < got; i++) {
		operation *o = (operation *)(uintptr_t)ended[i].cookie;
		if (o == NULL || o->contexts == NULL)
			continue; /* submitted with the flag NOTIFY, by another user of the core */
		if (ended[i].code) {
			if (!o->done)
				conclude(o, pmpi_wait(o->work, 0, &ended[i].result), &ended[i].result);
		} else {
			conclude(o, 0, &ended[i].result);
		}
		PyObject *taken = take_off_list(o);
		if (contexts && extend(contexts, taken)) {
			Py_DecRef(contexts);
			contexts = NULL;
		}
		Py_DecRef(taken);
	}
	kept_collect();
	return contexts;
}

PyObject *py_awaited(PyObject *self, PyObject *const *args, Py_ssize_t n) {
	(void)self, (void)args;
	if (!wants(n, 0, 0, "awaited"))
		return NULL;
	PyObject *contexts = PyList_New(0);
	for (operation *o = awaited; o && contexts; o = o->next) {
		if (extend(contexts, o->contexts)) {
			Py_DecRef(contexts);
			return NULL;
		}
	}
	return contexts;
}

static PyObject *get_done(PyObject *self, void *unused) {
	(void)unused;
	return PyBool_FromLong(((operation *)self)->done);
}

static PyObject *get_error(PyObject *self, void *unused) {
	(void)unused;
	PyObject *error = ((operation *)self)->error;
	if (error == NULL)
		return none();
	Py_IncRef(error);
	return error;
}

static PyObject *get_source(PyObject *self, void *unused) {
	(void)unused;
	operation *o = (operation *)self;
	return PyLong_FromLongLong(o->done ? o->result.source : -1);
}

static PyObject *get_device(PyObject *self, void *unused) {
	(void)unused;
	operation *o = (operation *)self;
	return PyLong_FromLongLong(o->done && !o->device_done ? o->result.device : 0);
}

static PyObject *get_tensors(PyObject *self, void *unused) {
	(void)unused;
	kept *k = ((operation *)self)->kept;
	if (k == NULL || k->send == NULL)
		return none();
	PyObject *both = PyTuple_New(2);
	if (both) {
		Py_IncRef(k->send);
		Py_IncRef(k->recv);
		PyTuple_SetItem(both, 0, k->send);
		PyTuple_SetItem(both, 1, k->recv);
	}
	return both;
}

static PyMethodDef op_methods[] = {
	{"wait", (void *)op_wait, METH_FASTCALL,
	 "wait(timeout=-1.0): wait until the operation is over; for tensors on a device, until its "
	 "last "
	 "copy or kernel is queued. Raises the error with which it ended, or NotReadyError when "
	 "timeout "
	 "seconds have passed (below 0: no limit)."},
	{"test", (void *)op_test, METH_NOARGS,
	 "test(): whether the operation is over, on its device too."},
	{"order", (void *)op_order, METH_FASTCALL,
	 "order(stream): make a CUDA stream wait for what the operation left on its device."},
	{"let_go", (void *)op_let_go, METH_NOARGS,
	 "let_go(): drop the tensors now, if their allocator knows which streams still use them."},
	{"at_end", (void *)op_at_end, METH_FASTCALL,
	 "at_end(call): run call() once when the operation ends, before any wait() returns. False: the "
	 "operation is over, and call() does not run."},
	{"notify", (void *)op_notify, METH_FASTCALL,
	 "notify(context, late=False): let next_completions() return context when the operation ends. "
	 "late: only when no thread has waited in the core for 2 ms, unless take_contexts() came "
	 "first. "
	 "False: the operation is over, and next_completions() does not."},
	{"take_contexts", (void *)op_take_contexts, METH_NOARGS,
	 "take_contexts(): return the contexts if all were given to notify() with late, else an empty "
	 "list. next_completions() does not return them then."},
	{NULL, NULL, 0, NULL},
};

static PyGetSetDef op_getset[] = {
	{"done", get_done, NULL, "Whether wait() would return at once.", NULL},
	{"error", get_error, NULL, "The exception with which the operation ended, or None.", NULL},
	{"source", get_source, NULL, "The group rank from which a message came, or -1.", NULL},
	{"device", get_device, NULL, "1 + the CUDA device that still works on the operation, or 0.",
	 NULL},
	{"tensors", get_tensors, NULL, "(send, recv) while they are kept, or None.", NULL},
	{NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot op_slots[] = {
	{Py_tp_dealloc, (void *)op_dealloc},
	{Py_tp_traverse, (void *)op_traverse},
	{Py_tp_clear, (void *)op_clear},
	{Py_tp_methods, op_methods},
	{Py_tp_getset, op_getset},
	{Py_tp_doc, "An operation that goes on after its call. Only submit makes it."},
	{0, NULL},
};

static PyType_Spec op_spec = {
	.name = "paddlempi._core.Operation",
	.basicsize = sizeof(operation),
	.flags = TPFLAGS_DEFAULT | TPFLAGS_DISALLOW_INSTANTIATION | TPFLAGS_HAVE_GC,
	.slots = op_slots,
};

int operation_prepare(void) {
	type = (PyTypeObject *)PyType_FromSpec(&op_spec);
	return type ? 0 : -1;
}
#endif

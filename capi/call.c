#ifdef PMPI_PYMODULE
/* One call of submit: its tensors are described, and it is carried out; see call.h. */
#define _GNU_SOURCE
#include "call.h"

#include "crash.h"
#include "gil.h"
#include "guard.h"
#include "kept.h"
#include "operation.h"
#include "pytools.h"
#include "quick.h"

PyObject *result_tuple(const pmpi_result *r) {
	PyObject *t = PyTuple_New(3);
	if (t == NULL)
		return NULL;
	PyTuple_SetItem(t, 0, PyLong_FromLongLong(r->source));
	PyTuple_SetItem(t, 1, PyLong_FromLongLong(r->bytes));
	PyTuple_SetItem(t, 2, PyLong_FromLongLong(r->tag));
	return t;
}

/* at_once carries out a short message, if that needs no wait. Returns 0, or 1 with nothing done. */
static int at_once(const pmpi_op *op, pmpi_result *result) {
	if (!quick_is_for(op))
		return 1;
	crash_call call = {.what = op, .kind = CRASH_OP};
	crash_at_once = &call;
	int rc = quick_message(op, result, QUICK_SHORT, 0);
	crash_at_once = NULL;
	return rc;
}

/* run carries out a synchronous op on the calling thread. Returns a tuple, None, or NULL with an
 * exception. */
static PyObject *run(pmpi_op *op, PyObject *send, PyObject *recv, side *a, side *b, int flags) {
	pmpi_work work = 0;
	pmpi_result result;
	/* To release the GIL takes longer. */
	int rc = pmpi_guard_forked() || at_once(op, &result);
	if (rc) {
		PyThreadState *ts = PyEval_SaveThread();
		rc = pmpi_submit(op, &work, &result);
		gil_take(ts);
	}
	if (rc == 0) {
		if (!(flags & SUBMIT_QUIET))
			tensor_written(recv);
		return pmpi_op_has_result(op->code) ? result_tuple(&result) : none();
	}
	if (work != 0)
		kept_linger(op, work, send, recv, a, b);
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
#endif

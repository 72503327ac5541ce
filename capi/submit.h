/* Python's submit; see submit.c. */
#ifndef PMPI_SUBMIT_H
#define PMPI_SUBMIT_H

#include "pmpi.h"
#include "pyabi.h"
#include "tensor.h"

/* A call of submit: its arguments, of which op has those that are no tensors. */
typedef struct call {
	pmpi_op op;
	PyObject *send, *recv;               /* tensors, or None */
	PyObject *send_splits, *recv_splits; /* numbers of rows, or None */
	int flags;                           /* those of op and SUBMIT_* */
} call;

/* call_describe describes the tensors of c, and puts the buffers into c->op. Returns 0, or -1 with
 * a Python exception set. side_release of both sides must follow in either case. */
int call_describe(call *c, side *send, side *recv);

/* call_refuse tells the other ranks that this rank's arguments are wrong. The exception is set.
 * Returns NULL. */
PyObject *call_refuse(const call *c);

/* call_carry_out carries out c, whose tensors are described. Returns None, the tuple of a message
 * that was received, an Operation, or NULL with a Python exception set. */
PyObject *call_carry_out(call *c, side *send, side *recv);

/* result_tuple returns (source, bytes, tag). */
PyObject *result_tuple(const pmpi_result *r);

/* submit_prepare makes the names of the keyword arguments. Returns 0, or -1 with a Python exception
 * set. */
int submit_prepare(void);

/* py_submit is the function of the module; see the table in pymodule.c. */
PyObject *py_submit(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *names);

#endif

/* Operations that go on after their call, as Python objects; see operation.c. */
#ifndef PMPI_OPERATION_H
#define PMPI_OPERATION_H

#include "pyabi.h"
#include "tensor.h"

/* operation_prepare makes the type. Returns 0, or -1 with a Python exception set. */
int operation_prepare(void);

/* Flags of Python's submit that the core does not know (python/paddlempi/_native.py). */
enum { SUBMIT_QUIET = 1 << 16, SUBMIT_ONCE = 1 << 17 };

/* operation_start begins op, which goes on after the call. Returns its object, or NULL with a
 * Python exception set; takes the exports of both sides over. Drops the GIL. */
PyObject *operation_start(pmpi_op *op, PyObject *send, PyObject *recv, side *a, side *b, int flags);

/* operation_linger keeps the tensors of a call that failed for as long as MPI uses them, with the
 * exports of both sides, and forgets work. Keeps the Python exception that is set. */
void operation_linger(pmpi_work work, PyObject *send, PyObject *recv, side *a, side *b);

/* operation_collect frees the tensors of operations whose objects are gone and that are over by
 * now. */
void operation_collect(void);

/* operation_refuse tells the group that this call of a collective went wrong here, and keeps the
 * Python exception that is set, if one is. Drops the GIL. */
void operation_refuse(int64_t group, int32_t code);

/* Functions of the module; see the table in pymodule.c. */
PyObject *py_next_completions(PyObject *self, PyObject *const *args, Py_ssize_t n);
PyObject *py_awaited(PyObject *self, PyObject *const *args, Py_ssize_t n);

#endif

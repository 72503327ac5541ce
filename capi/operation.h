/* Operations that go on after their call, as Python objects; see operation.c. */
#ifndef PMPI_OPERATION_H
#define PMPI_OPERATION_H

#include "pyabi.h"
#include "tensor.h"

/* operation_prepare makes the Python type. Returns 0, or -1 with a Python exception set. */
int operation_prepare(void);

/* Flags of Python's submit that the core does not know (python/paddlempi/_native.py). */
enum { SUBMIT_QUIET = 1 << 16, SUBMIT_ONCE = 1 << 17 };

/* operation_start submits op, which goes on after the call, and takes over the Py_buffers of both
 * sides. Returns its object, or NULL with a Python exception set. Drops the GIL. */
PyObject *operation_start(pmpi_op *op, PyObject *send, PyObject *recv, side *a, side *b, int flags);

/* operation_finish waits until operation o has ended, for at most limit_ns (below 0: no limit), and
 * sets *source to the rank of the group from which a message came, or -1. An exception is set if
 * the limit has passed or a signal handler raised (OPERATION_UNDER_WAY), or if the operation ended
 * with an error (OPERATION_FAILED). Drops the GIL. */
enum { OPERATION_OVER, OPERATION_ON_DEVICE, OPERATION_FAILED, OPERATION_UNDER_WAY };
int operation_finish(PyObject *o, int64_t limit_ns, int64_t *source);

/* operation_refuse refuses this rank's part of the collective code in its group, because the call
 * failed here. The Python exception that is set, if any, stays set. Drops the GIL. */
void operation_refuse(int64_t group, int32_t code);

/* Functions of the module; see the table in pymodule.c. */
PyObject *py_next_completions(PyObject *self, PyObject *const *args, Py_ssize_t n);
PyObject *py_awaited(PyObject *self, PyObject *const *args, Py_ssize_t n);

#endif

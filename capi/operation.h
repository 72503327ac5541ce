/* Operations that go on after their call, as Python objects; see operation.c. */
#ifndef PMPI_OPERATION_H
#define PMPI_OPERATION_H

#include "pyabi.h"

/* operation_prepare makes the type. Returns 0, or -1 with a Python exception set. */
int operation_prepare(void);

/* operation_refuse tells the group that this call of a collective went wrong here, and keeps the
 * Python exception that is set, if one is. Drops the GIL. */
void operation_refuse(int64_t group, int32_t code);

/* Functions of the module; see the table in pymodule.c. */
PyObject *py_submit(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *names);
PyObject *py_next_completions(PyObject *self, PyObject *const *args, Py_ssize_t n);
PyObject *py_awaited(PyObject *self, PyObject *const *args, Py_ssize_t n);

#endif

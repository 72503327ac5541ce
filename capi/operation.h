/* Operations that go on after their call, as Python objects; see operation.c. */
#ifndef PMPI_OPERATION_H
#define PMPI_OPERATION_H

#include "pmpi.h"
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

/* What pymodule.c has for all functions of the module. */

/* raise_last sets the exception of the call that just returned rc, and returns NULL. An interrupt
 * has set its own: KeyboardInterrupt, or whatever the signal handler raised. */
PyObject *raise_last(int rc);

/* to_ns reads seconds; below 0 stands for "none". Values past 290 years are cut. */
int64_t to_ns(double seconds);

/* wants returns whether the number of positional arguments is right; if not an exception is set. */
int wants(Py_ssize_t n, Py_ssize_t least, Py_ssize_t most, const char *name);

PyObject *none(void);

#endif

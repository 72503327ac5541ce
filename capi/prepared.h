/* Prepared calls as Python objects; see prepared.c. */
#ifndef PMPI_PREPARED_H
#define PMPI_PREPARED_H

#include "pyabi.h"
#include "submit.h"

/* The thread whose next call of submit is to be prepared; NULL: none. The GIL guards it. */
extern PyThreadState *prepared_for;

/* prepared_wanted tells whether this thread's next call of submit is to be prepared, and not to be
 * carried out. */
static inline int prepared_wanted(void) {
	return prepared_for != NULL && prepared_for == PyThreadState_Get();
}

/* prepared_take prepares c. py_prepared returns it. Returns what submit returns, or NULL with a
 * Python exception set. It tells the other ranks nothing. */
PyObject *prepared_take(const call *c);

/* prepared_prepare makes the Python type. Returns 0, or -1 with a Python exception set. */
int prepared_prepare(void);

/* Functions of the module; see the table in pymodule.c. */
PyObject *py_prepare_next(PyObject *self, PyObject *const *args, Py_ssize_t n);
PyObject *py_prepared(PyObject *self, PyObject *const *args, Py_ssize_t n);
PyObject *py_prepared_type(PyObject *self, PyObject *const *args, Py_ssize_t n);

#endif

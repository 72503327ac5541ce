/* Python's submit; see submit.c. */
#ifndef PMPI_SUBMIT_H
#define PMPI_SUBMIT_H

#include "pyabi.h"

/* submit_prepare makes the names of the keyword arguments. Returns 0, or -1 with a Python exception
 * set. */
int submit_prepare(void);

/* py_submit is the function of the module; see the table in pymodule.c. */
PyObject *py_submit(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *names);

/* py_set_elsewhere sets a function that py_submit asks to carry out a call into tensors that it
 * cannot write to; see the table in pymodule.c. */
PyObject *py_set_elsewhere(PyObject *self, PyObject *const *args, Py_ssize_t n);

#endif

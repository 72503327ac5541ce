/* Operations as custom calls of XLA, JAX's compiler; see xla.c. */
#ifndef PMPI_XLA_H
#define PMPI_XLA_H

#include "pyabi.h"

/* xla_interrupted tells whether a signal came that ends the call of XLA which this thread is in. It
 * returns 0 outside of such a call. */
int xla_interrupted(void);

/* A function of the module; see the table in pymodule.c. */
PyObject *py_xla_handler(PyObject *self, PyObject *const *args, Py_ssize_t n);

#endif

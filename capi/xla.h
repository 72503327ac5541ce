/* Operations as custom calls of XLA, JAX's compiler; see xla.c. */
#ifndef PMPI_XLA_H
#define PMPI_XLA_H

#include "pmpi.h"
#include "pyabi.h"

/* xla_interrupted tells whether a signal came that ends the call of XLA which this thread is in. It
 * returns 0 outside of such a call. */
int xla_interrupted(void);

/* xla_count_interrupts begins to count the signals that end calls of XLA. Returns nothing. */
void xla_count_interrupts(void);

/* xla_submit is pmpi_submit for a thread that XLA runs on: a Ctrl-C ends it on every thread, and
 * the exception of a signal handler comes after the error that JAX raises. */
int xla_submit(const pmpi_op *op, pmpi_work *work, pmpi_result *result);

/* A function of the module; see the table in pymodule.c. */
PyObject *py_xla_handler(PyObject *self, PyObject *const *args, Py_ssize_t n);

#endif

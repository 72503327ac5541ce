/* Collectives as operators of torch; see torch_ops.c. */
#ifndef PMPI_TORCH_OPS_H
#define PMPI_TORCH_OPS_H

#include "pyabi.h"

/* Functions of the module; see the table in pymodule.c. */
PyObject *py_torch_kernels(PyObject *self, PyObject *const *args, Py_ssize_t n);
PyObject *py_torch_group(PyObject *self, PyObject *const *args, Py_ssize_t n);

#endif

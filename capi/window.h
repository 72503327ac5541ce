/* Python's windows: see pymodule.c. */
#ifndef PMPI_WINDOW_H
#define PMPI_WINDOW_H

#include "pyabi.h"

PyObject *py_window_new(PyObject *self, PyObject *const *args, Py_ssize_t n);
PyObject *py_window(PyObject *self, PyObject *const *args, Py_ssize_t n);
PyObject *py_window_atomic(PyObject *self, PyObject *const *args, Py_ssize_t n);

#endif

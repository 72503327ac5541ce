/* Python's table: see pymodule.c. */
#ifndef PMPI_TABLE_H
#define PMPI_TABLE_H

#include "pyabi.h"

PyObject *py_table(PyObject *self, PyObject *const *args, Py_ssize_t n);
PyObject *py_tables(PyObject *self, PyObject *const *args, Py_ssize_t n);

#endif

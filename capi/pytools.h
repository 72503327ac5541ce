/* Tools that every file of the extension module uses: exceptions and arguments. */
#ifndef PMPI_PYTOOLS_H
#define PMPI_PYTOOLS_H

#include "pmpi.h"
#include "pyabi.h"

/* assign sets *to to a new reference to value, and drops the reference that was there (or NULL). */
void assign(PyObject **to, PyObject *value);

/* set_errors takes a dict: error code -> exception class. */
void set_errors(PyObject *classes);

/* raise_code sets the Python exception for an error code. Returns NULL. */
PyObject *raise_code(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* name_error puts "what: " before the text of the exception that is set, if it is one about an
 * argument: where a tensor is read nobody knows for what. */
void name_error(const char *what);

/* raise_last sets the exception of the call that has just returned rc. After an interrupt an
 * exception is set already: KeyboardInterrupt, or that of the signal handler. Returns NULL. */
PyObject *raise_last(int rc);

/* to_ns turns seconds into nanoseconds. Below 0 becomes -1, which means none. Values past 9e9 s
 * become INT64_MAX. */
int64_t to_ns(double seconds);

/* wants is 1 if the number of positional arguments is right, else 0 with an exception set. */
#define wants(n, least, most, name)                                                                \
	(((n) >= (least) && (n) <= (most)) || wanted_others(n, least, most, name))
int wanted_others(Py_ssize_t n, Py_ssize_t least, Py_ssize_t most, const char *name);

/* none is a new reference to None. */
#define none() (Py_IncRef(Py_None), Py_None)

#endif

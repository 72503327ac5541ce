/* Small things that every file of the extension module needs of Python: exceptions and arguments.
 */
#ifndef PMPI_PYTOOLS_H
#define PMPI_PYTOOLS_H

#include "pmpi.h"
#include "pyabi.h"

/* assign makes *to, NULL or a reference of its owner's, a new reference to value. */
void assign(PyObject **to, PyObject *value);

/* set_errors takes a dict: error code -> exception class. */
void set_errors(PyObject *classes);

/* raise_code sets the Python exception that stands for an error code. Returns NULL. */
PyObject *raise_code(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* raise_last sets the exception of the call that just returned rc, and returns NULL. An interrupt
 * has set its own: KeyboardInterrupt, or whatever the signal handler raised. */
PyObject *raise_last(int rc);

/* to_ns reads seconds; below 0 stands for "none". Values past 290 years are cut. */
int64_t to_ns(double seconds);

/* wants returns whether the number of positional arguments is right; if not an exception is set. */
int wants(Py_ssize_t n, Py_ssize_t least, Py_ssize_t most, const char *name);

/* none returns a new reference to None. */
PyObject *none(void);

#endif

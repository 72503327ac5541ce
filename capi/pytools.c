#ifdef PMPI_PYMODULE
/* Tools that every file of the extension module uses. */
#define _GNU_SOURCE
#include "pytools.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static PyObject *errors; /* dict: code -> exception class */

void assign(PyObject **to, PyObject *value) {
	Py_IncRef(value);
	PyObject *old = *to;
	*to = value;
	if (old)
		Py_DecRef(old);
}

void set_errors(PyObject *classes) {
	assign(&errors, classes);
}

static PyObject *raise_error(const pmpi_error *e) {
	PyObject *code = PyLong_FromLongLong(e->code);
	PyObject *class = errors && code ? PyDict_GetItemWithError(errors, code) : NULL;
	PyObject *text = PyUnicode_DecodeUTF8(e->message, (Py_ssize_t)strlen(e->message), "replace");
	PyObject *ranks = PyTuple_New(e->n_ranks), *error = NULL,
			 *mpi_class = PyLong_FromLongLong(e->mpi_class);
	if (code == NULL || text == NULL || ranks == NULL || mpi_class == NULL)
		goto done;
	for (int i = 0; i < e->n_ranks; i++)
		PyTuple_SetItem(ranks, i, PyLong_FromLongLong(e->ranks[i]));
	error = PyObject_CallFunctionObjArgs(class ? class : PyExc_RuntimeError, text, NULL);
	if (error && PyObject_SetAttrString(error, "ranks", ranks) == 0 &&
		PyObject_SetAttrString(error, "mpi_class", mpi_class) == 0)
		PyErr_SetObject((PyObject *)error->ob_type, error);
done:
	if (error)
		Py_DecRef(error);
	if (mpi_class)
		Py_DecRef(mpi_class);
	if (ranks)
		Py_DecRef(ranks);
	if (text)
		Py_DecRef(text);
	if (code)
		Py_DecRef(code);
	return NULL;
}

PyObject *raise_code(int code, const char *format, ...) {
	pmpi_error e = {.code = code};
	va_list args;
	va_start(args, format);
	vsnprintf(e.message, sizeof e.message, format, args);
	va_end(args);
	return raise_error(&e);
}

static int about_argument(PyObject *error) {
	const int codes[] = {PMPI_ERR_ARGUMENT, PMPI_ERR_TYPE};
	int found = 0;
	for (int i = 0; i < 2 && errors; i++) {
		PyObject *code = PyLong_FromLongLong(codes[i]);
		PyObject *class = code ? PyDict_GetItemWithError(errors, code) : NULL;
		found |= class && PyObject_IsInstance(error, class) == 1;
		if (code)
			Py_DecRef(code);
	}
	return found;
}

void name_error(const char *what) {
	PyObject *type, *error, *traceback, *text = NULL, *longer = NULL, *args = NULL;
	PyErr_Fetch(&type, &error, &traceback);
	PyErr_NormalizeException(&type, &error, &traceback);
	if (error && about_argument(error) && (text = PyObject_Str(error)) &&
		(longer = PyUnicode_FromFormat("%s: %U", what, text)) && (args = PyTuple_New(1))) {
		PyTuple_SetItem(args, 0, longer); /* takes the reference */
		longer = NULL;
		PyObject_SetAttrString(error, "args", args);
	}
	if (text)
		Py_DecRef(text);
	if (longer)
		Py_DecRef(longer);
	if (args)
		Py_DecRef(args);
	PyErr_Clear(); /* of this function: the first exception is the one to raise */
	PyErr_Restore(type, error, traceback);
}

PyObject *raise_last(int rc) {
	if (rc == PMPI_ERR_INTERRUPTED && PyErr_Occurred())
		return NULL;
	return raise_error(pmpi_last_error());
}

int64_t to_ns(double s) {
	return s < 0 ? -1 : s > 9e9 ? INT64_MAX : (int64_t)(s * 1e9);
}

int wanted_others(Py_ssize_t n, Py_ssize_t least, Py_ssize_t most, const char *name) {
	PyErr_Format(PyExc_TypeError, "%s() takes %zd to %zd positional arguments, got %zd", name,
				 least, most, n);
	return 0;
}

#endif

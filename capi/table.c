#ifdef PMPI_PYMODULE
/* Python's table: it turns arguments into a pmpi_table_op. */
#define _GNU_SOURCE
#include "table.h"

#include <math.h>
#include <string.h>

#include "pmpi.h"
#include "pytools.h"
#include "tensor.h"

/* whole tells whether a tensor has rows of the same length as there are ids. Flat memory has no
 * shape. */
static int fits(const pmpi_buf *ids, const pmpi_buf *values, const char *name) {
	int64_t rows = values->ndim > 0 && values->shape ? values->shape[0] : -1;
	if (ids->ndim != 1) {
		raise_code(PMPI_ERR_ARGUMENT, "table: ids have %d dimensions; they must have 1", ids->ndim);
		return 0;
	}
	if (values->ndim != 2 || rows != ids->count) {
		raise_code(
			PMPI_ERR_ARGUMENT,
			"table: %s have %d dimensions and a first dimension of %lld; they must be a matrix "
			"with a row for each of the %lld ids",
			name, values->ndim, (long long)rows, (long long)ids->count);
		return 0;
	}
	return 1;
}

PyObject *py_table(PyObject *self, PyObject *const *args, Py_ssize_t n) {
	(void)self;
	if (!wants(n, 4, 7, "table"))
		return NULL;
	pmpi_table_op op;
	memset(&op, 0, sizeof op);
	op.size = sizeof op;
	op.code = (int32_t)PyLong_AsLongLong(args[0]);
	op.table = PyLong_AsLongLong(args[1]);
	op.learning_rate = n > 5 && args[5] != Py_None ? PyFloat_AsDouble(args[5]) : NAN;
	op.step = n > 6 ? PyLong_AsLongLong(args[6]) : 0;
	if (PyErr_Occurred())
		return NULL;
	PyObject *tensors[3] = {args[2], args[3], n > 4 ? args[4] : Py_None}, *out = NULL;
	int written[3] = {op.code == PMPI_TABLE_IDS,
					  op.code == PMPI_TABLE_PULL || op.code == PMPI_TABLE_READ,
					  op.code == PMPI_TABLE_READ};
	pmpi_buf *to[3] = {&op.ids, &op.values, &op.states};
	side sides[3];
	int described = 0;
	for (; described < 3; described++) {
		side *s = &sides[described];
		s->n = s->n_views = s->on_device = 0;
		int rc = side_describe(s, tensors[described], written[described] ? "recv" : "send");
		if (rc || s->n > 1) {
			if (rc == 0)
				raise_code(PMPI_ERR_TYPE, "table: a list is no tensor");
			described++;
			goto done;
		}
		if (s->n == 1)
			*to[described] = s->bufs[0];
	}
	if (sides[0].n == 0 || (sides[1].n == 0 && op.code != PMPI_TABLE_IDS)) {
		raise_code(PMPI_ERR_TYPE, "table: None is no tensor");
		goto done;
	}
	if (op.code != PMPI_TABLE_IDS &&
		(!fits(&op.ids, &op.values, op.code == PMPI_TABLE_PUSH ? "gradients" : "rows") ||
		 (sides[2].n && !fits(&op.ids, &op.states, "states"))))
		goto done;
	int64_t count = 0;
	PyThreadState *ts = PyEval_SaveThread();
	int rc = pmpi_table(&op, &count);
	PyEval_RestoreThread(ts);
	if (rc) {
		raise_last(rc);
		goto done;
	}
	for (int i = 0; i < 3; i++)
		if (written[i])
			tensor_written(tensors[i]);
	out = PyLong_FromLongLong(count);
done:
	while (described > 0)
		side_release(&sides[--described]);
	return out;
}
#endif

#ifdef PMPI_PYMODULE
/* Python's table: it turns arguments into a pmpi_table_op. */
#define _GNU_SOURCE
#include "table.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "gil.h"
#include "pmpi.h"
#include "pytools.h"
#include "tensor.h"

/* fits tells whether values have a row for each id. It sets an exception if not. Flat memory has no
 * shape, so it does not fit. */
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

/* one is one table of a call: its tensors, and what keeps them. */
typedef struct one {
	PyObject *tensors[3];
	side sides[3];
	int described;
} one;

/* writes tells whether a call fills one of its tensors, by its place in pmpi_table_op. */
static int writes(int32_t code, int which) {
	return pmpi_table_writes(code) >> which & 1;
}

/* describe fills op, whose code is set, from what Python gives. Returns 0, or -1 with an exception
 * set. release must follow in either case. */
static int describe(pmpi_table_op *op, one *o, PyObject *table, PyObject *ids, PyObject *values,
					PyObject *states, PyObject *rate, PyObject *step) {
	pmpi_buf *to[3] = {&op->ids, &op->values, &op->states};
	o->tensors[0] = ids;
	o->tensors[1] = values;
	o->tensors[2] = states;
	op->size = sizeof *op;
	op->table = PyLong_AsLongLong(table);
	op->learning_rate = rate && rate != Py_None ? PyFloat_AsDouble(rate) : NAN;
	op->step = step ? PyLong_AsLongLong(step) : 0;
	if (PyErr_Occurred())
		return -1;
	while (o->described < 3) {
		int i = o->described++;
		side *s = &o->sides[i];
		s->n = s->n_views = s->on_device = 0;
		if (side_describe(s, o->tensors[i], writes(op->code, i) ? "recv" : "send"))
			return name_error("table"), -1;
		if (s->n > 1)
			return raise_code(PMPI_ERR_TYPE, "table: a list is no tensor"), -1;
		if (s->n == 1)
			*to[i] = s->bufs[0];
	}
	for (int i = 0; i < 3; i++)
		if (o->sides[i].n == 0 && pmpi_table_needs(op->code) >> i & 1)
			return raise_code(PMPI_ERR_TYPE, "table: None is no tensor"), -1;
	if (o->sides[0].n == 0)
		return 0;
	if ((o->sides[1].n &&
		 !fits(&op->ids, &op->values, op->code == PMPI_TABLE_PUSH ? "gradients" : "rows")) ||
		(o->sides[2].n &&
		 !fits(&op->ids, &op->states, pmpi_table_of_kv(op->code) ? "rows of out" : "states")))
		return -1;
	return 0;
}

static void release(one *o) {
	while (o->described > 0)
		side_release(&o->sides[--o->described]);
}

/* run carries out the call and returns its count. */
static PyObject *run(const pmpi_table_op *ops, const one *all, int32_t n) {
	int64_t count = 0;
	PyThreadState *ts = PyEval_SaveThread();
	int rc = pmpi_table(ops, n, &count);
	gil_take(ts);
	if (rc)
		return raise_last(rc);
	for (int32_t i = 0; i < n; i++)
		for (int k = 0; k < 3; k++)
			if (writes(ops[i].code, k))
				tensor_written(all[i].tensors[k]);
	return PyLong_FromLongLong(count);
}

PyObject *py_table(PyObject *self, PyObject *const *args, Py_ssize_t n) {
	(void)self;
	if (!wants(n, 4, 7, "table"))
		return NULL;
	pmpi_table_op op;
	one o;
	memset(&op, 0, sizeof op);
	o.described = 0;
	op.code = (int32_t)PyLong_AsLongLong(args[0]);
	if (PyErr_Occurred())
		return NULL;
	PyObject *out = NULL;
	if (describe(&op, &o, args[1], args[2], args[3], n > 4 ? args[4] : Py_None,
				 n > 5 ? args[5] : NULL, n > 6 ? args[6] : NULL) == 0)
		out = run(&op, &o, 1);
	release(&o);
	return out;
}

PyObject *py_tables(PyObject *self, PyObject *const *args, Py_ssize_t n) {
	(void)self;
	if (!wants(n, 2, 2, "tables"))
		return NULL;
	int32_t code = (int32_t)PyLong_AsLongLong(args[0]);
	Py_ssize_t parts = PyErr_Occurred() ? -1 : PyTuple_Size(args[1]);
	if (parts < 0)
		return NULL;
	PyObject *out = NULL;
	pmpi_table_op *ops = calloc((size_t)parts + 1, sizeof *ops);
	one *all = calloc((size_t)parts + 1, sizeof *all);
	if (!ops || !all) {
		raise_code(PMPI_ERR_NO_MEMORY, "tables: no memory for %lld parts", (long long)parts);
		goto done;
	}
	for (Py_ssize_t i = 0; i < parts; i++) {
		PyObject *part = PyTuple_GetItem(args[1], i);
		Py_ssize_t fields = part ? PyTuple_Size(part) : -1;
		if (fields < 0)
			goto done;
		if (fields != 4) {
			raise_code(PMPI_ERR_TYPE, "tables: a part has %lld fields instead of 4",
					   (long long)fields);
			goto done;
		}
		ops[i].code = code;
		if (describe(&ops[i], &all[i], PyTuple_GetItem(part, 0), PyTuple_GetItem(part, 1),
					 PyTuple_GetItem(part, 2), Py_None, PyTuple_GetItem(part, 3), NULL))
			goto done;
	}
	out = run(ops, all, (int32_t)parts);
done:
	for (Py_ssize_t i = 0; all && i < parts; i++)
		release(&all[i]);
	free(ops);
	free(all);
	return out;
}
#endif

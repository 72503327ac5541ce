#ifdef PMPI_PYMODULE
/* Python's windows: they turn arguments into a pmpi_window_op. */
#define _GNU_SOURCE
#include "window.h"

#include <math.h>
#include <string.h>

#include "../gocore/reduce/float16.h"
#include "crash.h"
#include "dlpack.h"
#include "gil.h"
#include "guard.h"
#include "operation.h"
#include "pytools.h"
#include "tensor.h"

/* A call that copies at most SHORT bytes in mapped memory keeps the GIL: dropping it takes longer.
 * An atomic update takes ATOMIC times as long as a copy. */
enum { SHORT = 256 << 10, ATOMIC = 32 };

enum { MOST_DIMS = 64 };

/* call carries op out. Returns 0, or -1 with a Python exception set. */
static int call(const pmpi_window_op *op, int64_t bytes) {
	int rc = 1;
	if (bytes <= SHORT) {
		crash_call at_once = {.what = op, .kind = CRASH_WINDOW};
		crash_at_once = &at_once;
		rc = pmpi_guard_window(op);
		crash_at_once = NULL;
	}
	if (rc == 0)
		return 0;
	PyThreadState *ts = PyEval_SaveThread();
	rc = pmpi_window(op);
	gil_take(ts);
	if (rc)
		raise_last(rc);
	return rc ? -1 : 0;
}

PyObject *py_window_new(PyObject *self, PyObject *const *args, Py_ssize_t n) {
	(void)self;
	if (!wants(n, 3, 3, "window_new"))
		return NULL;
	int64_t group = PyLong_AsLongLong(args[1]), timeout = to_ns(PyFloat_AsDouble(args[2])),
			window = 0;
	if (PyErr_Occurred())
		return NULL;
	side s;
	s.n = s.n_views = s.on_device = 0;
	PyObject *out = NULL;
	if (side_describe(&s, args[0], "recv")) {
		name_error("Window");
		operation_refuse(group, PMPI_OP_ALL_GATHER); /* the other members wait in this collective */
	} else if (s.n != 1) {
		raise_code(PMPI_ERR_TYPE, "Window: the memory must be one tensor");
		operation_refuse(group, PMPI_OP_ALL_GATHER);
	} else {
		PyThreadState *ts = PyEval_SaveThread();
		int rc = pmpi_window_new(&s.bufs[0], group, timeout, &window);
		gil_take(ts);
		out = rc ? raise_last(rc) : PyLong_FromLongLong(window);
	}
	side_release(&s);
	return out;
}

/* numbers reads a tuple of at most MOST_DIMS integers. Returns how many, or -1 with an exception.
 */
static int numbers(PyObject *tuple, int64_t *out) {
	Py_ssize_t n = PyTuple_Size(tuple);
	if (n < 0)
		return -1;
	if (n > MOST_DIMS) {
		raise_code(PMPI_ERR_ARGUMENT,
				   "Window: a target has %ld dimensions; at most %d are possible", (long)n,
				   MOST_DIMS);
		return -1;
	}
	for (Py_ssize_t i = 0; i < n; i++)
		out[i] = PyLong_AsLongLong(PyTuple_GetItem(tuple, i));
	return PyErr_Occurred() ? -1 : (int)n;
}

/* describe fills one tensor of a call. Returns 0, or -1 with an exception set. side_release must
 * follow in either case. */
static int describe(side *s, pmpi_buf *to, PyObject *x, const char *name) {
	s->n = s->n_views = s->on_device = 0;
	if (side_describe(s, x, name)) {
		name_error("Window");
		return -1;
	}
	if (s->n > 1) {
		raise_code(PMPI_ERR_TYPE, "Window: a list is no tensor");
		return -1;
	}
	if (s->n == 1)
		*to = s->bufs[0];
	return 0;
}

/* no_integers replaces an exception about an argument that should be an integer. Returns NULL. */
static PyObject *no_integers(void) {
	PyErr_Clear();
	return raise_code(
		PMPI_ERR_TYPE,
		"Window: rank, offset and index must be integers of at most 64 bits, and op a "
		"ReduceOp or one of Window's");
}

/* window(code, window, rank, offset, send, recv, reduce_op, timeout, shape, strides) */
PyObject *py_window(PyObject *self, PyObject *const *args, Py_ssize_t n) {
	(void)self;
	if (!wants(n, 3, 10, "window"))
		return NULL;
	pmpi_window_op op;
	memset(&op, 0, sizeof op);
	op.size = sizeof op;
	op.code = (int32_t)PyLong_AsLongLong(args[0]);
	op.window = PyLong_AsLongLong(args[1]);
	long long rank = PyLong_AsLongLong(args[2]);
	op.rank = rank == (int32_t)rank ? (int32_t)rank : INT32_MAX;
	op.offset = n > 3 ? PyLong_AsLongLong(args[3]) : 0;
	op.reduce_op = n > 6 ? (int32_t)PyLong_AsLongLong(args[6]) : 0;
	op.timeout_ns = n > 7 ? to_ns(PyFloat_AsDouble(args[7])) : -1;
	if (PyErr_Occurred())
		return no_integers();
	int64_t shape[MOST_DIMS], strides[MOST_DIMS];
	if (n > 9 && args[8] != Py_None) {
		int dims = numbers(args[8], shape), steps = dims < 0 ? -1 : numbers(args[9], strides);
		if (steps < 0)
			return NULL;
		if (dims != steps)
			return raise_code(PMPI_ERR_ARGUMENT, "Window: a target has %d lengths and %d strides",
							  dims, steps);
		op.ndim = dims;
		op.shape = shape;
		op.strides = strides;
	}
	if (n < 6) {
		if (call(&op, 0))
			return NULL;
		return none();
	}
	int sends = op.code == PMPI_WINDOW_PUT || op.code == PMPI_WINDOW_ACCUMULATE ||
				op.code == PMPI_WINDOW_GET_ACCUMULATE,
		recvs = op.code == PMPI_WINDOW_GET || op.code == PMPI_WINDOW_GET_ACCUMULATE;
	if ((sends && args[4] == Py_None) || (recvs && args[5] == Py_None))
		return raise_code(PMPI_ERR_TYPE, "Window: None is no tensor");
	side send, recv;
	recv.n = recv.n_views = recv.n_dims = 0, recv.bufs = recv.room, recv.views = recv.view_room;
	recv.more_dims = NULL;
	PyObject *out = NULL;
	if (describe(&send, &op.send, args[4], "send") == 0 &&
		describe(&recv, &op.recv, args[5], "recv") == 0) {
		const pmpi_buf *b = send.n ? &op.send : &op.recv;
		int64_t bytes = b->count * pmpi_dtype_size(b->dtype);
		if (call(&op, op.code > PMPI_WINDOW_GET ? ATOMIC * bytes : bytes) == 0) {
			tensor_written(args[5]);
			out = none();
		}
	}
	side_release(&send);
	side_release(&recv);
	return out;
}

/* ---- single elements as Python numbers ---- */

typedef union element {
	uint8_t u8;
	int8_t i8;
	uint16_t u16;
	int16_t i16;
	uint32_t u32;
	int32_t i32;
	uint64_t u64;
	int64_t i64;
	float f32;
	double f64;
	float c64[2];
	double c128[2];
} element;

/* wrong sets the exception for a number x that cannot be an element. Returns -1. */
static int wrong(int code, const char *name, PyObject *x, const char *why) {
	PyErr_Clear();
	PyObject *text = PyObject_Str(x);
	const char *shown = text ? PyUnicode_AsUTF8AndSize(text, NULL) : NULL;
	PyErr_Clear();
	raise_code(code, "Window: %s=%s %s", name, shown ? shown : "?", why);
	if (text)
		Py_DecRef(text);
	return -1;
}

static int does_not_fit(const char *name, PyObject *x) {
	return wrong(PMPI_ERR_ARGUMENT, name, x, "does not fit into an element of the window");
}

static int no_number(const char *name, PyObject *x) {
	return wrong(PMPI_ERR_TYPE, name, x, "is no number that an element of the window can have");
}

/* overflows tells whether a finite number has become infinite. */
static int overflows(double given, double stored) {
	return isinf(stored) && !isinf(given);
}

/* store_integer stores x in an element of some bits. Returns 0, or -1 with an exception set. */
static int store_integer(element *e, int32_t dtype, PyObject *x, const char *name) {
	PyObject *whole = PyNumber_Index(x);
	if (whole == NULL)
		return no_number(name, x);
	int64_t v = 0;
	if (dtype == PMPI_DTYPE_UINT64)
		e->u64 = PyLong_AsUnsignedLongLong(whole);
	else
		v = PyLong_AsLongLong(whole);
	Py_DecRef(whole);
	if (PyErr_Occurred())
		return does_not_fit(name, x);
	int64_t back = v;
	switch (dtype) {
	case PMPI_DTYPE_INT8:
		back = e->i8 = (int8_t)v;
		break;
	case PMPI_DTYPE_UINT8:
		back = e->u8 = (uint8_t)v;
		break;
	case PMPI_DTYPE_INT16:
		back = e->i16 = (int16_t)v;
		break;
	case PMPI_DTYPE_UINT16:
		back = e->u16 = (uint16_t)v;
		break;
	case PMPI_DTYPE_INT32:
		back = e->i32 = (int32_t)v;
		break;
	case PMPI_DTYPE_UINT32:
		back = e->u32 = (uint32_t)v;
		break;
	case PMPI_DTYPE_INT64:
		e->i64 = v;
		break;
	}
	return back == v ? 0 : does_not_fit(name, x);
}

/* store stores a Python number in an element. Returns 0, or -1 with an exception set. */
static int store(element *e, int32_t dtype, PyObject *x, const char *name) {
	switch (dtype) {
	case PMPI_DTYPE_BOOL: {
		int truth = PyObject_IsTrue(x);
		e->u8 = truth > 0;
		return truth < 0 ? -1 : 0;
	}
	case PMPI_DTYPE_FLOAT16:
	case PMPI_DTYPE_BFLOAT16:
	case PMPI_DTYPE_FLOAT32:
	case PMPI_DTYPE_FLOAT64: {
		double v = PyFloat_AsDouble(x);
		if (PyErr_Occurred())
			return no_number(name, x);
		if (dtype == PMPI_DTYPE_FLOAT64) {
			e->f64 = v;
			return 0;
		}
		int infinite; /* whether it is in the element */
		if (dtype == PMPI_DTYPE_FLOAT32) {
			e->f32 = (float)v;
			infinite = isinf(e->f32);
		} else if (dtype == PMPI_DTYPE_FLOAT16) {
			e->u16 = store_f16((float)v);
			infinite = (e->u16 & 0x7fff) == 0x7c00;
		} else {
			e->u16 = store_bf16((float)v);
			infinite = (e->u16 & 0x7fff) == 0x7f80;
		}
		return infinite && !isinf(v) ? does_not_fit(name, x) : 0;
	}
	case PMPI_DTYPE_COMPLEX64:
	case PMPI_DTYPE_COMPLEX128: {
		double re = PyComplex_RealAsDouble(x),
			   im = PyErr_Occurred() ? 0 : PyComplex_ImagAsDouble(x);
		if (PyErr_Occurred())
			return no_number(name, x);
		if (dtype == PMPI_DTYPE_COMPLEX64) {
			e->c64[0] = (float)re;
			e->c64[1] = (float)im;
			if (overflows(re, e->c64[0]) || overflows(im, e->c64[1]))
				return does_not_fit(name, x);
		} else {
			e->c128[0] = re;
			e->c128[1] = im;
		}
		return 0;
	}
	}
	if (dtype >= PMPI_DTYPE_INT8 && dtype <= PMPI_DTYPE_UINT64)
		return store_integer(e, dtype, x, name);
	raise_code(PMPI_ERR_TYPE, "Window: the elements are no Python numbers: use get_accumulate");
	return -1;
}

static PyObject *load(const element *e, int32_t dtype) {
	switch (dtype) {
	case PMPI_DTYPE_BOOL:
		return PyBool_FromLong(e->u8 != 0);
	case PMPI_DTYPE_INT8:
		return PyLong_FromLongLong(e->i8);
	case PMPI_DTYPE_UINT8:
		return PyLong_FromLongLong(e->u8);
	case PMPI_DTYPE_INT16:
		return PyLong_FromLongLong(e->i16);
	case PMPI_DTYPE_UINT16:
		return PyLong_FromLongLong(e->u16);
	case PMPI_DTYPE_INT32:
		return PyLong_FromLongLong(e->i32);
	case PMPI_DTYPE_UINT32:
		return PyLong_FromLongLong(e->u32);
	case PMPI_DTYPE_INT64:
		return PyLong_FromLongLong(e->i64);
	case PMPI_DTYPE_UINT64:
		return PyLong_FromUnsignedLongLong(e->u64);
	case PMPI_DTYPE_FLOAT16:
		return PyFloat_FromDouble(load_f16(e->u16));
	case PMPI_DTYPE_BFLOAT16:
		return PyFloat_FromDouble(load_bf16(e->u16));
	case PMPI_DTYPE_FLOAT32:
		return PyFloat_FromDouble(e->f32);
	case PMPI_DTYPE_FLOAT64:
		return PyFloat_FromDouble(e->f64);
	case PMPI_DTYPE_COMPLEX64:
		return PyComplex_FromDoubles(e->c64[0], e->c64[1]);
	}
	return PyComplex_FromDoubles(e->c128[0], e->c128[1]);
}

/* one describes an element as a tensor. */
static pmpi_buf one(element *e, int32_t dtype) {
	return (pmpi_buf){.data = e, .count = 1, .dtype = dtype, .device_type = PMPI_DEVICE_CPU};
}

/* window_atomic(window, dtype, rank, index, value, reduce_op, expected) */
PyObject *py_window_atomic(PyObject *self, PyObject *const *args, Py_ssize_t n) {
	(void)self;
	if (!wants(n, 6, 7, "window_atomic"))
		return NULL;
	element value, expected, before;
	pmpi_window_op op;
	memset(&op, 0, sizeof op);
	op.size = sizeof op;
	op.code = n > 6 ? PMPI_WINDOW_COMPARE_AND_SWAP : PMPI_WINDOW_GET_ACCUMULATE;
	op.window = PyLong_AsLongLong(args[0]);
	int32_t dtype = (int32_t)PyLong_AsLongLong(args[1]);
	long long rank = PyLong_AsLongLong(args[2]);
	op.rank = rank == (int32_t)rank ? (int32_t)rank : INT32_MAX;
	op.offset = PyLong_AsLongLong(args[3]);
	op.reduce_op = (int32_t)PyLong_AsLongLong(args[5]);
	op.timeout_ns = -1;
	if (PyErr_Occurred())
		return no_integers();
	if (store(&value, dtype, args[4], "value") ||
		(n > 6 && store(&expected, dtype, args[6], "expected")))
		return NULL;
	op.send = one(&value, dtype);
	op.recv = one(&before, dtype);
	if (n > 6)
		op.compare = one(&expected, dtype);
	return call(&op, 16) ? NULL : load(&before, dtype);
}
#endif

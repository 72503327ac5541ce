#ifdef PMPI_PYMODULE
/* From a Python object to a pmpi_buf: by the buffer protocol or DLPack if the object has one of
 * them, else by the function that was registered for its type (python/paddlempi/_buffer.py). */
#define _GNU_SOURCE
#include "tensor.h"

#include "dlpack.h"
#include "pytools.h"

#include <stdlib.h>
#include <string.h>

_Static_assert(sizeof(Py_ssize_t) == sizeof(int64_t), "64-bit only");

static PyObject *types;    /* dict: type -> describe */
static PyObject *bumps;    /* dict: type -> function that bumps the version of a tensor, or None */
static PyObject *resolver; /* called with an object of unknown type; registers the type or raises */

int tensor_register(PyObject *type, PyObject *describe, PyObject *bump) {
	if ((types == NULL && (types = PyDict_New()) == NULL) ||
		(bumps == NULL && (bumps = PyDict_New()) == NULL) || PyDict_SetItem(bumps, type, bump))
		return -1;
	return PyDict_SetItem(types, type, describe);
}

int tensor_set_resolver(PyObject *r) {
	assign(&resolver, r);
	return 0;
}

/* dtype_of reads a format of the struct module (PEP 3118). Returns 0 if no dtype stands for it. */
static int32_t dtype_of(const char *f, Py_ssize_t itemsize) {
	if (f == NULL)
		f = "B";
	if (*f == '@' || *f == '=' || *f == '<')
		f++;
	if (f[0] == 'Z' && f[1] != 0 && f[2] == 0)
		return f[1] == 'f' ? PMPI_DTYPE_COMPLEX64 : f[1] == 'd' ? PMPI_DTYPE_COMPLEX128 : 0;
	if (f[0] == 0 || f[1] != 0)
		return 0;
	switch (*f) {
	case '?':
		return PMPI_DTYPE_BOOL;
	case 'e':
		return PMPI_DTYPE_FLOAT16;
	case 'f':
		return PMPI_DTYPE_FLOAT32;
	case 'd':
		return PMPI_DTYPE_FLOAT64;
	case 'F':
		return PMPI_DTYPE_COMPLEX64;
	case 'D':
		return PMPI_DTYPE_COMPLEX128;
	case 'c':
		return PMPI_DTYPE_UINT8;
	case 'b':
	case 'h':
	case 'i':
	case 'l':
	case 'q':
	case 'n':
		return itemsize == 1   ? PMPI_DTYPE_INT8
			   : itemsize == 2 ? PMPI_DTYPE_INT16
			   : itemsize == 4 ? PMPI_DTYPE_INT32
			   : itemsize == 8 ? PMPI_DTYPE_INT64
							   : 0;
	case 'B':
	case 'H':
	case 'I':
	case 'L':
	case 'Q':
	case 'N':
		return itemsize == 1   ? PMPI_DTYPE_UINT8
			   : itemsize == 2 ? PMPI_DTYPE_UINT16
			   : itemsize == 4 ? PMPI_DTYPE_UINT32
			   : itemsize == 8 ? PMPI_DTYPE_UINT64
							   : 0;
	}
	return 0;
}

/* new_dims allocates n numbers, which stay until side_release. */
static int64_t *new_dims(side *s, int64_t n) {
	int64_t *d = malloc((size_t)(n > 0 ? n : 1) * sizeof *d);
	if (d == NULL) {
		PyErr_NoMemory();
		return NULL;
	}
	if (s->n_dims < INLINE_TENSORS * 2) {
		s->dims[s->n_dims++] = d;
		return d;
	}
	int32_t extra = s->n_dims - INLINE_TENSORS * 2;
	int64_t **more = realloc(s->more_dims, (size_t)(extra + 1) * sizeof *more);
	if (more == NULL) {
		free(d);
		PyErr_NoMemory();
		return NULL;
	}
	more[extra] = d;
	s->more_dims = more;
	s->n_dims++;
	return d;
}

/* kind_of says in words what a format of the struct module stands for that no dtype does. */
static const char *kind_of(const char *f) {
	if (f == NULL || *f == 0)
		return "bytes of an unusual size";
	int swapped = *f == '>' || *f == '!';
	f += strspn(f, "@=<>!0123456789 ");
	switch (*f) {
	case 'w':
	case 'u':
		return "text";
	case 's':
	case 'p':
	case 'c':
		return "strings of bytes";
	case 'O':
		return "Python objects";
	case 'T':
		return "records with fields";
	case 'P':
		return "pointers";
	case 'g':
		return "extended-precision floating-point numbers";
	case 'Z':
		return f[1] == 'g' ? "extended-precision complex numbers"
						   : "complex numbers in another byte order";
	}
	return swapped ? "numbers in the byte order of other machines" : "of an unusual type";
}

/* from_view describes what the buffer protocol returned. It sets strides only if the memory is not
 * contiguous. */
static int from_view(side *s, pmpi_buf *b, const Py_buffer *v, const char *name, int i) {
	b->dtype = dtype_of(v->format, v->itemsize);
	if (b->dtype == 0) {
		raise_code(
			PMPI_ERR_TYPE,
			"%s tensor %d has elements that are %s (format \"%s\", %ld bytes each): give bool, "
			"integers, floating-point or complex numbers of the usual sizes",
			name, i, kind_of(v->format), v->format ? v->format : "B", (long)v->itemsize);
		return -1;
	}
	b->data = v->buf;
	b->device_type = PMPI_DEVICE_CPU;
	b->ndim = v->ndim;
	b->count = v->itemsize ? v->len / v->itemsize : 0;
	int contiguous = 1;
	Py_ssize_t expected = v->itemsize;
	for (int d = v->ndim - 1; d >= 0 && v->strides; d--) {
		if (v->shape[d] != 1 && v->strides[d] != expected)
			contiguous = 0;
		expected *= v->shape[d];
	}
	if (contiguous || b->count == 0) {
		b->shape = (const int64_t *)v->shape; /* Py_ssize_t is int64_t: see the assertion above */
		return 0;
	}
	int64_t *shape = new_dims(s, v->ndim), *strides = shape ? new_dims(s, v->ndim) : NULL;
	if (strides == NULL)
		return -1;
	for (int d = 0; d < v->ndim; d++) {
		if (v->strides[d] % v->itemsize) {
			raise_code(PMPI_ERR_ARGUMENT,
					   "%s tensor %d has a stride of %ld bytes, no multiple of its element's %ld; "
					   "pass a copy",
					   name, i, (long)v->strides[d], (long)v->itemsize);
			return -1;
		}
		shape[d] = v->shape[d];
		strides[d] = v->strides[d] / v->itemsize;
	}
	b->shape = shape;
	b->strides = strides;
	return 0;
}

static int read_longs(PyObject *seq, int64_t *out, int64_t n) {
	for (int64_t i = 0; i < n; i++) {
		out[i] = PyLong_AsLongLong(PyTuple_GetItem(seq, i));
		if (out[i] == -1 && PyErr_Occurred())
			return -1;
	}
	return 0;
}

static int on_cuda(int32_t device_type) {
	return device_type == PMPI_DEVICE_CUDA || device_type == PMPI_DEVICE_CUDA_MANAGED;
}

/* canonical_stream returns the same number for 0 and 1, which both name the legacy default
 * stream. */
static uint64_t canonical_stream(uint64_t stream) {
	return stream ? stream : 1;
}

static int two_streams_error(uint64_t a, uint64_t b) {
	raise_code(
		PMPI_ERR_ARGUMENT,
		"the device tensors of one call belong to two CUDA streams, %#llx and %#llx, of which "
		"an operation is ordered with one: call it under one current stream, which has "
		"waited for the other",
		(unsigned long long)a, (unsigned long long)b);
	return -1;
}

/* note_stream records the stream of a device tensor. All device tensors of a side must have the
 * same. */
static int note_stream(side *s, uint64_t stream) {
	if (s->on_device && canonical_stream(s->stream) != canonical_stream(stream))
		return two_streams_error(s->stream, stream);
	s->on_device = 1;
	s->stream = stream;
	return 0;
}

int side_stream(const side *a, const side *b, uint64_t *stream) {
	if (a->on_device && b->on_device && canonical_stream(a->stream) != canonical_stream(b->stream))
		return two_streams_error(a->stream, b->stream);
	*stream = a->on_device ? a->stream : b->on_device ? b->stream : 0;
	return 0;
}

/* from_description reads what describe(x) returned: (address, dtype, shape, strides or None, device
 * type, device id, read-only, stream). Anything else than a tuple is a copy: see describe_copy. */
static int from_description(side *s, pmpi_buf *b, PyObject *t, int *readonly) {
	if (!(PyType_GetFlags(t->ob_type) & TPFLAGS_TUPLE) || PyTuple_Size(t) != 8) {
		PyErr_SetString(PyExc_TypeError,
						"describe() must return a tuple of 8: address, dtype, shape, strides, "
						"device type, device id, read-only, stream");
		return -1;
	}
	PyObject *shape = PyTuple_GetItem(t, 2), *strides = PyTuple_GetItem(t, 3);
	b->data = (void *)(uintptr_t)PyLong_AsUnsignedLongLong(PyTuple_GetItem(t, 0));
	b->dtype = (int32_t)PyLong_AsLongLong(PyTuple_GetItem(t, 1));
	b->device_type = (int32_t)PyLong_AsLongLong(PyTuple_GetItem(t, 4));
	b->device_id = (int32_t)PyLong_AsLongLong(PyTuple_GetItem(t, 5));
	*readonly = PyObject_IsTrue(PyTuple_GetItem(t, 6));
	uint64_t stream = PyLong_AsUnsignedLongLong(PyTuple_GetItem(t, 7));
	Py_ssize_t n = PyTuple_Size(shape);
	if (n < 0 || PyErr_Occurred())
		return -1;
	if (on_cuda(b->device_type) && note_stream(s, stream))
		return -1;
	if (strides != Py_None && PyTuple_Size(strides) != n) {
		PyErr_SetString(PyExc_ValueError,
						"describe() returned strides of another length than the shape");
		return -1;
	}
	int64_t *dims = new_dims(s, n), *steps = NULL;
	if (dims == NULL || read_longs(shape, dims, n))
		return -1;
	if (strides != Py_None && ((steps = new_dims(s, n)) == NULL || read_longs(strides, steps, n)))
		return -1;
	b->ndim = (int32_t)n;
	b->shape = dims;
	b->count = 1;
	for (Py_ssize_t d = 0; d < n; d++) {
		if (dims[d] < 0 || __builtin_mul_overflow(b->count, dims[d], &b->count)) {
			PyErr_SetString(PyExc_ValueError,
							"describe() returned a shape that no memory can have");
			return -1;
		}
	}
	int64_t expected = 1;
	for (Py_ssize_t d = n - 1; d >= 0 && steps; d--) {
		if (dims[d] != 1 && steps[d] != expected)
			b->strides = steps;
		expected *= dims[d];
	}
	if (b->count == 0)
		b->strides = NULL;
	return 0;
}

static PyObject *describer(PyObject *x) {
	PyObject *f = types ? PyDict_GetItemWithError(types, (PyObject *)x->ob_type) : NULL;
	if (f || PyErr_Occurred())
		return f;
	if (resolver == NULL) {
		PyErr_SetString(PyExc_TypeError, "the object is no tensor");
		return NULL;
	}
	PyObject *r = PyObject_CallFunctionObjArgs(resolver, x, NULL);
	if (r == NULL)
		return NULL;
	Py_DecRef(r);
	f = types ? PyDict_GetItemWithError(types, (PyObject *)x->ob_type) : NULL;
	if (f == NULL && !PyErr_Occurred())
		PyErr_SetString(PyExc_TypeError, "the object is no tensor");
	return f;
}

/* bump_of returns the function that bumps the version of x, or NULL. An exception may be set. */
static PyObject *bump_of(PyObject *x) {
	PyObject *type = (PyObject *)x->ob_type;
	PyObject *f = bumps ? PyDict_GetItemWithError(bumps, type) : NULL;
	if (f == NULL && !PyObject_CheckBuffer(x) && describer(x))
		f = PyDict_GetItemWithError(bumps, type);
	return f == Py_None ? NULL : f;
}

int tensor_has_version(PyObject *x) {
	int found = 0;
	if (x == Py_None)
		return 0;
	if (PyType_GetFlags(x->ob_type) & TPFLAGS_TUPLE) {
		for (Py_ssize_t i = 0; i < PyTuple_Size(x); i++)
			found |= bump_of(PyTuple_GetItem(x, i)) != NULL;
	} else {
		found = bump_of(x) != NULL;
	}
	PyErr_Clear();
	return found;
}

static void bump(PyObject *x) {
	PyObject *f = bump_of(x);
	if (f) {
		PyObject *r = PyObject_CallFunctionObjArgs(f, x, NULL);
		if (r)
			Py_DecRef(r);
	}
	PyErr_Clear();
}

void tensor_written(PyObject *x) {
	if (x == NULL || x == Py_None)
		return;
	unsigned long flags = PyType_GetFlags(x->ob_type);
	if (flags & TPFLAGS_TUPLE) {
		for (Py_ssize_t i = 0; i < PyTuple_Size(x); i++)
			bump(PyTuple_GetItem(x, i));
	} else if (flags & TPFLAGS_LIST) {
		for (Py_ssize_t i = 0; i < PyList_Size(x); i++)
			bump(PyList_GetItem(x, i));
	} else {
		bump(x);
	}
}

/* is_masked tells whether x is a masked array of NumPy, whose buffer has what is masked, too. It
 * knows them by an attribute of their class, and asks each class once in a row. */
static int is_masked(PyObject *x) {
	static PyObject *plain; /* the last class that is none */
	if ((PyObject *)x->ob_type == plain)
		return 0;
	PyObject *mask = PyObject_GetAttrString((PyObject *)x->ob_type, "_defaultmask");
	if (mask) {
		Py_DecRef(mask);
		return 1;
	}
	PyErr_Clear();
	assign(&plain, (PyObject *)x->ob_type);
	return 0;
}

/* describe_copy describes a copy that is sent in place of a tensor whose memory has other values.
 * The side owns it as it owns a view, so it lives as long as the operation. */
static int describe_copy(side *s, pmpi_buf *b, PyObject *copy, const char *name, int i) {
	if (name[0] == 'r') {
		Py_DecRef(copy);
		raise_code(PMPI_ERR_TYPE,
				   "recv tensor %d is a lazy conjugate or negative of torch, whose memory has "
				   "other values: call resolve_conj() and resolve_neg() on it first",
				   i);
		return -1;
	}
	Py_buffer *v = &s->views[s->n_views++];
	memset(v, 0, sizeof *v);
	v->obj = copy;
	int readonly = 0;
	PyObject *f = describer(copy);
	PyObject *t = f ? PyObject_CallFunctionObjArgs(f, copy, NULL) : NULL;
	if (t == NULL)
		return -1;
	int rc = from_description(s, b, t, &readonly);
	Py_DecRef(t);
	return rc;
}

static int describe_one(side *s, pmpi_buf *b, PyObject *x, const char *name, int i) {
	memset(b, 0, sizeof *b);
	int readonly = 0, rc = -1;
	if (PyObject_CheckBuffer(x)) {
		if (is_masked(x)) {
			raise_code(
				PMPI_ERR_TYPE,
				"%s tensor %d is a masked array, whose mask cannot be sent: give .filled(), or "
				"its .data and .mask",
				name, i);
			return -1;
		}
		Py_buffer *v = &s->views[s->n_views];
		if (PyObject_GetBuffer(x, v, PyBUF_FORMAT | PyBUF_STRIDES) == 0) {
			s->n_views++;
			readonly = v->readonly;
			rc = from_view(s, b, v, name, i);
			goto described;
		}
		PyErr_Clear(); /* a dtype that the protocol cannot express: NumPy's bfloat16 */
	} else {
		DLTensor view;
		uint64_t stream;
		b->dtype = dlpack_describe(x, &view, &stream);
		if (b->dtype) {
			b->data = (char *)view.data + view.byte_offset;
			b->device_type = view.device.device_type;
			b->device_id = view.device.device_id;
			b->ndim = view.ndim;
			b->shape = view.shape;
			b->count = 1;
			for (int d = 0; d < view.ndim; d++)
				b->count *= view.shape[d];
			return on_cuda(b->device_type) ? note_stream(s, stream) : 0;
		}
	}
	PyObject *f = describer(x);
	if (f == NULL)
		return -1;
	PyObject *t = PyObject_CallFunctionObjArgs(f, x, NULL);
	if (t == NULL)
		return -1;
	if (!(PyType_GetFlags(t->ob_type) & TPFLAGS_TUPLE))
		return describe_copy(s, b, t, name, i);
	rc = from_description(s, b, t, &readonly);
	Py_DecRef(t);
described:
	if (rc == 0 && readonly && name[0] == 'r') {
		raise_code(PMPI_ERR_ARGUMENT,
				   "recv tensor %d is read-only; the result cannot be written to it", i);
		return -1;
	}
	return rc;
}

static int room_for(side *s, Py_ssize_t n) {
	s->bufs = s->room;
	s->views = s->view_room;
	if (n <= INLINE_TENSORS)
		return 0;
	s->bufs = malloc((size_t)n * sizeof *s->bufs);
	s->views = malloc((size_t)n * sizeof *s->views);
	if (s->bufs == NULL || s->views == NULL) {
		PyErr_NoMemory();
		return -1;
	}
	return 0;
}

int side_describe(side *s, PyObject *x, const char *name) {
	s->n_dims = 0;
	s->more_dims = NULL;
	s->bufs = s->room;
	s->views = s->view_room;
	if (x == Py_None)
		return 0;
	unsigned long flags = PyType_GetFlags(x->ob_type);
	if (!(flags & (TPFLAGS_LIST | TPFLAGS_TUPLE))) {
		s->n = 1;
		return describe_one(s, s->bufs, x, name, 0);
	}
	int list = (flags & TPFLAGS_LIST) != 0;
	Py_ssize_t n = list ? PyList_Size(x) : PyTuple_Size(x);
	if (n > INT32_MAX) {
		raise_code(PMPI_ERR_ARGUMENT, "%s has %ld tensors", name, (long)n);
		return -1;
	}
	if (room_for(s, n))
		return -1;
	for (Py_ssize_t i = 0; i < n; i++) {
		PyObject *item = list ? PyList_GetItem(x, i) : PyTuple_GetItem(x, i);
		if (item == NULL || describe_one(s, &s->bufs[i], item, name, (int)i))
			return -1;
		s->n++;
	}
	return 0;
}

int side_split(side *s, PyObject *splits, const char *name) {
	if (splits == Py_None)
		return 0;
	if (s->n != 1) {
		raise_code(PMPI_ERR_ARGUMENT, "%s split sizes go with one tensor, not %d", name, s->n);
		return -1;
	}
	pmpi_buf whole = s->bufs[0];
	Py_ssize_t n = PySequence_Size(splits);
	if (n < 0)
		return -1;
	if (whole.ndim < 1 || whole.shape == NULL) {
		raise_code(PMPI_ERR_ARGUMENT, "%s split sizes need a tensor with at least one dimension",
				   name);
		return -1;
	}
	int64_t rows = whole.shape[0], row = rows ? whole.count / rows : 0, from = 0;
	int64_t step = whole.strides ? whole.strides[0] : row;
	pmpi_buf *parts = n <= INLINE_TENSORS ? s->room : malloc((size_t)n * sizeof *parts);
	if (parts == NULL) {
		PyErr_NoMemory();
		return -1;
	}
	s->bufs = parts;
	s->n = (int32_t)n;
	int64_t itemsize = pmpi_dtype_size(whole.dtype);
	for (Py_ssize_t i = 0; i < n; i++) {
		PyObject *item = PySequence_GetItem(splits, i);
		if (item == NULL)
			return -1;
		int64_t take = PyLong_AsLongLong(item);
		Py_DecRef(item);
		if (take == -1 && PyErr_Occurred())
			return -1;
		if (take < 0 || take > rows - from) {
			raise_code(PMPI_ERR_ARGUMENT,
					   "%s split sizes: entry %ld is %lld, but the tensor has %lld rows, %lld of "
					   "them taken before",
					   name, (long)i, (long long)take, (long long)rows, (long long)from);
			return -1;
		}
		parts[i] = whole;
		parts[i].data = (char *)whole.data + from * step * itemsize;
		parts[i].count = take * row;
		if (whole.strides) {
			int64_t *shape = new_dims(s, whole.ndim);
			if (shape == NULL)
				return -1;
			memcpy(shape, whole.shape, (size_t)whole.ndim * sizeof *shape);
			shape[0] = take;
			parts[i].shape = shape;
		} else {
			parts[i].ndim = 0;
			parts[i].shape = NULL;
		}
		from += take;
	}
	if (from != rows) {
		raise_code(PMPI_ERR_ARGUMENT, "%s split sizes add up to %lld; the tensor has %lld rows",
				   name, (long long)from, (long long)rows);
		return -1;
	}
	return 0;
}

void side_release(side *s) {
	for (int32_t i = 0; i < s->n_views; i++)
		PyBuffer_Release(&s->views[i]);
	for (int32_t i = 0; i < s->n_dims; i++)
		free(i < INLINE_TENSORS * 2 ? s->dims[i] : s->more_dims[i - INLINE_TENSORS * 2]);
	free(s->more_dims);
	if (s->bufs != s->room)
		free(s->bufs);
	if (s->views != s->view_room)
		free(s->views);
	s->n = s->n_views = s->n_dims = 0;
	s->more_dims = NULL;
	s->bufs = s->room;
	s->views = s->view_room;
}
#endif

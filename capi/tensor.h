/* A Python object described as pmpi_buf. */
#ifndef PMPI_TENSOR_H
#define PMPI_TENSOR_H

#include "pmpi.h"
#include "pyabi.h"

#define INLINE_TENSORS 4
#define INLINE_DIMS    8

/* One side (send or recv) of an operation. Zero-initialise n, n_views and on_device. */
typedef struct side {
	int32_t n;
	pmpi_buf *bufs;
	Py_buffer *views; /* n_views of them are held */
	int32_t n_views;
	int64_t *dims[INLINE_TENSORS * 2]; /* allocated shapes and strides */
	int32_t n_dims;
	int on_device;   /* whether a tensor lies in CUDA memory, */
	uint64_t stream; /* and then the stream that its framework orders it with */
	int64_t **more_dims;
	pmpi_buf room[INLINE_TENSORS];
	Py_buffer view_room[INLINE_TENSORS];
} side;

/* side_describe fills s from None, a tensor, or a list or tuple of tensors; name is
 * "send" or "recv", and what is received must be writable. Returns 0, or -1 with a
 * Python exception set. side_release must follow in either case. */
int side_describe(side *s, PyObject *tensors, const char *name);

/* side_split presents the one buffer of s as parts of so many rows of its first
 * dimension. Returns 0, or -1 with a Python exception set. */
int side_split(side *s, PyObject *splits, const char *name);

/* side_stream tells the stream of the device tensors of both sides, 0 where there is
 * none. Returns 0, or -1 with a Python exception set: they belong to different ones. */
int side_stream(const side *a, const side *b, uint64_t *stream);

/* side_release lets go of what describing took hold of. Returns nothing. */
void side_release(side *s);

/* tensor_register, tensor_set_resolver: see pymodule.c. Return 0 or -1. */
int tensor_register(PyObject *type, PyObject *describe, PyObject *bump);
int tensor_set_resolver(PyObject *resolver);

/* tensor_written tells those that keep versions of a tensor, or of each of a list or tuple (NULL or
 * None: of none), that it was written to. Errors are not reported: the data is there. */
void tensor_written(PyObject *tensors);

#endif

/* Python objects described as pmpi_buf. */
#ifndef PMPI_TENSOR_H
#define PMPI_TENSOR_H

#include "pmpi.h"
#include "pyabi.h"

#define INLINE_TENSORS 4
#define INLINE_DIMS    8

/* One side (send or recv) of an operation. Before side_describe, set n, n_views and on_device to
 * 0. */
typedef struct side {
	int32_t n;
	pmpi_buf *bufs;
	Py_buffer *views; /* room for Py_buffers; n_views of them are held */
	int32_t n_views;
	int64_t *dims[INLINE_TENSORS * 2]; /* allocated shapes and strides */
	int32_t n_dims;
	int on_device;   /* 1 if a tensor is in CUDA memory */
	uint64_t stream; /* if on_device: the stream on which the framework orders work with it */
	int64_t **more_dims;
	pmpi_buf room[INLINE_TENSORS];
	Py_buffer view_room[INLINE_TENSORS];
} side;

/* side_describe fills s from None, a tensor, or a list or tuple of tensors. name is "send" or
 * "recv"; tensors of recv must be writable. Returns 0, or -1 with a Python exception set.
 * side_release must follow in either case. */
int side_describe(side *s, PyObject *tensors, const char *name);

/* side_split cuts the one buffer of s into parts; splits has the number of rows of its first
 * dimension for each part. Returns 0, or -1 with a Python exception set. */
int side_split(side *s, PyObject *splits, const char *name);

/* side_stream sets *stream to the stream of the device tensors of both sides, or to 0 if there are
 * none. Returns 0, or -1 with a Python exception set if the tensors have different streams. */
int side_stream(const side *a, const side *b, uint64_t *stream);

/* side_release releases everything that side_describe and side_split acquired. Returns nothing. */
void side_release(side *s);

/* tensor_register, tensor_set_resolver: see pymodule.c. Return 0, or -1 with a Python exception
 * set. */
int tensor_register(PyObject *type, PyObject *describe, PyObject *bump);
int tensor_set_resolver(PyObject *resolver);

/* tensor_has_version tells whether tensor_written does anything with x: a tensor, or a tuple of
 * tensors. */
int tensor_has_version(PyObject *tensors);

/* tensor_written tells the frameworks that count versions of a tensor that x was written to: a
 * tensor, or every tensor of a list or tuple; NULL or None: no tensor. It reports no errors,
 * because the data is there. */
void tensor_written(PyObject *tensors);

#endif

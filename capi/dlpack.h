/* DLPack's C exchange API: one call into a tensor's framework describes the tensor. Declared after
 * dlpack.h of DLPack 1.3 (github.com/dmlc/dlpack), the stable part. */
#ifndef PMPI_DLPACK_H
#define PMPI_DLPACK_H

#include "pmpi.h"
#include "pyabi.h"

/* The device types that are used here. */
#define PMPI_DEVICE_CPU          1
#define PMPI_DEVICE_CUDA         2
#define PMPI_DEVICE_CUDA_HOST    3 /* pinned: host memory */
#define PMPI_DEVICE_CUDA_MANAGED 13

typedef struct DLTensor {
	void *data;
	struct {
		int32_t device_type, device_id;
	} device;
	int32_t ndim;
	struct {
		uint8_t code, bits;
		uint16_t lanes;
	} dtype;
	int64_t *shape;
	int64_t *strides;
	uint64_t byte_offset;
} DLTensor;

/* dlpack_describe asks the framework of x to fill view, if it offers the exchange API. Shape and
 * strides of view belong to the framework and last as long as x. For CUDA memory it sets *stream to
 * the stream that is current on the device. Returns the dtype, or 0 if it cannot tell everything;
 * then call the type's describe(). Sets no exception. */
int32_t dlpack_describe(PyObject *x, DLTensor *view, uint64_t *stream);

#endif

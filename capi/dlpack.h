/* DLPack's C exchange API: a tensor's description by one call into its framework.
 * Declared after dlpack.h of DLPack 1.3 (github.com/dmlc/dlpack), the stable part. */
#ifndef PMPI_DLPACK_H
#define PMPI_DLPACK_H

#include "pmpi.h"
#include "pyabi.h"

/* Types of devices, the ones that count here. */
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

/* dlpack_describe asks the framework of x, if it offers the exchange API, and fills
 * view, whose shape and strides are the framework's and last as long as x does, and for
 * CUDA memory stream, the one that is current on its device. Returns the dtype; 0 where it
 * cannot tell everything, so that the type's describe() must. No exception is set. */
int32_t dlpack_describe(PyObject *x, DLTensor *view, uint64_t *stream);

#endif

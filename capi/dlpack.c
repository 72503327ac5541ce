#ifdef PMPI_PYMODULE
#include "dlpack.h"

#include "pytools.h"

#include <string.h>

typedef struct exchange_api {
	struct {
		uint32_t major, minor;
	} version;
	void *prev_api;
	void *managed_tensor_allocator;
	void *managed_tensor_from_py_object_no_sync;
	void *managed_tensor_to_py_object_no_sync;
	int (*dltensor_from_py_object_no_sync)(void *object, DLTensor *out);
	int (*current_work_stream)(int32_t device_type, int32_t device_id, void **out);
} exchange_api;

static PyObject *apis; /* dict: type -> capsule, or None if the type has no such API */

/* api_of returns the API of x's type. It looks it up once for each type. */
static const exchange_api *api_of(PyObject *x) {
	PyObject *type = (PyObject *)x->ob_type;
	if (apis == NULL && (apis = PyDict_New()) == NULL)
		goto failed;
	PyObject *capsule = PyDict_GetItemWithError(apis, type);
	if (capsule == NULL) {
		capsule = PyObject_GetAttrString(type, "__dlpack_c_exchange_api__");
		if (capsule == NULL) {
			PyErr_Clear();
			Py_IncRef(Py_None);
			capsule = Py_None;
		}
		int rc = PyDict_SetItem(apis, type, capsule);
		Py_DecRef(capsule); /* the dict holds a reference */
		if (rc)
			goto failed;
	}
	if (capsule == Py_None)
		return NULL;
	const exchange_api *api = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
	if (api && api->version.major == 1 && api->dltensor_from_py_object_no_sync)
		return api;
failed:
	PyErr_Clear();
	return NULL;
}

static int32_t dtype_of(uint8_t code, uint8_t bits) {
	enum {
		INT,
		UINT,
		FLOAT,
		BFLOAT = 4,
		COMPLEX = 5,
		BOOL = 6,
		E4M3FN = 10,
		E4M3FNUZ,
		E5M2,
		E5M2FNUZ,
		E8M0FNU
	};
	switch (code << 8 | bits) {
	case INT << 8 | 8:
		return PMPI_DTYPE_INT8;
	case INT << 8 | 16:
		return PMPI_DTYPE_INT16;
	case INT << 8 | 32:
		return PMPI_DTYPE_INT32;
	case INT << 8 | 64:
		return PMPI_DTYPE_INT64;
	case UINT << 8 | 8:
		return PMPI_DTYPE_UINT8;
	case UINT << 8 | 16:
		return PMPI_DTYPE_UINT16;
	case UINT << 8 | 32:
		return PMPI_DTYPE_UINT32;
	case UINT << 8 | 64:
		return PMPI_DTYPE_UINT64;
	case FLOAT << 8 | 16:
		return PMPI_DTYPE_FLOAT16;
	case FLOAT << 8 | 32:
		return PMPI_DTYPE_FLOAT32;
	case FLOAT << 8 | 64:
		return PMPI_DTYPE_FLOAT64;
	case BFLOAT << 8 | 16:
		return PMPI_DTYPE_BFLOAT16;
	case BOOL << 8 | 8:
		return PMPI_DTYPE_BOOL;
	case E4M3FN << 8 | 8:
		return PMPI_DTYPE_FLOAT8_E4M3FN;
	case E4M3FNUZ << 8 | 8:
		return PMPI_DTYPE_FLOAT8_E4M3FNUZ;
	case E5M2 << 8 | 8:
		return PMPI_DTYPE_FLOAT8_E5M2;
	case E5M2FNUZ << 8 | 8:
		return PMPI_DTYPE_FLOAT8_E5M2FNUZ;
	case E8M0FNU << 8 | 8:
		return PMPI_DTYPE_FLOAT8_E8M0FNU;
	}
	return 0; /* also for complex dtypes: see dlpack_describe */
}

/* stream_of sets *stream to the framework's current stream on the device of view. Returns 1, or 0
 * if the framework does not tell. */
static int stream_of(const exchange_api *api, const DLTensor *view, uint64_t *stream) {
	int32_t type = view->device.device_type;
	if (type == PMPI_DEVICE_CUDA_HOST)
		return 1;
	if ((type != PMPI_DEVICE_CUDA && type != PMPI_DEVICE_CUDA_MANAGED) ||
		api->current_work_stream == NULL)
		return 0;
	void *current = NULL;
	if (api->current_work_stream(type, view->device.device_id, &current)) {
		PyErr_Clear();
		return 0;
	}
	*stream = (uint64_t)(uintptr_t)current;
	return 1;
}

/* A question is a method without arguments that the tensors of some framework have. */
typedef struct {
	const char *name;
	PyObject *method;
	PyObject *none_of; /* dict: types whose objects have no such method */
} question;

/* answer returns what x answers, and otherwise if it has no such method. Types that have none are
 * not asked a second time. */
static int answer(question *q, PyObject *x, int otherwise) {
	PyObject *type = (PyObject *)x->ob_type;
	if (q->method == NULL && (q->method = PyUnicode_InternFromString(q->name)) == NULL)
		goto failed;
	if (q->none_of == NULL && (q->none_of = PyDict_New()) == NULL)
		goto failed;
	if (PyDict_GetItemWithError(q->none_of, type))
		return otherwise;
	PyObject *said = PyObject_CallMethodObjArgs(x, q->method, NULL);
	if (said == NULL) {
		PyErr_Clear();
		PyDict_SetItem(q->none_of, type, Py_None);
		goto failed;
	}
	int yes = PyObject_IsTrue(said);
	Py_DecRef(said);
	return yes;
failed:
	PyErr_Clear();
	return otherwise;
}

static question is_neg = {.name = "is_neg"};     /* torch: a lazy negative view */
static question is_dense = {.name = "is_dense"}; /* Paddle: no SelectedRows, nor sparse */

int32_t dlpack_describe(PyObject *x, DLTensor *view, uint64_t *stream) {
	const exchange_api *api = api_of(x);
	/* Paddle takes memory that is none of SelectedRows for theirs, and crashes. */
	if (api == NULL || !answer(&is_dense, x, 1))
		return 0;
	memset(view, 0, sizeof *view);
	if (api->dltensor_from_py_object_no_sync(x, view)) {
		PyErr_Clear();
		return 0;
	}
	/* torch's lazy conjugate and negative views have other bits in memory, and DLPack does not say
	 * so. Conjugate views are complex, negative ones are not, but the imaginary part of a conjugate
	 * view. The type's describe() recognises both. */
	if (view->dtype.lanes != 1 || view->ndim < 1 || view->data == NULL)
		return 0;
	if (view->device.device_type != PMPI_DEVICE_CPU && !stream_of(api, view, stream))
		return 0;
	int64_t expected = 1;
	for (int d = view->ndim - 1; d >= 0 && view->strides; d--) {
		if (view->strides[d] != expected)
			return 0;
		expected *= view->shape[d];
	}
	int32_t dtype = dtype_of(view->dtype.code, view->dtype.bits);
	return dtype && answer(&is_neg, x, 0) ? 0 : dtype;
}
#endif

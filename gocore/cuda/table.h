// The functions of the CUDA driver that the core calls, by their names in libcuda, which contain
// the version of the signature. Source: CUDA Driver API reference, 11.0 to 13.x.
#ifndef PMPI_CUDA_TABLE_H
#define PMPI_CUDA_TABLE_H

#include <stddef.h>
#include <stdint.h>

typedef struct pc_handle {
	char bytes[64];
} pc_handle; // CUipcMemHandle and CUipcEventHandle, which are passed by value

#define PC_FUNCTIONS(X)                                                                            \
	X(cuInit, (unsigned))                                                                          \
	X(cuDriverGetVersion, (int *))                                                                 \
	X(cuGetErrorName, (int, const char **))                                                        \
	X(cuGetErrorString, (int, const char **))                                                      \
	X(cuDeviceGetCount, (int *))                                                                   \
	X(cuDeviceGet, (int *, int))                                                                   \
	X(cuDeviceGetName, (char *, int, int))                                                         \
	X(cuDeviceGetUuid, (void *, int))                                                              \
	X(cuDeviceGetPCIBusId, (char *, int, int))                                                     \
	X(cuDeviceGetAttribute, (int *, int, int))                                                     \
	X(cuDeviceTotalMem_v2, (size_t *, int))                                                        \
	X(cuDeviceCanAccessPeer, (int *, int, int))                                                    \
	X(cuDevicePrimaryCtxRetain, (void **, int))                                                    \
	X(cuCtxPushCurrent_v2, (void *))                                                               \
	X(cuCtxPopCurrent_v2, (void **))                                                               \
	X(cuCtxGetStreamPriorityRange, (int *, int *))                                                 \
	X(cuPointerGetAttributes, (unsigned, int *, void **, uintptr_t))                               \
	X(cuMemAlloc_v2, (uintptr_t *, size_t))                                                        \
	X(cuMemFree_v2, (uintptr_t))                                                                   \
	X(cuMemHostAlloc, (void **, size_t, unsigned))                                                 \
	X(cuMemFreeHost, (void *))                                                                     \
	X(cuMemcpyAsync, (uintptr_t, uintptr_t, size_t, void *))                                       \
	X(cuStreamCreateWithPriority, (void **, unsigned, int))                                        \
	X(cuStreamWaitEvent, (void *, void *, unsigned))                                               \
	X(cuStreamIsCapturing, (void *, int *))                                                        \
	X(cuStreamSynchronize, (void *))                                                               \
	X(cuEventCreate, (void **, unsigned))                                                          \
	X(cuEventDestroy_v2, (void *))                                                                 \
	X(cuEventRecord, (void *, void *))                                                             \
	X(cuEventQuery, (void *))                                                                      \
	X(cuIpcGetMemHandle, (pc_handle *, uintptr_t))                                                 \
	X(cuIpcOpenMemHandle_v2, (uintptr_t *, pc_handle, unsigned))                                   \
	X(cuIpcCloseMemHandle, (uintptr_t))                                                            \
	X(cuIpcGetEventHandle, (pc_handle *, void *))                                                  \
	X(cuIpcOpenEventHandle, (void **, pc_handle))                                                  \
	X(cuModuleLoadData, (void **, const void *))                                                   \
	X(cuModuleGetFunction, (void **, void *, const char *))                                        \
	X(cuLaunchKernel, (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,         \
					   unsigned, void *, void **, void **))

#define PC_DECLARE(name, args) int(*name) args;
typedef struct pc_table {
	PC_FUNCTIONS(PC_DECLARE)
} pc_table;

// Values of CUresult.
enum {
	PC_SUCCESS = 0,
	PC_INVALID_VALUE = 1,
	PC_OUT_OF_MEMORY = 2,
	PC_NOT_INITIALIZED = 3,
	PC_DEINITIALIZED = 4,
	PC_NO_DEVICE = 100,
	PC_ALREADY_MAPPED = 208,
	PC_NOT_READY = 600,
	PC_ILLEGAL_ADDRESS = 700,
};

// pc_name returns the name of function i of the table, or NULL after the last one.
const char *pc_name(int i);
// pc_set puts the address of function i into the table.
void pc_set(int i, void *address);

// The functions below return a CUresult. One that takes a context makes it current for the call,
// and then makes the thread's context current again.
int pc_init(void);
int pc_version(int *version);
void pc_error(int code, const char **name, const char **text);
int pc_device_count(int *n);
int pc_device_name(int device, char *name, int size);
int pc_device_uuid(int device, char uuid[16]);
int pc_device_bus(int device, char *bus, int size);
int pc_device_attribute(int device, int attribute, int *value);
int pc_device_memory(int device, int64_t *bytes);
int pc_device_can_access(int device, int other, int *can);
int pc_device_context(int device, uintptr_t *context);
int pc_where(uintptr_t pointer, int *type, int *managed, int *device, uint64_t *id, uintptr_t *base,
			 int64_t *size, int *ipc);
int pc_alloc(uintptr_t context, int64_t bytes, uintptr_t *pointer);
int pc_free(uintptr_t context, uintptr_t pointer);
int pc_host_alloc(uintptr_t context, int64_t bytes, uintptr_t *pointer);
int pc_host_free(uintptr_t context, uintptr_t pointer);
int pc_copy(uintptr_t context, uintptr_t dst, uintptr_t src, int64_t bytes, uintptr_t stream);
int pc_stream_new(uintptr_t context, uintptr_t *stream);
int pc_stream_wait(uintptr_t context, uintptr_t stream, uintptr_t event);
int pc_stream_capturing(uintptr_t context, uintptr_t stream, int *capturing);
int pc_stream_sync(uintptr_t context, uintptr_t stream);
int pc_event_new(uintptr_t context, int ipc, uintptr_t *event);
int pc_event_free(uintptr_t context, uintptr_t event);
int pc_event_record(uintptr_t context, uintptr_t event, uintptr_t stream);
int pc_event_query(uintptr_t context, uintptr_t event);
int pc_ipc_get(uintptr_t context, uintptr_t pointer, pc_handle *handle);
int pc_ipc_open(uintptr_t context, const pc_handle *handle, uintptr_t *pointer);
int pc_ipc_close(uintptr_t context, uintptr_t pointer);
int pc_ipc_get_event(uintptr_t context, uintptr_t event, pc_handle *handle);
int pc_ipc_open_event(uintptr_t context, const pc_handle *handle, uintptr_t *event);
int pc_module_load(uintptr_t context, const char *ptx, uintptr_t *module);
int pc_module_function(uintptr_t context, uintptr_t module, const char *name, uintptr_t *function);
int pc_launch(uintptr_t context, uintptr_t function, uint32_t grid, uint32_t block, void *parameter,
			  uintptr_t stream);

#endif

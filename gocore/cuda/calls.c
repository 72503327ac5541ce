#include "table.h"

#include <stddef.h>

static pc_table cu;

#define PC_NAME(name, args) #name,
static const char *const names[] = {PC_FUNCTIONS(PC_NAME) NULL};

const char *pc_name(int i) {
	return names[i];
}

void pc_set(int i, void *address) {
	((void **)&cu)[i] = address;
}

// IN runs a call in the context of a device. A thread of a framework may have a current context,
// and has it again afterwards. Go's threads have none.
#define IN(context, call)                                                                          \
	do {                                                                                           \
		int rc_ = cu.cuCtxPushCurrent_v2((void *)(context));                                       \
		if (rc_)                                                                                   \
			return rc_;                                                                            \
		rc_ = (call);                                                                              \
		void *was_;                                                                                \
		int popped_ = cu.cuCtxPopCurrent_v2(&was_);                                                \
		return rc_ ? rc_ : popped_;                                                                \
	} while (0)

int pc_init(void) {
	return cu.cuInit(0);
}

int pc_version(int *version) {
	return cu.cuDriverGetVersion(version);
}

void pc_error(int code, const char **name, const char **text) {
	if (cu.cuGetErrorName(code, name) || *name == NULL)
		*name = "unknown error";
	if (cu.cuGetErrorString(code, text) || *text == NULL)
		*text = "";
}

int pc_device_count(int *n) {
	return cu.cuDeviceGetCount(n);
}

int pc_device_name(int device, char *name, int size) {
	return cu.cuDeviceGetName(name, size, device);
}

int pc_device_uuid(int device, char uuid[16]) {
	return cu.cuDeviceGetUuid(uuid, device);
}

int pc_device_bus(int device, char *bus, int size) {
	return cu.cuDeviceGetPCIBusId(bus, size, device);
}

int pc_device_attribute(int device, int attribute, int *value) {
	return cu.cuDeviceGetAttribute(value, attribute, device);
}

int pc_device_memory(int device, int64_t *bytes) {
	size_t n = 0;
	int rc = cu.cuDeviceTotalMem_v2(&n, device);
	*bytes = (int64_t)n;
	return rc;
}

int pc_device_can_access(int device, int other, int *can) {
	return cu.cuDeviceCanAccessPeer(can, device, other);
}

int pc_device_context(int device, uintptr_t *context) {
	int handle;
	int rc = cu.cuDeviceGet(&handle, device);
	return rc ? rc : cu.cuDevicePrimaryCtxRetain((void **)context, handle);
}

// Of a pointer that the driver does not know, all attributes but the device are 0.
int pc_where(uintptr_t pointer, int *type, int *managed, int *device, uint64_t *id, uintptr_t *base,
			 int64_t *size, int *ipc) {
	enum {
		MEMORY_TYPE = 2,
		BUFFER_ID = 7,
		IS_MANAGED = 8,
		DEVICE_ORDINAL = 9,
		IPC_CAPABLE = 10,
		RANGE_START = 11,
		RANGE_SIZE = 12
	};
	int attributes[] = {MEMORY_TYPE, BUFFER_ID,   IS_MANAGED, DEVICE_ORDINAL,
						IPC_CAPABLE, RANGE_START, RANGE_SIZE};
	size_t length = 0;
	void *values[] = {type, id, managed, device, ipc, base, &length};
	*type = *managed = *device = *ipc = 0;
	*id = 0;
	*base = 0;
	int rc = cu.cuPointerGetAttributes(sizeof attributes / sizeof *attributes, attributes, values,
									   pointer);
	*size = (int64_t)length;
	return rc;
}

int pc_alloc(uintptr_t context, int64_t bytes, uintptr_t *pointer) {
	IN(context, cu.cuMemAlloc_v2(pointer, (size_t)bytes));
}

int pc_free(uintptr_t context, uintptr_t pointer) {
	IN(context, cu.cuMemFree_v2(pointer));
}

int pc_host_alloc(uintptr_t context, int64_t bytes, uintptr_t *pointer) {
	enum { PORTABLE = 1, DEVICEMAP = 2 };
	IN(context, cu.cuMemHostAlloc((void **)pointer, (size_t)bytes, PORTABLE | DEVICEMAP));
}

int pc_host_free(uintptr_t context, uintptr_t pointer) {
	IN(context, cu.cuMemFreeHost((void *)pointer));
}

int pc_copy(uintptr_t context, uintptr_t dst, uintptr_t src, int64_t bytes, uintptr_t stream) {
	IN(context, cu.cuMemcpyAsync(dst, src, (size_t)bytes, (void *)stream));
}

static int new_stream(uintptr_t *stream) {
	enum { NON_BLOCKING = 1 };
	int least = 0, greatest = 0;
	int rc = cu.cuCtxGetStreamPriorityRange(&least, &greatest);
	return rc ? rc : cu.cuStreamCreateWithPriority((void **)stream, NON_BLOCKING, greatest);
}

int pc_stream_new(uintptr_t context, uintptr_t *stream) {
	IN(context, new_stream(stream));
}

int pc_stream_wait(uintptr_t context, uintptr_t stream, uintptr_t event) {
	IN(context, cu.cuStreamWaitEvent((void *)stream, (void *)event, 0));
}

int pc_stream_capturing(uintptr_t context, uintptr_t stream, int *capturing) {
	IN(context, cu.cuStreamIsCapturing((void *)stream, capturing));
}

int pc_stream_sync(uintptr_t context, uintptr_t stream) {
	IN(context, cu.cuStreamSynchronize((void *)stream));
}

int pc_event_new(uintptr_t context, int ipc, uintptr_t *event) {
	enum { DISABLE_TIMING = 2, INTERPROCESS = 4 };
	IN(context, cu.cuEventCreate((void **)event, DISABLE_TIMING | (ipc ? INTERPROCESS : 0)));
}

int pc_event_free(uintptr_t context, uintptr_t event) {
	IN(context, cu.cuEventDestroy_v2((void *)event));
}

int pc_event_record(uintptr_t context, uintptr_t event, uintptr_t stream) {
	IN(context, cu.cuEventRecord((void *)event, (void *)stream));
}

int pc_event_query(uintptr_t context, uintptr_t event) {
	IN(context, cu.cuEventQuery((void *)event));
}

int pc_ipc_get(uintptr_t context, uintptr_t pointer, pc_handle *handle) {
	IN(context, cu.cuIpcGetMemHandle(handle, pointer));
}

int pc_ipc_open(uintptr_t context, const pc_handle *handle, uintptr_t *pointer) {
	enum { LAZY_ENABLE_PEER_ACCESS = 1 };
	IN(context, cu.cuIpcOpenMemHandle_v2(pointer, *handle, LAZY_ENABLE_PEER_ACCESS));
}

int pc_ipc_close(uintptr_t context, uintptr_t pointer) {
	IN(context, cu.cuIpcCloseMemHandle(pointer));
}

int pc_ipc_get_event(uintptr_t context, uintptr_t event, pc_handle *handle) {
	IN(context, cu.cuIpcGetEventHandle(handle, (void *)event));
}

int pc_ipc_open_event(uintptr_t context, const pc_handle *handle, uintptr_t *event) {
	IN(context, cu.cuIpcOpenEventHandle((void **)event, *handle));
}

int pc_module_load(uintptr_t context, const char *ptx, uintptr_t *module) {
	IN(context, cu.cuModuleLoadData((void **)module, ptx));
}

int pc_module_function(uintptr_t context, uintptr_t module, const char *name, uintptr_t *function) {
	IN(context, cu.cuModuleGetFunction((void **)function, (void *)module, name));
}

int pc_launch(uintptr_t context, uintptr_t function, uint32_t grid, uint32_t block, void *parameter,
			  uintptr_t stream) {
	void *parameters[] = {parameter};
	IN(context, cu.cuLaunchKernel((void *)function, grid, 1, 1, block, 1, 1, 0, (void *)stream,
								  parameters, NULL));
}

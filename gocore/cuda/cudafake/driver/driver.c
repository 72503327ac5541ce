// Initialisation, devices, contexts, names of errors, and the failures that tests ask for.
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fake.h"

pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
struct context contexts[MAX_DEVICES];
int n_devices;

static bool initialised, forked;
static struct call *calls;

static struct rule {
	char name[48];
	long nth; // 0 for each call
	long seen;
	CUresult error;
} rules[16];

static __thread struct context *stack[32];
static __thread int depth;

long long setting(const char *name, long long otherwise) {
	const char *text = getenv(name);
	return text && *text ? atoll(text) : otherwise;
}

EXPORT int fakecuda_fail(const char *text) {
	pthread_mutex_lock(&lock);
	memset(rules, 0, sizeof rules);
	int n = 0, used = 0;
	char nth[16];
	while (n < 16 && sscanf(text, " %47[^:,]:%15[^:,]:%d%n", rules[n].name, nth, &rules[n].error,
							&used) == 3) {
		rules[n++].nth = atol(nth); // 0 for *
		text += used;
		text += *text == ',';
	}
	pthread_mutex_unlock(&lock);
	return *text ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

EXPORT uint64_t fakecuda_calls(const char *name) {
	uint64_t n = 0;
	pthread_mutex_lock(&lock);
	for (struct call *c = calls; c; c = c->next)
		if (!strcmp(c->name, name))
			n = c->n;
	pthread_mutex_unlock(&lock);
	return n;
}

static void after_fork(void) {
	forked = initialised;
}

__attribute__((constructor)) static void load(void) {
	const char *text = getenv("PMPI_FAKECUDA_FAIL");
	if (text && fakecuda_fail(text)) {
		fprintf(stderr, "fakecuda: PMPI_FAKECUDA_FAIL=%s is not name:N:error,...\n", text);
		abort();
	}
	pthread_atfork(NULL, NULL, after_fork);
}

CUresult enter(struct call *call, enum need need) {
	if (forked)
		return CUDA_ERROR_NOT_INITIALIZED;
	CUresult error = CUDA_SUCCESS;
	pthread_mutex_lock(&lock);
	if (!call->n++) {
		call->next = calls;
		calls = call;
	}
	for (struct rule *r = rules; r < rules + 16 && !error; r++)
		if (!strcmp(r->name, call->name) && (++r->seen == r->nth || !r->nth))
			error = r->error;
	if (!error && need >= INIT && !initialised)
		error = CUDA_ERROR_NOT_INITIALIZED;
	if (!error && need == CONTEXT)
		error = current() ? current()->error : CUDA_ERROR_INVALID_CONTEXT;
	pthread_mutex_unlock(&lock);
	return error;
}

struct context *current(void) {
	return depth ? stack[depth - 1] : NULL;
}

static bool known(const struct context *ctx) {
	return ctx >= contexts && ctx < contexts + n_devices && ctx->refs > 0;
}

EXPORT CUresult cuInit(unsigned flags) {
	ENTER(NOTHING);
	if (flags)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&lock);
	if (!initialised) {
		int physical = (int)setting("PMPI_FAKECUDA_DEVICES", 2);
		const char *visible = getenv("CUDA_VISIBLE_DEVICES");
		n_devices = 0;
		for (int i = 0; !visible && i < physical && i < MAX_DEVICES; i++)
			contexts[n_devices++].physical = i;
		// Up to the first that does not exist, as the real one reads it.
		for (char *end; visible && *visible && n_devices < MAX_DEVICES; visible = end) {
			long i = strtol(visible, &end, 10);
			if (end == visible || i < 0 || i >= physical)
				break;
			contexts[n_devices++].physical = (int)i;
			end += *end == ',';
		}
		for (int i = 0; i < n_devices; i++)
			contexts[i].device = i;
		initialised = n_devices > 0;
	}
	pthread_mutex_unlock(&lock);
	return n_devices ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}

EXPORT CUresult cuDriverGetVersion(int *version) {
	ENTER(NOTHING);
	*version = (int)setting("PMPI_FAKECUDA_VERSION", 12040);
	return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetCount(int *count) {
	ENTER(INIT);
	*count = n_devices;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGet(CUdevice *device, int ordinal) {
	ENTER(INIT);
	*device = ordinal;
	return ordinal >= 0 && ordinal < n_devices ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

#define CHECK_DEVICE(device)                                                                       \
	if ((device) < 0 || (device) >= n_devices)                                                     \
	return CUDA_ERROR_INVALID_DEVICE

EXPORT CUresult cuDeviceGetName(char *name, int length, CUdevice device) {
	ENTER(INIT);
	CHECK_DEVICE(device);
	snprintf(name, (size_t)length, "Fake CUDA device");
	return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetUuid(char uuid[16], CUdevice device) {
	ENTER(INIT);
	CHECK_DEVICE(device);
	memcpy(uuid, "fake cuda device", 16);
	uuid[15] = (char)contexts[device].physical;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetUuid_v2(char uuid[16], CUdevice device) {
	return cuDeviceGetUuid(uuid, device);
}

EXPORT CUresult cuDeviceGetPCIBusId(char *id, int length, CUdevice device) {
	ENTER(INIT);
	CHECK_DEVICE(device);
	snprintf(id, (size_t)length, "0000:%02X:00.0", contexts[device].physical + 1);
	return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
	ENTER(INIT);
	CHECK_DEVICE(device);
	*bytes = (size_t)setting("PMPI_FAKECUDA_MEMORY", 1LL << 34);
	return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device) {
	ENTER(INIT);
	CHECK_DEVICE(device);
	switch (attribute) {
	case 1: // MAX_THREADS_PER_BLOCK
		*value = 1024;
		break;
	case 10: // WARP_SIZE
		*value = 32;
		break;
	case 16: // MULTIPROCESSOR_COUNT
		*value = 2;
		break;
	case 33: // PCI_BUS_ID
		*value = contexts[device].physical + 1;
		break;
	case 75: // COMPUTE_CAPABILITY_MAJOR
		*value = 7;
		break;
	case 19:  // CAN_MAP_HOST_MEMORY
	case 40:  // ASYNC_ENGINE_COUNT
	case 41:  // UNIFIED_ADDRESSING
	case 78:  // STREAM_PRIORITIES_SUPPORTED
	case 83:  // MANAGED_MEMORY
	case 91:  // CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM
	case 115: // MEMORY_POOLS_SUPPORTED
		*value = 1;
		break;
	default:
		*value = 0;
	}
	return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer) {
	ENTER(INIT);
	CHECK_DEVICE(device);
	CHECK_DEVICE(peer);
	*can = device != peer && setting("PMPI_FAKECUDA_PEER", 1);
	return CUDA_SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxRetain(struct context **ctx, CUdevice device) {
	ENTER(INIT);
	CHECK_DEVICE(device);
	pthread_mutex_lock(&lock);
	*ctx = &contexts[device];
	(*ctx)->refs++;
	pthread_mutex_unlock(&lock);
	return CUDA_SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
	ENTER(INIT);
	CHECK_DEVICE(device);
	pthread_mutex_lock(&lock);
	CUresult error = known(&contexts[device]) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
	contexts[device].refs -= !error;
	pthread_mutex_unlock(&lock);
	return error;
}

EXPORT CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active) {
	ENTER(INIT);
	CHECK_DEVICE(device);
	*flags = 0;
	*active = known(&contexts[device]);
	return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxPushCurrent_v2(struct context *ctx) {
	ENTER(INIT);
	if (!known(ctx))
		return CUDA_ERROR_INVALID_CONTEXT;
	if (depth == 32)
		return CUDA_ERROR_OUT_OF_MEMORY;
	stack[depth++] = ctx;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxPopCurrent_v2(struct context **ctx) {
	ENTER(INIT);
	if (!depth)
		return CUDA_ERROR_INVALID_CONTEXT;
	struct context *top = stack[--depth];
	if (ctx)
		*ctx = top;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetCurrent(struct context **ctx) {
	ENTER(INIT);
	*ctx = current();
	return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxSetCurrent(struct context *ctx) {
	ENTER(INIT);
	if (ctx && !known(ctx))
		return CUDA_ERROR_INVALID_CONTEXT;
	depth -= depth > 0;
	if (ctx)
		stack[depth++] = ctx;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetDevice(CUdevice *device) {
	ENTER(CONTEXT);
	*device = current()->device;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest) {
	ENTER(CONTEXT);
	if (least)
		*least = 0;
	if (greatest)
		*greatest = -5;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxEnablePeerAccess(struct context *peer, unsigned flags) {
	ENTER(CONTEXT);
	struct context *ctx = current();
	if (flags)
		return CUDA_ERROR_INVALID_VALUE;
	if (!known(peer) || peer == ctx)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (!setting("PMPI_FAKECUDA_PEER", 1))
		return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
	pthread_mutex_lock(&lock);
	bool already = ctx->peers >> peer->device & 1;
	ctx->peers |= 1U << peer->device;
	pthread_mutex_unlock(&lock);
	return already ? CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED : CUDA_SUCCESS;
}

static const struct {
	CUresult error;
	const char *name, *text;
} errors[] = {
	{CUDA_SUCCESS, "CUDA_SUCCESS", "no error"},
	{CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
	{CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
	{CUDA_ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
	{CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
	{CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
	{CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
	{CUDA_ERROR_MAP_FAILED, "CUDA_ERROR_MAP_FAILED", "mapping of buffer object failed"},
	{CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED",
	 "peer access is not supported between these two devices"},
	{CUDA_ERROR_INVALID_PTX, "CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed"},
	{CUDA_ERROR_UNSUPPORTED_PTX_VERSION, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
	 "the provided PTX was compiled with an unsupported toolchain."},
	{CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND, "CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND",
	 "shared object symbol not found"},
	{CUDA_ERROR_OPERATING_SYSTEM, "CUDA_ERROR_OPERATING_SYSTEM",
	 "OS call failed or operation not supported on this OS"},
	{CUDA_ERROR_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
	{CUDA_ERROR_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
	{CUDA_ERROR_NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
	{CUDA_ERROR_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS",
	 "an illegal memory access was encountered"},
	{CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED",
	 "peer access is already enabled"},
	{CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
	 "part or all of the requested memory range is already mapped"},
	{CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
	 "pointer does not correspond to a registered memory region"},
	{CUDA_ERROR_LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
	{CUDA_ERROR_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
	{CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
	 "operation not permitted when stream is capturing"},
};

static CUresult describe(CUresult error, bool name, const char **text) {
	for (size_t i = 0; i < sizeof errors / sizeof *errors; i++) {
		if (errors[i].error == error) {
			*text = name ? errors[i].name : errors[i].text;
			return CUDA_SUCCESS;
		}
	}
	*text = NULL;
	return CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuGetErrorName(CUresult error, const char **text) {
	return describe(error, true, text);
}

EXPORT CUresult cuGetErrorString(CUresult error, const char **text) {
	return describe(error, false, text);
}

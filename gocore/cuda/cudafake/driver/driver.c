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
	long nth; // 0: every call
	long seen;
	CUresult error;
} rules[16];

enum { MAX_DEPTH = 32 };
static __thread struct context *stack[MAX_DEPTH];
static __thread int depth;

long long setting(const char *name, long long otherwise) {
	const char *text = getenv(name);
	return text && *text ? atoll(text) : otherwise;
}

EXPORT int fakecuda_fail(const char *text) {
	pthread_mutex_lock(&lock);
	memset(rules, 0, sizeof rules);
	char nth[16];
	for (int n = 0, used = 0; n < 16; n++, text += used, text += *text == ',') {
		struct rule *r = &rules[n];
		if (sscanf(text, " %47[^:,]:%15[^:,]:%d%n", r->name, nth, &r->error, &used) != 3)
			break;
		r->nth = atol(nth); // 0 for *
	}
	pthread_mutex_unlock(&lock);
	return *text ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

EXPORT uint64_t fakecuda_calls(const char *name) {
	uint64_t n = 0;
	pthread_mutex_lock(&lock);
	for (struct call *c = calls; c; c = c->next)
		n += strcmp(c->name, name) ? 0 : c->n;
	pthread_mutex_unlock(&lock);
	return n;
}

static void after_fork(void) {
	forked = initialised;
	lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER; // another thread may have held it
}

__attribute__((constructor)) static void load(void) {
	const char *text = getenv("PMPI_FAKECUDA_FAIL");
	if (text && fakecuda_fail(text)) {
		fprintf(stderr, "fakecuda: PMPI_FAKECUDA_FAIL=%s is not name:N:error,...\n", text);
		abort();
	}
	pthread_atfork(NULL, NULL, after_fork);
}

struct context *current(void) {
	return depth ? stack[depth - 1] : NULL;
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
	if (error)
		pthread_mutex_unlock(&lock);
	return error;
}

void leave(const int *unused) {
	(void)unused;
	pthread_mutex_unlock(&lock);
}

EXPORT CUresult cuInit(unsigned flags) {
	ENTER(NOTHING);
	int physical = (int)setting("PMPI_FAKECUDA_DEVICES", 2);
	const char *visible = getenv("CUDA_VISIBLE_DEVICES");
	if (flags)
		return CUDA_ERROR_INVALID_VALUE;
	for (int i = 0; !initialised && !visible && i < physical && i < MAX_DEVICES; i++)
		contexts[n_devices++].physical = i;
	// Up to the first number that is no device, as the real driver reads it.
	for (char *end; !initialised && visible && n_devices < MAX_DEVICES; visible = end) {
		long i = strtol(visible, &end, 10);
		if (end == visible || i < 0 || i >= physical)
			break;
		contexts[n_devices++].physical = (int)i;
		end += *end == ',';
	}
	for (int i = 0; i < n_devices; i++)
		contexts[i].device = i;
	initialised = n_devices > 0;
	return initialised ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
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

static bool exists(CUdevice device) {
	return device >= 0 && device < n_devices;
}

EXPORT CUresult cuDeviceGet(CUdevice *device, int ordinal) {
	ENTER(INIT);
	*device = ordinal;
	return exists(ordinal) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

#define CHECK(device)                                                                              \
	if (!exists(device))                                                                           \
	return CUDA_ERROR_INVALID_DEVICE

EXPORT CUresult cuDeviceGetName(char *name, int length, CUdevice device) {
	ENTER(INIT);
	CHECK(device);
	snprintf(name, (size_t)length, "Fake CUDA device %d", contexts[device].physical);
	return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetUuid(char uuid[16], CUdevice device) {
	ENTER(INIT);
	CHECK(device);
	memcpy(uuid, "fake cuda device", 16);
	uuid[15] = (char)contexts[device].physical;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetUuid_v2(char uuid[16], CUdevice device) {
	return cuDeviceGetUuid(uuid, device);
}

EXPORT CUresult cuDeviceGetPCIBusId(char *id, int length, CUdevice device) {
	ENTER(INIT);
	CHECK(device);
	snprintf(id, (size_t)length, "0000:%02X:00.0", contexts[device].physical + 1);
	return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
	ENTER(INIT);
	CHECK(device);
	*bytes = (size_t)setting("PMPI_FAKECUDA_MEMORY", 1LL << 34);
	return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetAttribute(int *value, int which, CUdevice device) {
	ENTER(INIT);
	CHECK(device);
	switch (which) {
	case 19:  // CAN_MAP_HOST_MEMORY
	case 40:  // ASYNC_ENGINE_COUNT
	case 41:  // UNIFIED_ADDRESSING
	case 78:  // STREAM_PRIORITIES_SUPPORTED
	case 83:  // MANAGED_MEMORY
	case 91:  // CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM
	case 115: // MEMORY_POOLS_SUPPORTED
		*value = 1;
		break;
	case 1:  // MAX_THREADS_PER_BLOCK
	case 16: // MULTIPROCESSOR_COUNT
	case 75: // COMPUTE_CAPABILITY_MAJOR
		*value = which == 1 ? 1024 : which == 16 ? 2 : 7;
		break;
	default:
		*value = 0;
	}
	return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer) {
	ENTER(INIT);
	CHECK(device);
	CHECK(peer);
	*can = device != peer && setting("PMPI_FAKECUDA_PEER", 1);
	return CUDA_SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *ctx, CUdevice device) {
	ENTER(INIT);
	CHECK(device);
	*ctx = &contexts[device];
	(*ctx)->refs++;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
	ENTER(INIT);
	CHECK(device);
	if (contexts[device].refs == 0)
		return CUDA_ERROR_INVALID_CONTEXT;
	contexts[device].refs--;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active) {
	ENTER(INIT);
	CHECK(device);
	*flags = 0;
	*active = contexts[device].refs > 0;
	return CUDA_SUCCESS;
}

static bool alive(const struct context *ctx) {
	return ctx >= contexts && ctx < contexts + n_devices && ctx->refs > 0;
}

EXPORT CUresult cuCtxPushCurrent_v2(CUcontext ctx) {
	ENTER(INIT);
	if (!alive(ctx) || depth == MAX_DEPTH)
		return CUDA_ERROR_INVALID_CONTEXT;
	stack[depth++] = ctx;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxPopCurrent_v2(CUcontext *ctx) {
	ENTER(INIT);
	if (!depth)
		return CUDA_ERROR_INVALID_CONTEXT;
	depth--;
	if (ctx)
		*ctx = stack[depth];
	return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetCurrent(CUcontext *ctx) {
	ENTER(INIT);
	*ctx = current();
	return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxSetCurrent(CUcontext ctx) {
	ENTER(INIT);
	if (ctx && !alive(ctx))
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
	*least = 0;
	*greatest = -5;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags) {
	ENTER(CONTEXT);
	if (flags || !alive(peer) || peer == current())
		return flags ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_CONTEXT;
	if (!setting("PMPI_FAKECUDA_PEER", 1))
		return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
	if (current()->peers >> peer->device & 1)
		return CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
	current()->peers |= 1U << peer->device;
	return CUDA_SUCCESS;
}

#define TEXTS(number, name, text) {number, "CUDA_" #name, text},
static const struct result {
	CUresult number;
	const char *name, *text;
} results[] = {RESULTS(TEXTS){-1, NULL, NULL}};

static const struct result *result_of(CUresult number) {
	const struct result *r = results;
	while (r->name && r->number != number)
		r++;
	return r;
}

EXPORT CUresult cuGetErrorName(CUresult number, const char **name) {
	*name = result_of(number)->name;
	return *name ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuGetErrorString(CUresult number, const char **text) {
	*text = result_of(number)->text;
	return *text ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

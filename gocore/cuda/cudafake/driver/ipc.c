// Memory and events of other processes, which are reached through /proc/PID/fd.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fake.h"

enum { IS_MEMORY = 0x4d454d31, IS_EVENT = 0x45564e31 };

// CUipcMemHandle and CUipcEventHandle: 64 bytes, passed by value.
struct handle {
	uint32_t what;
	int32_t pid, fd, physical;
	uint64_t size, nonce;
	char unused[32];
};

EXPORT CUresult cuIpcGetMemHandle(struct handle *h, CUdeviceptr p) {
	ENTER(CONTEXT);
	struct memory *m = memory_at(p); // the handle names the allocation, not p
	if (!setting("PMPI_FAKECUDA_IPC", 1))
		return CUDA_ERROR_OPERATING_SYSTEM;
	if (!m || m->kind != MEMORY_PLAIN)
		return CUDA_ERROR_INVALID_VALUE;
	*h = (struct handle){IS_MEMORY, (int)getpid(), m->fd, m->ctx->physical, m->size, m->nonce, ""};
	return CUDA_SUCCESS;
}

EXPORT CUresult cuIpcGetEventHandle(struct handle *h, CUevent event) {
	ENTER(CONTEXT);
	if (!setting("PMPI_FAKECUDA_IPC", 1))
		return CUDA_ERROR_OPERATING_SYSTEM;
	if (!event_of(event) || !event->shared)
		return CUDA_ERROR_INVALID_HANDLE;
	*h = (struct handle){IS_EVENT, event->owner, event->fd, 0, 0, event->nonce, ""};
	return CUDA_SUCCESS;
}

// Opens the descriptor of another process, unless it is of something else by now.
static CUresult reach(const struct handle *h, uint32_t what, int *fd) {
	if (!setting("PMPI_FAKECUDA_IPC", 1))
		return CUDA_ERROR_OPERATING_SYSTEM;
	if (h->what != what)
		return CUDA_ERROR_INVALID_VALUE;
	if (h->pid == (int)getpid())
		return CUDA_ERROR_INVALID_CONTEXT; // it has the memory already
	char path[64], name[64] = "", expected[64];
	snprintf(path, sizeof path, "/proc/%d/fd/%d", h->pid, h->fd);
	snprintf(expected, sizeof expected, "/memfd:fakecuda-%llx ", (unsigned long long)h->nonce);
	if (readlink(path, name, sizeof name - 1) < 0 || strncmp(name, expected, strlen(expected)))
		return CUDA_ERROR_INVALID_HANDLE;
	*fd = open(path, O_RDWR | O_CLOEXEC);
	return *fd < 0 ? CUDA_ERROR_MAP_FAILED : CUDA_SUCCESS;
}

EXPORT CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *p, struct handle h, unsigned flags) {
	ENTER(CONTEXT);
	int fd, device = 0;
	while (device < n_devices && contexts[device].physical != h.physical)
		device++;
	if (flags != 1) // CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS, the only flag, is required
		return CUDA_ERROR_INVALID_VALUE;
	if (device == n_devices)
		return CUDA_ERROR_INVALID_DEVICE; // CUDA_VISIBLE_DEVICES hides it here
	if (device != current()->device && !setting("PMPI_FAKECUDA_PEER", 1))
		return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
	CUresult error = reach(&h, IS_MEMORY, &fd);
	if (error)
		return error;
	struct memory *m = memory_opened(h.nonce, current());
	if (m || !(m = memory_map(MEMORY_OPENED, h.size, fd, h.nonce, device)))
		close(fd);
	if (!m)
		return CUDA_ERROR_MAP_FAILED;
	m->opened++;
	*p = (CUdeviceptr)m->base;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuIpcCloseMemHandle(CUdeviceptr p) {
	ENTER(CONTEXT);
	struct memory *m = memory_at(p);
	if (!m || m->kind != MEMORY_OPENED || (CUdeviceptr)m->base != p)
		return CUDA_ERROR_INVALID_VALUE;
	if (--m->opened == 0) {
		await_context(m->ctx);
		memory_release(m);
	}
	return CUDA_SUCCESS;
}

EXPORT CUresult cuIpcOpenEventHandle(CUevent *event, struct handle h) {
	ENTER(CONTEXT);
	int fd;
	CUresult error = reach(&h, IS_EVENT, &fd);
	if (error)
		return error;
	CUevent e = event_new(EVENT_INTERPROCESS | EVENT_DISABLE_TIMING);
	e->owner = h.pid;
	e->fd = fd;
	e->nonce = h.nonce;
	e->shared = mmap(NULL, sizeof *e->shared, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	*event = e;
	return CUDA_SUCCESS;
}

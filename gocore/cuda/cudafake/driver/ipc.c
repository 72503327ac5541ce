// Memory and events of other processes, reached through /proc/PID/fd.
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
	pthread_mutex_lock(&lock);
	struct memory *m = memory_at(p); // it is named from its base, wherever p is
	bool plain = m && m->kind == MEMORY_PLAIN;
	if (plain)
		*h = (struct handle){IS_MEMORY, m->owner, m->fd, m->ctx->physical, m->size, m->nonce, ""};
	pthread_mutex_unlock(&lock);
	if (!setting("PMPI_FAKECUDA_IPC", 1))
		return CUDA_ERROR_OPERATING_SYSTEM;
	return plain ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuIpcGetEventHandle(struct handle *h, struct event *event) {
	ENTER(CONTEXT);
	pthread_mutex_lock(&lock);
	bool shared = event_of(event) && event->shared;
	if (shared)
		*h = (struct handle){IS_EVENT, event->owner, event->fd, event->ctx->physical,
							 0,        event->nonce, ""};
	pthread_mutex_unlock(&lock);
	if (!setting("PMPI_FAKECUDA_IPC", 1))
		return CUDA_ERROR_OPERATING_SYSTEM;
	return shared ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

// Opens what another process's descriptor stands for, unless that is something else by now.
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
	struct context *ctx = current();
	int fd, device = 0;
	while (device < n_devices && contexts[device].physical != h.physical)
		device++;
	CUresult error = flags != 1 ? CUDA_ERROR_INVALID_VALUE : reach(&h, IS_MEMORY, &fd);
	if (error)
		return error;
	pthread_mutex_lock(&lock);
	struct memory *m = memory_of_nonce(h.nonce, ctx);
	if (device == n_devices)
		error = CUDA_ERROR_INVALID_DEVICE; // CUDA_VISIBLE_DEVICES hides it here
	else if (device != ctx->device && !setting("PMPI_FAKECUDA_PEER", 1))
		error = CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
	if (error || m) {
		close(fd);
	} else if ((m = memory_map(MEMORY_OPENED, h.size, fd, device))) {
		m->nonce = h.nonce;
	} else {
		close(fd);
		error = CUDA_ERROR_MAP_FAILED;
	}
	if (!error) {
		m->opened++;
		*p = (CUdeviceptr)m->base;
	}
	pthread_mutex_unlock(&lock);
	return error;
}

EXPORT CUresult cuIpcCloseMemHandle(CUdeviceptr p) {
	ENTER(CONTEXT);
	pthread_mutex_lock(&lock);
	struct memory *m = memory_at(p);
	bool ours = m && m->kind == MEMORY_OPENED && (CUdeviceptr)m->base == p;
	if (ours && --m->opened == 0) {
		await_context(m->ctx);
		memory_release(m);
	}
	pthread_mutex_unlock(&lock);
	return ours ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuIpcOpenEventHandle(struct event **event, struct handle h) {
	ENTER(CONTEXT);
	int fd;
	CUresult error = reach(&h, IS_EVENT, &fd);
	if (error)
		return error;
	pthread_mutex_lock(&lock);
	struct event *e = event_new(EVENT_INTERPROCESS | EVENT_DISABLE_TIMING);
	e->owner = h.pid;
	e->fd = fd;
	e->nonce = h.nonce;
	e->shared = mmap(NULL, sizeof *e->shared, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	*event = e;
	pthread_mutex_unlock(&lock);
	return CUDA_SUCCESS;
}

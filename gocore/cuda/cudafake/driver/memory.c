// Memory: device memory behind guards, pinned and managed memory, and the attributes of pointers.
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "fake.h"

#define ARENA ((size_t)1 << 38) // address space for device memory

static struct memory *all;
static char *arena;
static size_t arena_used;
static size_t pinned;
static int open_depth[MAX_DEVICES];

static struct range {
	char *base;
	size_t mapped;
	struct range *next;
} *freed; // the one that was freed last comes first

struct memory *memory_at(CUdeviceptr p) {
	for (struct memory *m = all; m; m = m->next)
		if (p - (CUdeviceptr)m->base < m->size && !m->freed)
			return m;
	return NULL;
}

char *memory_access(CUdeviceptr p, size_t n, bool *pageable) {
	struct memory *m = memory_at(p);
	*pageable = !m;
	if (!m)
		return arena && p - (CUdeviceptr)arena < ARENA ? NULL : (char *)p;
	size_t offset = p - (CUdeviceptr)m->base;
	if (n > m->size - offset)
		return NULL;
	return m->alias ? m->alias + offset : (char *)p;
}

static void protect(const struct memory *m) {
	bool open = open_depth[m->ctx->device] > 0;
	mprotect(m->base, m->mapped, open ? PROT_READ | PROT_WRITE : PROT_NONE);
}

void guard(unsigned devices, int delta) {
	for (int d = 0; d < n_devices; d++) {
		if (!(devices >> d & 1))
			continue;
		bool was = open_depth[d] > 0;
		open_depth[d] += delta;
		if (was == (open_depth[d] > 0))
			continue;
		for (struct memory *m = all; m; m = m->next)
			if (m->alias && m->ctx->device == d)
				protect(m);
	}
}

EXPORT void fakecuda_open_guard(void) {
	pthread_mutex_lock(&lock);
	guard(~0U, 1);
	pthread_mutex_unlock(&lock);
}

EXPORT void fakecuda_close_guard(void) {
	pthread_mutex_lock(&lock);
	guard(~0U, -1);
	pthread_mutex_unlock(&lock);
}

int new_memfd(size_t size, uint64_t *nonce) {
	static uint64_t count;
	*nonce = (uint64_t)getpid() << 32 | ++count;
	char name[48];
	snprintf(name, sizeof name, "fakecuda-%llx", (unsigned long long)*nonce);
	int fd = (int)syscall(SYS_memfd_create, name, 1U); // glibc before 2.27 has no memfd_create
	if (fd >= 0 && ftruncate(fd, (off_t)size)) {
		close(fd);
		fd = -1;
	}
	return fd;
}

// Returns an address that was freed before, if there is one for this size, so that tests notice
// code which keeps addresses of freed tensors.
static char *addresses(size_t mapped) {
	for (struct range **r = &freed; *r; r = &(*r)->next) {
		if ((*r)->mapped != mapped)
			continue;
		struct range *found = *r;
		char *base = found->base;
		*r = found->next;
		free(found);
		return base;
	}
	if (!arena) {
		arena = mmap(NULL, ARENA, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		if (arena == MAP_FAILED)
			arena = NULL;
	}
	size_t step = mapped + 4096; // a gap after each allocation
	if (!arena || step > ARENA - arena_used)
		return NULL;
	char *base = arena + arena_used;
	arena_used += step;
	return base;
}

static struct memory *add(struct memory *m) {
	static uint64_t last_id;
	m->id = ++last_id;
	m->ctx = current();
	m->next = all;
	all = m;
	return m;
}

struct memory *memory_map(enum memory_kind kind, size_t size, int fd, uint64_t nonce, int device) {
	struct memory *m = calloc(1, sizeof *m);
	*m = (struct memory){.kind = kind, .size = size, .device = device, .nonce = nonce, .fd = fd};
	m->mapped = (size + 4095) & ~(size_t)4095;
	m->alias = mmap(NULL, m->mapped, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	m->base = m->alias == MAP_FAILED ? NULL : addresses(m->mapped);
	if (!m->base ||
		mmap(m->base, m->mapped, PROT_NONE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED) {
		free(m);
		return NULL;
	}
	add(m);
	protect(m);
	return m;
}

struct memory *memory_opened(uint64_t nonce, CUcontext ctx) {
	for (struct memory *m = all; m; m = m->next)
		if (m->kind == MEMORY_OPENED && m->nonce == nonce && m->ctx == ctx)
			return m;
	return NULL;
}

void memory_release(struct memory *m) {
	for (struct memory **p = &all; *p; p = &(*p)->next) {
		if (*p == m) {
			*p = m->next;
			break;
		}
	}
	if (m->alias) {
		struct range *r = malloc(sizeof *r);
		*r = (struct range){m->base, m->mapped, freed};
		freed = r;
		mmap(m->base, m->mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED,
			 -1, 0);
		munmap(m->alias, m->mapped);
		close(m->fd);
		m->ctx->used -= m->kind == MEMORY_OPENED ? 0 : m->size;
	} else if (m->kind != MEMORY_REGISTERED) {
		munmap(m->base, m->size);
		pinned -= m->kind == MEMORY_PINNED ? m->size : 0;
	}
	free(m);
}

static CUresult allocate(CUdeviceptr *p, size_t size, enum memory_kind kind, CUcontext ctx) {
	size_t limit = (size_t)setting("PMPI_FAKECUDA_MEMORY", 1LL << 34);
	uint64_t nonce = 0;
	if (!size)
		return CUDA_ERROR_INVALID_VALUE;
	if (size > limit || ctx->used > limit - size)
		return CUDA_ERROR_OUT_OF_MEMORY;
	int fd = new_memfd((size + 4095) & ~(size_t)4095, &nonce);
	struct memory *m = fd < 0 ? NULL : memory_map(kind, size, fd, nonce, ctx->device);
	if (!m)
		return CUDA_ERROR_OUT_OF_MEMORY;
	ctx->used += size;
	memset(m->alias, 0xA5, size < 1 << 20 ? size : 1 << 20); // new device memory is not zero
	*p = (CUdeviceptr)m->base;
	return CUDA_SUCCESS;
}

// Returns the memory that begins at p, or NULL if there is none of this kind.
static struct memory *whole(CUdeviceptr p, enum memory_kind kind) {
	struct memory *m = memory_at(p);
	return m && m->kind == kind && (CUdeviceptr)m->base == p ? m : NULL;
}

// Frees memory after what is queued on the device, as the real driver does. Returns error if m is
// NULL.
static CUresult release(struct memory *m, CUresult error) {
	if (!m)
		return error;
	await_context(m->ctx);
	memory_release(m);
	return CUDA_SUCCESS;
}

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *p, size_t size) {
	ENTER(CONTEXT);
	return allocate(p, size, MEMORY_PLAIN, current());
}

EXPORT CUresult cuMemAllocAsync(CUdeviceptr *p, size_t size, CUstream stream) {
	ENTER(CONTEXT);
	struct stream *s = stream_of(stream);
	return s ? allocate(p, size, MEMORY_POOL, s->ctx) : CUDA_ERROR_INVALID_HANDLE;
}

EXPORT CUresult cuMemFree_v2(CUdeviceptr p) {
	ENTER(CONTEXT);
	struct memory *m = whole(p, MEMORY_PLAIN);
	m = m ? m : whole(p, MEMORY_POOL);
	m = m ? m : whole(p, MEMORY_MANAGED);
	return release(m, p ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS);
}

static void free_over(struct op *op) {
	memory_release(op->memory);
}

EXPORT CUresult cuMemFreeAsync(CUdeviceptr p, CUstream stream) {
	ENTER(CONTEXT);
	struct stream *s = stream_of(stream);
	struct memory *m = whole(p, MEMORY_POOL);
	if (!s || !m)
		return s ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
	struct op *op = op_new(OP_FREE);
	op->over = free_over;
	op->memory = m;
	m->freed = true; // later operations may not use it
	submit(s, op);
	return CUDA_SUCCESS;
}

static void know(enum memory_kind kind, void *base, size_t size) {
	struct memory *m = calloc(1, sizeof *m);
	*m = (struct memory){.kind = kind, .base = base, .size = size, .device = current()->device};
	add(m);
}

static CUresult host_memory(void **p, size_t size, enum memory_kind kind) {
	size_t limit = (size_t)setting("PMPI_FAKECUDA_PINNED", INT64_MAX);
	if (!size)
		return CUDA_ERROR_INVALID_VALUE;
	if (kind == MEMORY_PINNED && (size > limit || pinned > limit - size))
		return CUDA_ERROR_OUT_OF_MEMORY;
	*p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (*p == MAP_FAILED)
		return CUDA_ERROR_OUT_OF_MEMORY;
	know(kind, *p, size);
	pinned += kind == MEMORY_PINNED ? size : 0;
	memset(*p, 0xA5, size < 1 << 20 ? size : 1 << 20);
	return CUDA_SUCCESS;
}

EXPORT CUresult cuMemAllocManaged(CUdeviceptr *p, size_t size, unsigned flags) {
	ENTER(CONTEXT);
	bool known = flags == 1 || flags == 2; // attached to all streams, or to the host
	return known ? host_memory((void **)p, size, MEMORY_MANAGED) : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuMemHostAlloc(void **p, size_t size, unsigned flags) {
	ENTER(CONTEXT);
	bool known = flags < 8; // portable, mapped, write-combined
	return known ? host_memory(p, size, MEMORY_PINNED) : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuMemFreeHost(void *p) {
	ENTER(CONTEXT);
	return release(whole((CUdeviceptr)p, MEMORY_PINNED), CUDA_ERROR_INVALID_VALUE);
}

EXPORT CUresult cuMemHostRegister_v2(void *p, size_t size, unsigned flags) {
	ENTER(CONTEXT);
	if (!p || !size || flags > 15)
		return CUDA_ERROR_INVALID_VALUE;
	if (memory_at((CUdeviceptr)p) || memory_at((CUdeviceptr)p + size - 1))
		return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
	know(MEMORY_REGISTERED, p, size);
	return CUDA_SUCCESS;
}

EXPORT CUresult cuMemHostUnregister(void *p) {
	ENTER(CONTEXT);
	struct memory *m = whole((CUdeviceptr)p, MEMORY_REGISTERED);
	return release(m, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
}

EXPORT CUresult cuMemGetInfo_v2(size_t *available, size_t *total) {
	ENTER(CONTEXT);
	*total = (size_t)setting("PMPI_FAKECUDA_MEMORY", 1LL << 34);
	*available = *total - current()->used;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr p) {
	ENTER(CONTEXT);
	struct memory *m = memory_at(p);
	if (m && base)
		*base = (CUdeviceptr)m->base;
	if (m && size)
		*size = m->size;
	return m ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

// Writes one attribute. For memory that the driver does not know, all but the device are 0.
static CUresult attribute(void *value, int which, const struct memory *m, CUdeviceptr p) {
	static const struct memory unknown = {.kind = MEMORY_REGISTERED, .device = -2};
	bool known = m;
	if (!known)
		m = &unknown;
	bool host = m->kind == MEMORY_PINNED || m->kind == MEMORY_REGISTERED;
	switch (which) {
	case 1: // CONTEXT
		*(CUcontext *)value = m->ctx;
		break;
	case 2: // MEMORY_TYPE: host 1, device 2; managed memory is of the device
		*(unsigned *)value = !known ? 0 : host ? 1 : 2;
		break;
	case 3: // DEVICE_POINTER
		*(CUdeviceptr *)value = known ? p : 0;
		break;
	case 4: // HOST_POINTER
		*(CUdeviceptr *)value = known && !m->alias ? p : 0;
		return m->alias ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
	case 7: // BUFFER_ID
		*(uint64_t *)value = m->id;
		break;
	case 8: // IS_MANAGED
		*(unsigned *)value = m->kind == MEMORY_MANAGED;
		break;
	case 9: // DEVICE_ORDINAL
		*(int *)value = m->device;
		break;
	case 10: // IS_LEGACY_CUDA_IPC_CAPABLE
		*(int *)value = m->kind == MEMORY_PLAIN;
		break;
	case 11: // RANGE_START_ADDR
		*(CUdeviceptr *)value = (CUdeviceptr)m->base;
		break;
	case 12: // RANGE_SIZE
		*(size_t *)value = m->size;
		break;
	case 13: // MAPPED
		*(int *)value = known;
		break;
	case 17: // MEMPOOL_HANDLE: any address will do
		*(CUcontext *)value = m->kind == MEMORY_POOL ? m->ctx : NULL;
		break;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
	return CUDA_SUCCESS;
}

EXPORT CUresult cuPointerGetAttribute(void *value, int which, CUdeviceptr p) {
	ENTER(INIT);
	struct memory *m = memory_at(p);
	return m ? attribute(value, which, m, p) : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuPointerGetAttributes(unsigned n, const int *which, void **values, CUdeviceptr p) {
	ENTER(INIT);
	for (unsigned i = 0; i < n; i++) {
		bool no_host = which[i] == 4; // that there is none is no error here
		if (attribute(values[i], which[i], memory_at(p), p) && !no_host)
			return CUDA_ERROR_INVALID_VALUE;
	}
	return CUDA_SUCCESS;
}

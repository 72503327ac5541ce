// Modules and kernels: the entries of a PTX text, run by C functions of this library.
#define _GNU_SOURCE
#include <ctype.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fake.h"
#include "kernel_host.h"

__thread struct pmpi_dim3 threadIdx, blockIdx, blockDim, gridDim;

enum { MAX_PARAMS = 6, PARAM_BYTES = 4096 };

struct function {
	struct module *module;
	char name[128];
	void *entry;
	int n_params;
	size_t sizes[MAX_PARAMS];
	bool by_value[MAX_PARAMS]; // a struct; the C function gets its address
	struct function *next;
};

struct module {
	CUcontext ctx;
	char *text;
	struct function *functions;
};

struct launch {
	const struct function *function;
	unsigned devices; // devices whose memory the kernel may access, as bits
	struct pmpi_dim3 grid, block;
	uint64_t arguments[MAX_PARAMS];
	_Alignas(16) char bytes[PARAM_BYTES];
};

// PTX 7.x came with CUDA 11.x, 8.x with 12.x and so on. An older driver refuses it.
static bool too_new(const char *text) {
	const char *version = strstr(text, ".version");
	int major = 0, minor = 0;
	if (!version || sscanf(version, ".version %d.%d", &major, &minor) != 2)
		return false;
	return (major + 4) * 1000 + minor * 10 > setting("PMPI_FAKECUDA_VERSION", 12040);
}

static CUresult load(struct module **module, const char *text) {
	if (!strstr(text, ".entry"))
		return CUDA_ERROR_INVALID_PTX;
	if (too_new(text))
		return CUDA_ERROR_UNSUPPORTED_PTX_VERSION;
	*module = calloc(1, sizeof **module);
	**module = (struct module){.ctx = current(), .text = strdup(text)};
	return CUDA_SUCCESS;
}

EXPORT CUresult cuModuleLoadData(struct module **module, const void *image) {
	ENTER(CONTEXT);
	return load(module, image);
}

EXPORT CUresult cuModuleLoadDataEx(struct module **module, const void *image, unsigned n,
								   int *options, void **values) {
	(void)n, (void)options, (void)values;
	ENTER(CONTEXT);
	return load(module, image);
}

EXPORT CUresult cuModuleUnload(struct module *module) {
	ENTER(CONTEXT);
	await_context(module->ctx);
	for (struct function *f = module->functions, *next; f; f = next) {
		next = f->next;
		free(f);
	}
	free(module->text);
	free(module);
	return CUDA_SUCCESS;
}

// Reads the parameters of the entry whose list begins at text. ".param .u64 x" has 8 bytes, and
// ".param .align 8 .b8 x[96]" is a struct of 96 bytes.
static bool read_params(struct function *f, const char *text) {
	const char *end = strchr(text, ')');
	while (end && (text = strstr(text, ".param")) && text < end) {
		if (f->n_params == MAX_PARAMS)
			return false;
		size_t length = strcspn(text, ",)"), size = 8;
		const char *bracket = memchr(text, '[', length);
		if (bracket)
			size = strtoul(bracket + 1, NULL, 10);
		f->by_value[f->n_params] = bracket;
		f->sizes[f->n_params++] = size;
		text += length;
	}
	return end;
}

EXPORT CUresult cuModuleGetFunction(struct function **function, struct module *module,
									const char *name) {
	ENTER(CONTEXT);
	size_t length = strlen(name);
	const char *entry = module->text;
	do {
		entry = strstr(entry, ".entry");
		if (!entry)
			return CUDA_ERROR_NOT_FOUND;
		entry += strlen(".entry");
		entry += strspn(entry, " \t\n");
	} while (strncmp(entry, name, length) || (entry[length] != '(' && !isspace(entry[length])));
	Dl_info here;
	dladdr((void *)cuModuleGetFunction, &here);
	void *self = dlopen(here.dli_fname, RTLD_NOW | RTLD_NOLOAD), *symbol = dlsym(self, name);
	struct function *f = calloc(1, sizeof *f);
	f->entry = symbol;
	f->module = module;
	if (!symbol || !read_params(f, entry)) {
		free(f);
		return symbol ? CUDA_ERROR_INVALID_PTX : CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND;
	}
	f->next = module->functions;
	module->functions = f;
	*function = f;
	return CUDA_SUCCESS;
}

// One call of the C function is one thread of the device. The call passes more arguments than the
// function may have. The others are in registers that it does not read.
static void run_kernel(struct op *op) {
	const struct launch *l = op->launch;
	void (*entry)(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t) =
		(void (*)(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t))l->function->entry;
	const uint64_t *a = l->arguments;
	pthread_mutex_lock(&lock);
	guard(l->devices, 1);
	pthread_mutex_unlock(&lock);
	gridDim = l->grid;
	blockDim = l->block;
	uint64_t blocks = (uint64_t)l->grid.x * l->grid.y * l->grid.z;
	unsigned threads = l->block.x * l->block.y * l->block.z;
	for (uint64_t b = 0; b < blocks; b++) {
		blockIdx =
			(struct pmpi_dim3){(unsigned)(b % l->grid.x), (unsigned)(b / l->grid.x % l->grid.y),
							   (unsigned)(b / l->grid.x / l->grid.y)};
		for (unsigned t = 0; t < threads; t++) {
			threadIdx = (struct pmpi_dim3){t % l->block.x, t / l->block.x % l->block.y,
										   t / l->block.x / l->block.y};
			entry(a[0], a[1], a[2], a[3], a[4], a[5]);
		}
	}
	pthread_mutex_lock(&lock);
	guard(l->devices, -1);
	pthread_mutex_unlock(&lock);
}

EXPORT CUresult cuLaunchKernel(struct function *f, unsigned gx, unsigned gy, unsigned gz,
							   unsigned bx, unsigned by, unsigned bz, unsigned shared,
							   CUstream stream, void **params, void **extra) {
	ENTER(CONTEXT);
	if (!gx || !gy || !gz || !bx || !by || !bz || bx * by * bz > 1024)
		return CUDA_ERROR_INVALID_VALUE;
	if (extra || shared)
		return CUDA_ERROR_NOT_SUPPORTED; // no caller needs them
	struct stream *s = stream_of(stream);
	if (!s || s->ctx != f->module->ctx)
		return CUDA_ERROR_INVALID_HANDLE;
	struct launch *l = calloc(1, sizeof *l);
	*l = (struct launch){.function = f, .grid = {gx, gy, gz}, .block = {bx, by, bz}};
	size_t used = 0;
	for (int i = 0; i < f->n_params && used + f->sizes[i] <= PARAM_BYTES; i++) {
		char *copy = memcpy(l->bytes + used, params[i], f->sizes[i]);
		used += (f->sizes[i] + 15) & ~(size_t)15;
		if (f->by_value[i])
			l->arguments[i] = (uintptr_t)copy;
		else
			memcpy(&l->arguments[i], copy, 8);
	}
	struct op *op = op_new(OP_KERNEL);
	l->devices = 1U << s->ctx->device | s->ctx->peers;
	op->run = run_kernel;
	op->launch = l;
	submit(s, op);
	return CUDA_SUCCESS;
}

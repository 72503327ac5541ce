#ifdef PMPI_PYMODULE
/* Collectives as operators of torch, torch.ops.paddlempi: their kernels for tensors in host memory,
 * by the C functions of torch that keep their meaning (torch/csrc/stable/c/shim.h and
 * torch/csrc/inductor/aoti_torch/c/shim.h). They are looked up when Python registers the kernels,
 * so that neither the build nor the core needs torch.
 *
 * No Python runs in a usual call, whose group is in the table of names below. Everything else goes
 * to the operator's kernel in Python (python/paddlempi/torch/registered.py): a group that is not in
 * the table, and arguments that are wrong or rare. That kernel also puts groups into the table. */
#define _GNU_SOURCE
#include "torch_ops.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "dlpack.h"
#include "gil.h"
#include "guard.h"
#include "kept.h"
#include "pmpi.h"
#include "pytools.h"
#include "throw.h"

/* ---- torch's functions ---- */

typedef uint64_t value;           /* StableIValue: an integer, or a handle */
typedef struct at_tensor *tensor; /* AtenTensorHandle */
typedef struct std_string *string;
typedef struct library *library;
typedef void kernel(value *stack, uint64_t arguments, uint64_t results);

/* Each returns 0, or another number after an error, if it is int. */
#define FUNCTIONS(X)                                                                               \
	X(int, aoti_torch_library_init_impl,                                                           \
	  (const char *space, const char *key, const char *file, uint32_t line, library *out))         \
	X(int, torch_library_impl, (library, const char *name, kernel *, uint64_t version))            \
	X(int, aoti_torch_new_tensor_handle, (tensor, tensor * out))                                   \
	X(int, aoti_torch_delete_tensor_object, (tensor))                                              \
	X(int, aoti_torch_get_dim, (tensor, int64_t *))                                                \
	X(int, aoti_torch_get_numel, (tensor, int64_t *))                                              \
	X(int, aoti_torch_get_sizes, (tensor, int64_t **))                                             \
	X(int, aoti_torch_get_strides, (tensor, int64_t **))                                           \
	X(int, aoti_torch_get_dtype, (tensor, int32_t *))                                              \
	X(int, aoti_torch_is_contiguous, (tensor, _Bool *))                                            \
	X(int, torch_get_const_data_ptr, (tensor, const void **))                                      \
	X(int, torch_get_mutable_data_ptr, (tensor, void **))                                          \
	X(int, aoti_torch_empty_strided,                                                               \
	  (int64_t n, const int64_t *sizes, const int64_t *strides, int32_t dtype, int32_t device,     \
	   int32_t index, tensor *out))                                                                \
	X(int, torch_string_c_str, (string, const char **))                                            \
	X(int, torch_delete_string, (string))                                                          \
	X(uint64_t, aoti_torch_abi_version, (void))                                                    \
	X(int32_t, aoti_torch_device_type_cpu, (void))

#define DECLARE(result, name, parameters) static result(*name) parameters;
FUNCTIONS(DECLARE)

static const struct {
	const char *name;
	void *function;
} functions[] = {
#define ROW(result, name, parameters) {#name, &name},
	FUNCTIONS(ROW)};

static const struct {
	const char *function;
	int32_t dtype;
} dtypes[] = {
	{"aoti_torch_dtype_bool", PMPI_DTYPE_BOOL},
	{"aoti_torch_dtype_int8", PMPI_DTYPE_INT8},
	{"aoti_torch_dtype_int16", PMPI_DTYPE_INT16},
	{"aoti_torch_dtype_int32", PMPI_DTYPE_INT32},
	{"aoti_torch_dtype_int64", PMPI_DTYPE_INT64},
	{"aoti_torch_dtype_uint8", PMPI_DTYPE_UINT8},
	{"aoti_torch_dtype_uint16", PMPI_DTYPE_UINT16},
	{"aoti_torch_dtype_uint32", PMPI_DTYPE_UINT32},
	{"aoti_torch_dtype_uint64", PMPI_DTYPE_UINT64},
	{"aoti_torch_dtype_float16", PMPI_DTYPE_FLOAT16},
	{"aoti_torch_dtype_bfloat16", PMPI_DTYPE_BFLOAT16},
	{"aoti_torch_dtype_float32", PMPI_DTYPE_FLOAT32},
	{"aoti_torch_dtype_float64", PMPI_DTYPE_FLOAT64},
	{"aoti_torch_dtype_complex64", PMPI_DTYPE_COMPLEX64},
	{"aoti_torch_dtype_complex128", PMPI_DTYPE_COMPLEX128},
	{"aoti_torch_dtype_float8_e4m3fn", PMPI_DTYPE_FLOAT8_E4M3FN},
	{"aoti_torch_dtype_float8_e4m3fnuz", PMPI_DTYPE_FLOAT8_E4M3FNUZ},
	{"aoti_torch_dtype_float8_e5m2", PMPI_DTYPE_FLOAT8_E5M2},
	{"aoti_torch_dtype_float8_e5m2fnuz", PMPI_DTYPE_FLOAT8_E5M2FNUZ},
	{"aoti_torch_dtype_float8_e8m0fnu", PMPI_DTYPE_FLOAT8_E8M0FNU},
};

static int32_t dtype_of[128]; /* by torch's number of a dtype; 0: none of ours */
static int32_t cpu;

/* PyGILState_Check, which every Python exports, although the limited API does not have it. torch
 * calls a kernel with or without the GIL. */
static int (*holds_gil)(void);

/* find looks up torch's functions. Returns 0, or -1 if this torch does not have them all. */
static int find(void) {
	void *torch = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
	holds_gil = (int (*)(void))dlsym(RTLD_DEFAULT, "PyGILState_Check");
	if (torch == NULL || holds_gil == NULL || throw_prepare())
		return -1;
	for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
		void *f = dlsym(torch, functions[i].name);
		if (f == NULL)
			return -1;
		memcpy(functions[i].function, &f, sizeof f);
	}
	for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++) {
		int32_t (*number)(void) = (int32_t (*)(void))dlsym(torch, dtypes[i].function);
		int32_t n = number ? number() : -1;
		if (n >= 0 && n < (int32_t)(sizeof dtype_of / sizeof dtype_of[0]))
			dtype_of[n] = dtypes[i].dtype;
	}
	cpu = aoti_torch_device_type_cpu();
	return 0;
}

/* ---- tensors as objects of Python, and back ---- */

/* Functions of torch's module: one makes an object of a handle in a capsule, and takes the handle;
 * the other returns a new handle. torch_tensor_to_pyobject would be one, but torch 2.13 has it not.
 */
static PyObject *from_handle, *to_handle;

/* to_python returns a new reference, or NULL with an exception set. */
static PyObject *to_python(tensor t) {
	tensor copy = NULL;
	if (aoti_torch_new_tensor_handle(t, &copy)) {
		PyErr_SetString(PyExc_RuntimeError, "torch cannot give a tensor to Python");
		return NULL;
	}
	PyObject *capsule = PyCapsule_New(copy, NULL, NULL);
	if (capsule == NULL) {
		aoti_torch_delete_tensor_object(copy);
		return NULL;
	}
	PyObject *made = PyObject_CallFunctionObjArgs(from_handle, capsule, NULL);
	Py_DecRef(capsule);
	return made;
}

/* from_python returns a new handle, or NULL with an exception set. */
static tensor from_python(PyObject *object) {
	PyObject *capsule = PyObject_CallFunctionObjArgs(to_handle, object, NULL);
	tensor made = capsule ? PyCapsule_GetPointer(capsule, NULL) : NULL;
	if (capsule)
		Py_DecRef(capsule);
	return made;
}

/* ---- groups by name ---- */

/* A name stands for its group as long as nothing about the group asks for the kernel in Python. */
typedef struct named {
	struct named *next;
	int64_t group;
	int64_t size;
	char name[];
} named;

static named *groups[64];
static pthread_mutex_t names = PTHREAD_MUTEX_INITIALIZER;

static named **place(const char *name) {
	uint32_t hash = 0;
	for (const char *c = name; *c; c++)
		hash = hash * 31 + (unsigned char)*c;
	named **p = &groups[hash % (sizeof groups / sizeof groups[0])];
	while (*p && strcmp((*p)->name, name) != 0)
		p = &(*p)->next;
	return p;
}

/* look_up returns the id of a group, and sets *size; -1 if the name is not in the table. */
static int64_t look_up(const char *name, int64_t *size) {
	pthread_mutex_lock(&names);
	const named *found = *place(name);
	const int64_t group = found ? found->group : -1;
	*size = found ? found->size : 0;
	pthread_mutex_unlock(&names);
	return group;
}

/* enter puts a group into the table, or takes it out if size is 0. Returns -1 without memory. */
static int enter(const char *name, int64_t group, int64_t size) {
	pthread_mutex_lock(&names);
	named **p = place(name), *n = *p;
	if (n != NULL && size == 0) {
		*p = n->next;
		free(n);
	} else if (size != 0) {
		if (n == NULL && (n = malloc(sizeof *n + strlen(name) + 1)) != NULL) {
			strcpy(n->name, name);
			n->next = NULL;
			*p = n;
		}
		if (n != NULL) {
			n->group = group;
			n->size = size;
		}
	}
	pthread_mutex_unlock(&names);
	return n == NULL && size != 0 ? -1 : 0;
}

/* ---- a call ---- */

/* A collective as an operator. Its arguments, in the order of its schema, are: w, the tensor that
 * it writes to; r, the one that it reads; g, the name of the group; o, the reduce op; s, the size
 * of the group; b, the rank from which it broadcasts. One without w makes the tensor, and returns
 * it. */
typedef struct collective {
	const char *name, *arguments;
	int32_t code;
	PyObject *python; /* its kernel in Python */
} collective;

enum { MOST_ARGUMENTS = 4 };

typedef struct arguments {
	tensor written, read;
	int made; /* written is the tensor to return */
	const char *group, *reduce_op;
	int64_t size, root;
} arguments;

static int reduce_code(const char *name) {
	static const char *const known[] = {
		[PMPI_REDUCE_SUM] = "sum", [PMPI_REDUCE_PRODUCT] = "product", [PMPI_REDUCE_MIN] = "min",
		[PMPI_REDUCE_MAX] = "max", [PMPI_REDUCE_AVG] = "avg",         [PMPI_REDUCE_BAND] = "band",
		[PMPI_REDUCE_BOR] = "bor", [PMPI_REDUCE_BXOR] = "bxor",
	};
	for (int i = 1; i < (int)(sizeof known / sizeof known[0]); i++)
		if (strcmp(name, known[i]) == 0)
			return i;
	return 0;
}

/* describe describes a tensor. Returns 0, or 1 for one that is left to Python. */
static int describe(tensor t, int written, pmpi_buf *b) {
	int32_t dtype = 0;
	int64_t dim = 0, *sizes, *strides;
	_Bool contiguous = 0;
	*b = (pmpi_buf){.device_type = PMPI_DEVICE_CPU};
	if (aoti_torch_get_dtype(t, &dtype) || dtype < 0 ||
		dtype >= (int32_t)(sizeof dtype_of / sizeof dtype_of[0]) || dtype_of[dtype] == 0 ||
		aoti_torch_get_numel(t, &b->count) || aoti_torch_is_contiguous(t, &contiguous) ||
		(written ? torch_get_mutable_data_ptr(t, &b->data)
				 : torch_get_const_data_ptr(t, (const void **)&b->data)))
		return 1;
	b->dtype = dtype_of[dtype];
	if (contiguous || b->count == 0)
		return 0;
	if (aoti_torch_get_dim(t, &dim) || aoti_torch_get_sizes(t, &sizes) ||
		aoti_torch_get_strides(t, &strides))
		return 1;
	b->ndim = (int32_t)dim;
	b->shape = sizes;
	b->strides = strides;
	return 0;
}

/* make makes the tensor that an operator returns: like a->read, with more or fewer rows. Returns 0,
 * or 1 if that is left to Python. */
static int make(int32_t code, arguments *a, int64_t size) {
	enum { MOST_DIMS = 16 };
	int64_t dim, *given, sizes[MOST_DIMS], strides[MOST_DIMS], step = 1;
	int32_t dtype;
	if (aoti_torch_get_dim(a->read, &dim) || dim > MOST_DIMS ||
		aoti_torch_get_sizes(a->read, &given) || aoti_torch_get_dtype(a->read, &dtype))
		return 1;
	memcpy(sizes, given, (size_t)dim * sizeof sizes[0]);
	if (code == PMPI_OP_ALL_GATHER || code == PMPI_OP_REDUCE_SCATTER) {
		if (dim == 0 || size != a->size)
			return 1;
		if (code == PMPI_OP_ALL_GATHER)
			sizes[0] *= size;
		else if (sizes[0] % size)
			return 1;
		else
			sizes[0] /= size;
	}
	for (int64_t d = dim - 1; d >= 0; d--) {
		strides[d] = step;
		step *= sizes[d] > 1 ? sizes[d] : 1;
	}
	a->made = 1;
	return aoti_torch_empty_strided(dim, sizes, strides, dtype, cpu, 0, &a->written) != 0;
}

/* How far a call has come: to its end, to an error (the core's, of this thread), or nowhere. */
enum { OVER, FAILED, LEFT_TO_PYTHON };

/* linger keeps the tensors of a call that failed as long as MPI uses them. The GIL is held. */
static void linger(const pmpi_op *op, pmpi_work work, const arguments *a) {
	side none_of[2] = {{.n = op->n_send}, {.n = op->n_recv}};
	PyObject *t, *v, *tb;
	PyErr_Fetch(&t, &v, &tb); /* the exception of a signal handler, with which nothing is called */
	PyObject *recv = to_python(a->written), *send = op->n_send ? to_python(a->read) : NULL;
	PyErr_Restore(t, v, tb);
	kept_linger(op, work, send ? send : Py_None, recv ? recv : Py_None, &none_of[0], &none_of[1]);
	if (recv)
		Py_DecRef(recv);
	if (send)
		Py_DecRef(send);
}

/* carry_out carries out a usual call. After an error of the core the exception is set, and *gil is
 * what PyGILState_Ensure returned. */
static int carry_out(const collective *o, arguments *a, PyGILState_STATE *gil) {
	int64_t size;
	pmpi_buf send, recv;
	pmpi_op op = {
		.size = sizeof op,
		.code = o->code,
		.scale = 1,
		.root = (int32_t)a->root,
		.peer = -1,
		.peer2 = -1,
		.send = &send,
		.recv = &recv,
		.n_recv = 1,
		.timeout_ns = -1,
	};
	if (pmpi_guard_forked() || (op.group = look_up(a->group, &size)) < 0 || op.root != a->root ||
		(a->reduce_op && (op.reduce_op = reduce_code(a->reduce_op)) == 0) ||
		(a->read && describe(a->read, 0, &send)) ||
		(a->written == NULL && make(o->code, a, size)) || describe(a->written, 1, &recv))
		return LEFT_TO_PYTHON;
	op.n_send = a->read != NULL;
	if (op.n_send && op.code == PMPI_OP_BROADCAST) { /* every rank writes, also the root */
		if (send.strides)
			return LEFT_TO_PYTHON;
		memcpy(recv.data, send.data, (size_t)(send.count * pmpi_dtype_size(send.dtype)));
		op.n_send = 0;
	}
	PyThreadState *held = holds_gil() ? PyEval_SaveThread() : NULL;
	pmpi_work work = 0;
	int rc = pmpi_submit(&op, &work, NULL);
	if (held)
		gil_take(held);
	if (rc == 0)
		return OVER;
	*gil = gil_ensure();
	if (work)
		linger(&op, work, a);
	raise_last(rc);
	return FAILED;
}

/* call_python calls the kernel in Python, which tells the other ranks of errors itself. Returns
 * OVER, or FAILED with the exception set. */
static int call_python(const collective *o, arguments *a, const value *stack,
					   PyGILState_STATE *gil) {
	PyObject *given[MOST_ARGUMENTS + 1] = {NULL}, *out = NULL;
	int n = 0, state = FAILED;
	*gil = gil_ensure();
	for (; o->arguments[n]; n++) {
		PyObject *made;
		const char *text;
		switch (o->arguments[n]) {
		case 'w':
		case 'r':
			made = to_python((tensor)stack[n]);
			break;
		case 'g':
		case 'o':
			torch_string_c_str((string)stack[n], &text);
			made = PyUnicode_FromString(text);
			break;
		default:
			made = PyLong_FromLongLong((int64_t)stack[n]);
		}
		if ((given[n] = made) == NULL)
			goto done;
	}
	out = PyObject_CallFunctionObjArgs(o->python, given[0], given[1], given[2], given[3], NULL);
	if (out == NULL)
		goto done;
	state = OVER;
	if (out != Py_None) {
		if (a->made)
			aoti_torch_delete_tensor_object(a->written);
		a->written = from_python(out);
		a->made = a->written != NULL;
		if (!a->made)
			state = FAILED;
	}
	Py_DecRef(out);
done:
	for (int i = 0; i < n; i++)
		if (given[i])
			Py_DecRef(given[i]);
	if (state == OVER)
		PyGILState_Release(*gil);
	return state;
}

/* run is what torch calls: the arguments on the stack belong to it, and a result comes in their
 * place. */
static void run(const collective *o, value *stack) {
	arguments a = {.root = -1};
	PyGILState_STATE gil;
	for (int i = 0; o->arguments[i]; i++) {
		switch (o->arguments[i]) {
		case 'w':
			a.written = (tensor)stack[i];
			break;
		case 'r':
			a.read = (tensor)stack[i];
			break;
		case 'g':
			torch_string_c_str((string)stack[i], &a.group);
			break;
		case 'o':
			torch_string_c_str((string)stack[i], &a.reduce_op);
			break;
		case 's':
			a.size = (int64_t)stack[i];
			break;
		case 'b':
			a.root = (int64_t)stack[i];
		}
	}
	int state = carry_out(o, &a, &gil);
	if (state == LEFT_TO_PYTHON)
		state = call_python(o, &a, stack, &gil);
	for (int i = 0; o->arguments[i]; i++) {
		if (strchr("wr", o->arguments[i]))
			aoti_torch_delete_tensor_object((tensor)stack[i]);
		else if (strchr("go", o->arguments[i]))
			torch_delete_string((string)stack[i]);
	}
	if (state == FAILED) {
		if (a.made)
			aoti_torch_delete_tensor_object(a.written);
		throw_set(gil);
	}
	if (a.made)
		stack[0] = (value)a.written;
}

/* ---- the operators ---- */

#define OPERATORS(X)                                                                               \
	X(all_reduce_, "wgo", ALL_REDUCE)                                                              \
	X(all_reduce, "rgo", ALL_REDUCE)                                                               \
	X(all_gather_into, "wrg", ALL_GATHER)                                                          \
	X(all_gather, "rgs", ALL_GATHER)                                                               \
	X(reduce_scatter_into, "wrgo", REDUCE_SCATTER)                                                 \
	X(reduce_scatter, "rgso", REDUCE_SCATTER)                                                      \
	X(broadcast_, "wgb", BROADCAST)                                                                \
	X(broadcast, "rgb", BROADCAST)

#define NUMBER(name, arguments, code) OF_##name,
enum { OPERATORS(NUMBER) MANY };

#define OPERATOR(name, arguments, code) {#name, arguments, PMPI_OP_##code, NULL},
static collective operators[] = {OPERATORS(OPERATOR)};

#define KERNEL(name, arguments, code)                                                              \
	static void name(value *stack, uint64_t n, uint64_t results) {                                 \
		(void)n, (void)results;                                                                    \
		run(&operators[OF_##name], stack);                                                         \
	}
OPERATORS(KERNEL)

#define POINTER(name, arguments, code) name,
static kernel *const kernels[] = {OPERATORS(POINTER)};

PyObject *py_torch_kernels(PyObject *self, PyObject *const *args, Py_ssize_t n) {
	(void)self;
	static library registered; /* what it has registered lasts as long as it does */
	if (!wants(n, 3, 3, "torch_kernels"))
		return NULL;
	if (registered || find())
		return PyBool_FromLong(registered != NULL);
	Py_IncRef(from_handle = args[1]);
	Py_IncRef(to_handle = args[2]);
	for (int i = 0; i < MANY; i++) {
		PyObject *python = PyObject_GetAttrString(args[0], operators[i].name);
		if (python == NULL)
			return NULL;
		operators[i].python = python;
	}
	int failed = aoti_torch_library_init_impl("paddlempi", "CPU", __FILE__, __LINE__, &registered);
	for (int i = 0; i < MANY && !failed; i++)
		failed =
			torch_library_impl(registered, operators[i].name, kernels[i], aoti_torch_abi_version());
	return PyBool_FromLong(!failed);
}

PyObject *py_torch_group(PyObject *self, PyObject *const *args, Py_ssize_t n) {
	(void)self;
	if (!wants(n, 1, 3, "torch_group"))
		return NULL;
	const char *name = PyUnicode_AsUTF8AndSize(args[0], NULL);
	int64_t group = n > 1 ? PyLong_AsLongLong(args[1]) : -1;
	int64_t size = n > 2 ? PyLong_AsLongLong(args[2]) : 0;
	if (name == NULL || PyErr_Occurred())
		return NULL;
	return enter(name, group, size) ? PyErr_NoMemory() : none();
}
#endif

#ifdef PMPI_PYMODULE
/* The Python exception that is set, thrown through C++ of torch.
 *
 * Kernels of torch's stable interface return nothing: an error leaves them as a C++ exception. For
 * an exception of Python torch has a class, python_error (torch/csrc/Exceptions.h, the same in
 * torch 2.8 to 2.15), from which its bindings take the exception out again, with its class and its
 * attributes. C has no throw, so this file makes an object of that class as the C++ ABI of Linux
 * lays it out (https://itanium-cxx-abi.github.io/cxx-abi/abi.html), and calls libstdc++ to throw
 * it. A catch finds a class by the name in its type_info. A torch without that class takes the
 * object for a std::exception, and raises a RuntimeError with its text. */
#define _GNU_SOURCE
#include "throw.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "gil.h"
#include "pytools.h"

typedef void (*method)(void);

/* A type_info of a class with one base, and the table of virtual functions that an object points
 * into, behind the first two fields. */
static struct {
	const void *table;
	const char *name;
	const void *base;
} type_info = {.name = "12python_error"};

static struct {
	int64_t offset_to_top;
	const void *type_info;
	method functions[3]; /* two destructors, and what() */
} table = {.type_info = &type_info};

/* torch's class: a std::exception, whose only field is the table, and then its own fields, of
 * which the last is a std::string of libstdc++. */
typedef struct python_error {
	const method *functions;
	PyObject *type, *value, *traceback;
	char *text;
	size_t length;
	union {
		char room[16];
		size_t capacity;
	};
} python_error;

static void *(*allocate)(size_t);
static void (*throw)(void *, void *, void (*)(void *));

static void drop(void *object) {
	python_error *e = object;
	if (e->text != e->room)
		free(e->text);
	if (atomic_load_explicit(&gil_ender, memory_order_relaxed))
		return; /* Python ends, and a thread that asks for the GIL may not come back */
	PyGILState_STATE gil = PyGILState_Ensure();
	PyObject *held[] = {e->type, e->value, e->traceback};
	for (int i = 0; i < 3; i++)
		if (held[i])
			Py_DecRef(held[i]);
	PyGILState_Release(gil);
}

static void drop_and_free(void *object) {
	drop(object);
	free(object); /* only for objects of operator new, of which there are none */
}

static const char *what(const void *object) {
	return ((const python_error *)object)->text;
}

int throw_prepare(void) {
	void *library = dlopen("libstdc++.so.6", RTLD_LAZY | RTLD_NOLOAD);
	if (library == NULL)
		return -1;
	const char *of_one_base = dlsym(library, "_ZTVN10__cxxabiv120__si_class_type_infoE");
	type_info.base = dlsym(library, "_ZTISt9exception");
	allocate = (void *(*)(size_t))dlsym(library, "__cxa_allocate_exception");
	throw = (void (*)(void *, void *, void (*)(void *)))dlsym(library, "__cxa_throw");
	if (of_one_base == NULL || type_info.base == NULL || allocate == NULL || throw == NULL)
		return -1;
	type_info.table = of_one_base + 2 * sizeof(void *);
	table.functions[0] = (method)drop;
	table.functions[1] = (method)drop_and_free;
	table.functions[2] = (method)what;
	return 0;
}

/* set_text gives e the text of its exception. */
static void set_text(python_error *e) {
	PyObject *str = e->value ? PyObject_Str(e->value) : NULL;
	const char *text = str ? PyUnicode_AsUTF8AndSize(str, NULL) : NULL;
	e->text = text ? strdup(text) : NULL;
	if (e->text) {
		e->length = e->capacity = strlen(e->text);
	} else {
		e->text = e->room;
		e->room[0] = 0;
	}
	if (str)
		Py_DecRef(str);
	PyErr_Clear(); /* of this function */
}

void throw_set(PyGILState_STATE gil) {
	python_error *e = allocate(sizeof *e);
	memset(e, 0, sizeof *e);
	e->functions = table.functions;
	PyErr_Fetch(&e->type, &e->value, &e->traceback);
	PyErr_NormalizeException(&e->type, &e->value, &e->traceback);
	set_text(e);
	PyGILState_Release(gil);
	throw(e, &type_info, drop);
	abort(); /* it does not return */
}
#endif

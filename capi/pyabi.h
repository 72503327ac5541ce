/* The part of Python's stable ABI (PEP 384, limited API of 3.10) that this folder uses. It is
 * declared here, because a machine with Python need not have Python.h. Py_buffer and its functions
 * entered the limited API in 3.11 only, but their layout has not changed since 3.3, and every
 * version exports the symbols (PEP 688, PEP 3118). */
#ifndef PMPI_PYABI_H
#define PMPI_PYABI_H

#include <stddef.h>
#include <stdint.h>

typedef intptr_t Py_ssize_t;
typedef struct _typeobject PyTypeObject;

typedef struct _object {
	Py_ssize_t ob_refcnt;
	PyTypeObject *ob_type;
} PyObject;

typedef struct _ts PyThreadState;
typedef struct _is PyInterpreterState;
typedef int PyGILState_STATE;

typedef PyObject *(*PyCFunctionFast)(PyObject *, PyObject *const *, Py_ssize_t);

typedef struct PyMethodDef {
	const char *ml_name;
	void *ml_meth;
	int ml_flags;
	const char *ml_doc;
} PyMethodDef;

#define METH_FASTCALL 0x0080
#define METH_KEYWORDS 0x0002
#define METH_NOARGS   0x0004

typedef struct PyGetSetDef {
	const char *name;
	PyObject *(*get)(PyObject *, void *);
	int (*set)(PyObject *, PyObject *, void *);
	const char *doc;
	void *closure;
} PyGetSetDef;

typedef struct PyType_Slot {
	int slot;
	void *pfunc;
} PyType_Slot;

typedef struct PyType_Spec {
	const char *name;
	int basicsize;
	int itemsize;
	unsigned int flags;
	PyType_Slot *slots;
} PyType_Spec;

/* Numbers of slots; they are part of the ABI (typeslots.h). */
#define Py_tp_call     50
#define Py_tp_clear    51
#define Py_tp_dealloc  52
#define Py_tp_doc      56
#define Py_tp_methods  64
#define Py_tp_traverse 71
#define Py_tp_getset   73

#define TPFLAGS_DEFAULT                (1U << 18)
#define TPFLAGS_BASETYPE               (1U << 10)
#define TPFLAGS_DISALLOW_INSTANTIATION (1U << 7)
#define TPFLAGS_HAVE_GC                (1U << 14)

typedef int (*visitproc)(PyObject *, void *);

typedef struct PyModuleDef {
	PyObject ob_base;
	PyObject *(*m_init)(void);
	Py_ssize_t m_index;
	PyObject *m_copy;
	const char *m_name;
	const char *m_doc;
	Py_ssize_t m_size;
	PyMethodDef *m_methods;
	void *m_slots;
	void *m_traverse;
	void *m_clear;
	void *m_free;
} PyModuleDef;

#define PYTHON_API_VERSION_STABLE 3 /* PYTHON_ABI_VERSION */

typedef struct Py_buffer {
	void *buf;
	PyObject *obj;
	Py_ssize_t len;
	Py_ssize_t itemsize;
	int readonly;
	int ndim;
	char *format;
	Py_ssize_t *shape;
	Py_ssize_t *strides;
	Py_ssize_t *suboffsets;
	void *internal;
} Py_buffer;

#define PyBUF_FORMAT  0x0004
#define PyBUF_STRIDES (0x0010 | 0x0008)

/* The symbols are weak, because cgo links these files into a program without Python to see what
 * they import. */
#pragma GCC visibility push(default)
#define PY extern __attribute__((weak))

PY PyObject _Py_NoneStruct, _Py_TrueStruct, _Py_FalseStruct;
PY PyObject *PyExc_TypeError, *PyExc_ValueError, *PyExc_RuntimeError, *PyExc_MemoryError,
	*PyExc_ImportError;

#define Py_None  (&_Py_NoneStruct)
#define Py_True  (&_Py_TrueStruct)
#define Py_False (&_Py_FalseStruct)

PY void Py_IncRef(PyObject *);
PY void Py_DecRef(PyObject *);
PY PyObject *PyModule_Create2(PyModuleDef *, int);
PY PyInterpreterState *PyInterpreterState_Get(void);
PY int64_t PyInterpreterState_GetID(PyInterpreterState *); /* 0: the main one */
PY unsigned long PyType_GetFlags(PyTypeObject *);
PY PyObject *PyType_FromSpec(PyType_Spec *);
PY PyObject *PyType_GenericAlloc(PyTypeObject *, Py_ssize_t);
PY void PyObject_GC_UnTrack(void *);
PY void PyObject_GC_Del(void *);

#define TPFLAGS_LIST  (1UL << 25)
#define TPFLAGS_TUPLE (1UL << 26)

PY long long PyLong_AsLongLong(PyObject *);
PY unsigned long long PyLong_AsUnsignedLongLong(PyObject *);
PY PyObject *PyLong_FromLongLong(long long);
PY PyObject *PyLong_FromUnsignedLongLong(unsigned long long);
PY PyObject *PyBool_FromLong(long);
PY double PyFloat_AsDouble(PyObject *);
PY PyObject *PyFloat_FromDouble(double);
PY PyObject *PyComplex_FromDoubles(double, double);
PY double PyComplex_RealAsDouble(PyObject *);
PY double PyComplex_ImagAsDouble(PyObject *);
PY PyObject *PyNumber_Index(PyObject *);
PY PyObject *PyUnicode_FromString(const char *);
PY PyObject *PyUnicode_InternFromString(const char *);
PY int PyUnicode_CompareWithASCIIString(PyObject *, const char *);
PY PyObject *PyUnicode_DecodeUTF8(const char *, Py_ssize_t, const char *);
PY PyObject *PyUnicode_FromFormat(const char *, ...);
PY const char *PyUnicode_AsUTF8AndSize(PyObject *, Py_ssize_t *);

PY Py_ssize_t PyTuple_Size(PyObject *);
PY PyObject *PyTuple_GetItem(PyObject *, Py_ssize_t);
PY PyObject *PyTuple_New(Py_ssize_t);
PY int PyTuple_SetItem(PyObject *, Py_ssize_t, PyObject *);
PY Py_ssize_t PyList_Size(PyObject *);
PY PyObject *PyList_AsTuple(PyObject *);
PY PyObject *PyList_New(Py_ssize_t);
PY int PyList_Append(PyObject *, PyObject *);
PY PyObject *PyList_GetItem(PyObject *, Py_ssize_t);
PY Py_ssize_t PySequence_Size(PyObject *);
PY PyObject *PySequence_GetItem(PyObject *, Py_ssize_t);
PY PyObject *PyDict_New(void);
PY PyObject *PyDict_GetItemWithError(PyObject *, PyObject *);
PY int PyDict_SetItem(PyObject *, PyObject *, PyObject *);

PY PyObject *PyCapsule_New(void *, const char *, void (*)(PyObject *));
PY void *PyCapsule_GetPointer(PyObject *, const char *);
PY PyObject *PyObject_GetAttrString(PyObject *, const char *);
PY PyObject *PyObject_CallFunctionObjArgs(PyObject *, ...);
PY int PyObject_IsTrue(PyObject *);
PY PyObject *PyObject_CallMethodObjArgs(PyObject *, PyObject *, ...);
PY int PyObject_IsInstance(PyObject *, PyObject *);
PY PyObject *PyObject_Str(PyObject *);
PY int PyObject_SetAttrString(PyObject *, const char *, PyObject *);
PY int PyObject_CheckBuffer(PyObject *);
PY int PyObject_GetBuffer(PyObject *, Py_buffer *, int);
PY void PyBuffer_Release(Py_buffer *);

PY void PyErr_SetString(PyObject *, const char *);
PY void PyErr_SetObject(PyObject *, PyObject *);
PY PyObject *PyErr_Format(PyObject *, const char *, ...);
PY PyObject *PyErr_NoMemory(void);
PY PyObject *PyErr_Occurred(void);
PY void PyErr_Clear(void);
PY int PyErr_CheckSignals(void);
PY void PyErr_WriteUnraisable(PyObject *);
PY void PyErr_Fetch(PyObject **, PyObject **, PyObject **);
PY void PyErr_Restore(PyObject *, PyObject *, PyObject *);
PY void PyErr_NormalizeException(PyObject **, PyObject **, PyObject **);

PY PyThreadState *PyThreadState_Get(void);
PY PyThreadState *PyEval_SaveThread(void);
PY void PyEval_RestoreThread(PyThreadState *);
PY int Py_IsInitialized(void);
PY int Py_AddPendingCall(int (*)(void *), void *);
PY PyGILState_STATE PyGILState_Ensure(void);
PY void PyGILState_Release(PyGILState_STATE);

#undef PY
#pragma GCC visibility pop

#endif

/* The GIL after a wait, also while Python ends. */
#ifndef PMPI_GIL_H
#define PMPI_GIL_H

#include <stdatomic.h>

#include "pyabi.h"

/* The number (gettid) of the thread that ends Python; 0 until it is about to. */
extern _Atomic int gil_ender;

void gil_wait(void);

/* gil_take takes the GIL that PyEval_SaveThread has dropped. While Python ends it does not return,
 * except in the thread that ends it. Python would end the thread here with pthread_exit, which
 * crashes the process if C++ has called the thread's Python code. */
static inline void gil_take(PyThreadState *ts) {
	if (atomic_load_explicit(&gil_ender, memory_order_relaxed))
		gil_wait();
	PyEval_RestoreThread(ts);
}

/* gil_ensure is PyGILState_Ensure, and does not return either while Python ends. */
static inline PyGILState_STATE gil_ensure(void) {
	if (atomic_load_explicit(&gil_ender, memory_order_relaxed))
		gil_wait();
	return PyGILState_Ensure();
}

/* gil_ending is called by the thread that is about to end Python. Other threads do not get the GIL
 * by gil_take for limit_ns, and never again if Python ends in that time. */
void gil_ending(int64_t limit_ns);

#endif

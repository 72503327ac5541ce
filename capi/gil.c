#ifdef PMPI_PYMODULE
/* The GIL after a wait, also while Python ends; see gil.h. */
#define _GNU_SOURCE
#include "gil.h"

#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "guard.h"

_Atomic int gil_ender;
static _Atomic int64_t held_until; /* by now() */

static int64_t now(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

void gil_ending(int64_t limit_ns) {
	held_until = now() + limit_ns;
	gil_ender = (int)syscall(SYS_gettid);
}

void gil_wait(void) {
	if (pmpi_guard_forked() || syscall(SYS_gettid) == gil_ender)
		return;
	while (Py_IsInitialized()) { /* until Python ends daemon threads */
		if (now() >= held_until)
			return; /* callbacks of atexit run, and may wait for this thread */
		nanosleep(&(struct timespec){.tv_nsec = 500000}, NULL);
	}
	for (;;)
		pause(); /* until the process has ended */
}
#endif

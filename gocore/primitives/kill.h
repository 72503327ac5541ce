/* Points in the C code of arrivals and chunks at which a test kills a process.
 *
 * A point is nothing in an ordinary build. With -DPADDLEMPI_KILL_POINTS, a process whose variable
 * PADDLEMPI_KILL is "NAME:N" kills itself when it passes the point NAME for the Nth time since the
 * variable was set. The name of a point occurs in one source file only, because each file counts
 * for itself. */
#ifndef PADDLEMPI_PRIMITIVES_KILL_H
#define PADDLEMPI_PRIMITIVES_KILL_H

#ifdef PADDLEMPI_KILL_POINTS

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static inline void pmpi_kill_point(const char *name) {
	static int passed;
	const char *at = getenv("PADDLEMPI_KILL");
	const size_t length = strlen(name);
	if (at != NULL && strncmp(at, name, length) == 0 && at[length] == ':' &&
		__atomic_add_fetch(&passed, 1, __ATOMIC_RELAXED) == atoi(at + length + 1))
		kill(getpid(), SIGKILL);
}

#define PMPI_KILL_POINT(name) pmpi_kill_point(name)
#else
#define PMPI_KILL_POINT(name) ((void)0)
#endif

#endif

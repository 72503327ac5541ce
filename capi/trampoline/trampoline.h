/* libpaddlempi_trampoline.so: the library that the environment variable MPITRAMPOLINE_LIB names for
 * jaxlib. jaxlib's wheel has MPItrampoline's client: its MPI is whatever library exports the names
 * of names.h. This one carries out the few functions that XLA calls by the core's groups, so they
 * work under every MPI, and without any. ADR 0051 has the reasons.
 *
 * names.c has the names, calls.c the functions of MPI, split.c how communicators are made, error.c
 * the texts of errors, copy.c copies of tensors, job.c the job. */
#ifndef TRAMPOLINE_H
#define TRAMPOLINE_H

#include <stdint.h>

#include "../functions.h"

#define EXPORT __attribute__((visibility("default")))

/* A communicator of MPI. Its handle is its address, or WORLD. It is never freed, because XLA's
 * destructors run after the end of everything else. */
typedef struct comm {
	int64_t group; /* of the core */
	int rank, size;
	int one_node;    /* all members share a node: nobody touches a tensor of XLA after its call */
	const char *why; /* NULL, or why every call fails */
} comm;

enum { WORLD = 1 };

/* What paddlempi_trampoline_start was given. Written once, before jaxlib loads the library. */
typedef struct job {
	const pmpi_functions *core; /* NULL: not started */
	int rank, size;
	double split_seconds;
	int64_t window;             /* of split.c */
	int (*local_devices)(void); /* NULL, or see paddlempi_trampoline_devices */
} job;

extern job this_job;

/* paddlempi_trampoline_start gives the library the core, after init. It is collective over the
 * world. rank and size are the world's, and a Comm_split waits split_seconds for the processes that
 * have not called it. Returns 0, or an error code of the core, whose pmpi_last_error has the text.
 */
EXPORT int paddlempi_trampoline_start(const pmpi_functions *core, int rank, int size,
									  double split_seconds);

/* paddlempi_trampoline_devices gives the library a function that returns how many CPU devices this
 * process has. A Comm_split calls it on the thread of the device that XLA splits for: XLA does not
 * say that several devices of a process are members of a communicator, of which MPI knows one. */
EXPORT void paddlempi_trampoline_devices(int (*count)(void));

/* comm_of returns the communicator that a handle stands for, or NULL. */
comm *comm_of(intptr_t handle);

/* split_start makes what split needs; collective. Returns 0 or an error code of the core. */
int split_start(void);

/* split is MPI_Comm_split of the world. It always gives a communicator; if the processes do not all
 * come, it is one whose calls fail. NULL stands for MPI_COMM_NULL. */
comm *split(int colour, int key);

/* A copy of XLA's memory, for a call that may go on using it after an error (copy.c). */
typedef struct copy {
	void *data; /* NULL: no memory */
	int64_t room;
} copy;

/* copy_new takes memory for bytes, filled with those at from unless that is NULL. */
copy copy_new(int64_t bytes, const void *from);

/* copy_free gives the memory of c back. */
void copy_free(copy c);

/* core_error returns a code of MPI for the core's error that this thread had last. */
int core_error(const char *function);

/* own_error returns a code of MPI for an error that was found here. */
__attribute__((format(printf, 3, 4))) int own_error(const char *function, int class,
													const char *format, ...);

/* refused is what a function returns that is not carried out. */
int refused(const char *function);

/* error_text writes the text of a code into text, which has room bytes, and returns its class. */
int error_text(int code, char *text, int room);

#endif

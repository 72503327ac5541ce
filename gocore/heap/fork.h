/* In a forked child the mappings of heaps become private copies, and the lock on the heap stays the
 * parent's (fork.c). */
#ifndef PMPI_HEAP_FORK_H
#define PMPI_HEAP_FORK_H

#include <stddef.h>
#include <stdint.h>

/* Notes a shared mapping of size bytes at base: the file fd from offset on. fd stays open as long
 * as the mapping is noted. Returns 0, or -1 if there is no room. Thread-safe. */
int ph_keep(void *base, size_t size, int fd, int64_t offset);

/* Takes a mapping back, before it is unmapped. Thread-safe. */
void ph_forget(void *base);

/* Locks the file fd for this process, until it ends or execs: see lock.go. Returns 0, or -1 if that
 * cannot be done or was done before. Thread-safe. */
int ph_lock(int fd);

#endif

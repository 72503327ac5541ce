/* After fork(2) parent and child share what is mapped MAP_SHARED: a DataLoader's worker that writes
 * into a tensor would write into its parent's gradients, and into those of all ranks. So the child
 * maps the same files once more, privately, at the same addresses: it sees what its parent has, and
 * keeps what it writes to itself. Children of the child copy its private memory as any other. The
 * child also closes its copy of the descriptor that has the parent's lock: a lock ends with the
 * last copy, and a worker may outlive its parent. This runs between fork and its return, in the
 * child's only thread, where mmap(2) and close(2) may be called and memory may not be allocated. */
#define _GNU_SOURCE
#include "fork.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define MOST 65536

typedef struct kept {
	void *base; /* NULL: the entry is free */
	size_t size;
	int fd;
	int64_t offset;
} kept;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static kept *list; /* grows, in steps; never moves while the lock is free */
static size_t room, used;
static int locked = -1; /* the descriptor that has the lock */
static struct stat locked_file;

static void before_fork(void) {
	pthread_mutex_lock(&lock);
}

static void in_parent(void) {
	pthread_mutex_unlock(&lock);
}

/* Closes the descriptor of the lock, unless somebody closed it and the number is another file's. */
static void leave_lock(void) {
	struct stat st;
	if (locked >= 0 && fstat(locked, &st) == 0 && st.st_ino == locked_file.st_ino &&
		st.st_dev == locked_file.st_dev)
		close(locked);
	locked = -1;
}

static void in_child(void) {
	leave_lock();
	for (size_t i = 0; i < used; i++) {
		kept *k = &list[i];
		if (k->base == NULL)
			continue;
		void *at = mmap(k->base, k->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, k->fd,
						(off_t)k->offset);
		if (at == MAP_FAILED)
			/* No memory: better an access that ends the child than one that spoils its parent. */
			munmap(k->base, k->size);
	}
	used = 0; /* private memory needs no care in a child of this process */
	pthread_mutex_init(&lock, NULL);
}

__attribute__((constructor)) static void prepare(void) {
	pthread_atfork(before_fork, in_parent, in_child);
}

int ph_keep(void *base, size_t size, int fd, int64_t offset) {
	int result = 0;
	pthread_mutex_lock(&lock);
	size_t i = 0;
	while (i < used && list[i].base != NULL)
		i++;
	if (i == room) {
		size_t more = room ? 2 * room : 64;
		kept *moved = more > MOST ? NULL : realloc(list, more * sizeof *list);
		if (moved == NULL) {
			result = -1;
			goto out;
		}
		list = moved;
		room = more;
	}
	list[i] = (kept){base, size, fd, offset};
	if (i == used)
		used++;
out:
	pthread_mutex_unlock(&lock);
	return result;
}

void ph_forget(void *base) {
	pthread_mutex_lock(&lock);
	for (size_t i = 0; i < used; i++)
		if (list[i].base == base)
			list[i].base = NULL;
	while (used > 0 && list[used - 1].base == NULL)
		used--;
	pthread_mutex_unlock(&lock);
}

/* Opens the file of fd once more: a lock of fd's own description would last as long as any mapping
 * of it, also in a child, and as long as a peer that was sent it. */
static int lock_anew(int fd) {
	struct flock all = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 1};
	char path[32];
	snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
	int own = open(path, O_RDWR | O_CLOEXEC);
	if (own >= 0 && fcntl(own, F_OFD_SETLK, &all) != 0) {
		close(own);
		own = -1;
	}
	return own;
}

int ph_lock(int fd) {
	int result = -1;
	pthread_mutex_lock(&lock);
	if (locked < 0 && fstat(fd, &locked_file) == 0) {
		locked = lock_anew(fd);
		result = locked < 0 ? -1 : 0;
	}
	pthread_mutex_unlock(&lock);
	return result;
}

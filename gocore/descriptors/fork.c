#include "fork.h"

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

// One bit for every descriptor. The handler runs in the child, which has one thread, and sees each
// word whole. Descriptors above the limit are not closed.
enum { limit = 1 << 16 };
static _Atomic unsigned long noted[limit / (8 * sizeof(long))];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void in_child(void) {
	for (int i = 0; i < (int)(sizeof noted / sizeof *noted); i++) {
		unsigned long word = atomic_exchange(&noted[i], 0);
		for (int bit = 0; word; bit++, word >>= 1)
			if (word & 1)
				close(i * (int)(8 * sizeof(long)) + bit);
	}
}

static void install(void) {
	pthread_atfork(NULL, NULL, in_child);
}

static void set(int fd, int on) {
	if (fd < 0 || fd >= limit)
		return;
	unsigned long bit = 1UL << fd % (int)(8 * sizeof(long));
	_Atomic unsigned long *word = &noted[fd / (int)(8 * sizeof(long))];
	if (on)
		atomic_fetch_or(word, bit);
	else
		atomic_fetch_and(word, ~bit);
}

void pd_note(int fd) {
	pthread_once(&once, install);
	set(fd, 1);
}

void pd_forget(int fd) {
	set(fd, 0);
}

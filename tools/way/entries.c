/* For tools/way: which functions of the core are entered between two moments, on which thread and
 * in which order. way.py compiles it into a copy of the core. Not part of the package. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define PLAIN   __attribute__((no_instrument_function))
#define VISIBLE __attribute__((visibility("default")))

enum { MOST = 1 << 20 };

static struct {
	long thread;
	int64_t at;     /* CLOCK_MONOTONIC, as Python's time.monotonic_ns */
	uintptr_t what; /* the address of a function of C, or the number of one of Go */
	char language;  /* 'c' or 'g' */
} entries[MOST];
static int n_entries;
int pmpi_way_recording;

PLAIN static void enter(uintptr_t what, char language) {
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	int i = __atomic_fetch_add(&n_entries, 1, __ATOMIC_ACQ_REL);
	if (i >= MOST)
		return;
	entries[i].thread = syscall(SYS_gettid);
	entries[i].at = now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
	entries[i].what = what;
	entries[i].language = language;
}

/* Called at the entry of every function of C: gcc -finstrument-functions. */
PLAIN void __cyg_profile_func_enter(void *function, void *site) {
	(void)site;
	if (__atomic_load_n(&pmpi_way_recording, __ATOMIC_ACQUIRE))
		enter((uintptr_t)function, 'c');
}

PLAIN void __cyg_profile_func_exit(void *function, void *site) {
	(void)function, (void)site;
}

/* Called at the entry of every function of Go. */
PLAIN void pmpi_way_go(unsigned number) {
	enter(number, 'g');
}

PLAIN VISIBLE void pmpi_way_start(void) {
	n_entries = 0;
	__atomic_store_n(&pmpi_way_recording, 1, __ATOMIC_RELEASE);
}

/* Writes the entries into a file. Returns 0, or 1 if there were too many or the file fails. */
PLAIN VISIBLE int pmpi_way_stop(const char *path) {
	__atomic_store_n(&pmpi_way_recording, 0, __ATOMIC_RELEASE);
	int n = __atomic_load_n(&n_entries, __ATOMIC_ACQUIRE);
	Dl_info library;
	FILE *out = fopen(path, "w");
	if (out == NULL || n > MOST || dladdr((void *)pmpi_way_start, &library) == 0)
		return 1;
	for (int i = 0; i < n; i++) {
		uintptr_t base = entries[i].language == 'c' ? (uintptr_t)library.dli_fbase : 0;
		fprintf(out, "%lld %ld %c %lx\n", (long long)entries[i].at, entries[i].thread,
				entries[i].language, (unsigned long)(entries[i].what - base));
	}
	return fclose(out) != 0;
}

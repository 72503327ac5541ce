#define _GNU_SOURCE
#include "pool.h"

#include "../primitives/yield.h"

#include <dirent.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
	STACK = 1 << 20, /* bytes; a sum has some words for each rank on its stack */
	AWAKE = 400,     /* pauses of a helper whose call spreads again at once: some 20 us */
	CLOSE = 200      /* pauses of a caller for the helpers inside, before it yields, and sleeps */
};

/* The door is one word: how many helpers may still come in, how many are inside, and whether the
 * caller sleeps until none is. A helper comes in by a compare-and-swap, which sees what the caller
 * wrote before it opened the door. */
enum { ROOM = 1, INSIDE = 1 << 8, SLEEPS = 1 << 16 };

static struct {
	uint32_t taken;  /* some call has the helpers */
	uint32_t door;   /* a futex for the caller */
	uint32_t bell;   /* a futex for the helpers; grows when it rings */
	uint32_t asleep; /* helpers that sleep, or are about to */
	int keep;        /* to the rank's CPUs */

	/* Of the call that has the helpers. */
	pt_share share;
	void *work;
	int more;

	/* Whoever takes the helpers has these, too. */
	int made, refused; /* helpers that there are; no more could be made */
	int most;          /* workers that the last call could have */
	pthread_t caller, helper[PT_MOST];
	cpu_set_t seen, cpus; /* where the last caller could run, and where the helpers may */
} pool;

static inline uint32_t room(uint32_t door) {
	return door & (INSIDE - 1);
}

static inline uint32_t inside(uint32_t door) {
	return door & (SLEEPS - INSIDE);
}

static void sleep_on(uint32_t *word, uint32_t seen) {
	syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

static void wake(uint32_t *word, int most) {
	syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, most, NULL, NULL, 0);
}

/* come_in returns the number of this worker inside, 0 if the door is closed. */
static int come_in(void) {
	uint32_t door = __atomic_load_n(&pool.door, __ATOMIC_RELAXED);
	while (room(door) > 0)
		if (__atomic_compare_exchange_n(&pool.door, &door, door - ROOM + INSIDE, 0,
										__ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
			return (int)room(door);
	return 0;
}

static void go_out(void) {
	if (__atomic_sub_fetch(&pool.door, INSIDE, __ATOMIC_RELEASE) == SLEEPS)
		wake(&pool.door, 1);
}

/* rest sleeps until the bell rings. Between its count and its look, and between the caller's door
 * and its look at the count, there is one order: one of the two sees the other. */
static void rest(void) {
	const uint32_t seen = __atomic_load_n(&pool.bell, __ATOMIC_SEQ_CST);
	__atomic_fetch_add(&pool.asleep, 1, __ATOMIC_SEQ_CST);
	if (room(__atomic_load_n(&pool.door, __ATOMIC_SEQ_CST)) == 0)
		sleep_on(&pool.bell, seen);
	__atomic_fetch_sub(&pool.asleep, 1, __ATOMIC_RELAXED);
}

static void *help(void *unused) {
	int pauses = 0;
	(void)unused;
	for (;;) {
		const int worker = come_in();
		if (worker > 0) {
			pool.share(pool.work, worker);
			pauses = pool.more ? AWAKE : 0;
			go_out();
		} else if (pauses-- > 0) {
			pmpi_pause();
		} else {
			rest();
		}
	}
	return NULL;
}

/* make makes a helper. It takes no signal that another thread could take: only those that its own
 * steps raise, so that the line of capi/crash.c is written. */
static void make(void) {
	sigset_t all, before;
	pthread_attr_t attributes;
	sigfillset(&all);
	sigdelset(&all, SIGSEGV);
	sigdelset(&all, SIGBUS);
	sigdelset(&all, SIGILL);
	sigdelset(&all, SIGFPE);
	pthread_attr_init(&attributes);
	pthread_attr_setstacksize(&attributes, STACK);
	pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	pool.refused = pthread_create(&pool.helper[pool.made], &attributes, help, NULL) != 0;
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_attr_destroy(&attributes);
	if (pool.refused)
		return;
	pthread_setname_np(pool.helper[pool.made], "paddlempi-sum");
	if (CPU_COUNT(&pool.cpus) > 0)
		pthread_setaffinity_np(pool.helper[pool.made], sizeof pool.cpus, &pool.cpus);
	pool.made++;
}

/* add_bound adds the CPUs to which threads of this process are bound, each to one. */
static void add_bound(cpu_set_t *cpus) {
	DIR *tasks = opendir("/proc/self/task");
	if (tasks == NULL)
		return;
	for (struct dirent *entry; (entry = readdir(tasks)) != NULL;) {
		const int tid = atoi(entry->d_name);
		cpu_set_t its;
		if (tid > 0 && sched_getaffinity(tid, sizeof its, &its) == 0 && CPU_COUNT(&its) == 1)
			CPU_OR(cpus, cpus, &its);
	}
	closedir(tasks);
}

/* cpus_of_rank returns in *cpus where the rank may run: where the calling thread may. If that is
 * one CPU, it may be one of a team of threads that OpenMP has bound each to one (OMP_PROC_BIND, as
 * vLLM does by itself): then all of these. */
static void cpus_of_rank(const cpu_set_t *mine, cpu_set_t *cpus) {
	*cpus = *mine;
	if (CPU_COUNT(mine) == 1)
		add_bound(cpus);
}

int pt_cpus(void) {
	cpu_set_t mine, cpus;
	if (sched_getaffinity(0, sizeof mine, &mine) != 0)
		return 1;
	cpus_of_rank(&mine, &cpus);
	return CPU_COUNT(&cpus);
}

/* follow takes the helpers to where the caller may run now, and returns how many workers there can
 * be. A machine may have more CPUs than the set; then helpers stay where they were made. */
static int follow(void) {
	cpu_set_t mine;
	if (sched_getaffinity(0, sizeof mine, &mine) != 0)
		return PT_MOST;
	if (!CPU_EQUAL(&mine, &pool.seen)) {
		pool.seen = mine;
		cpus_of_rank(&mine, &pool.cpus);
		for (int i = 0; i < pool.made; i++)
			pthread_setaffinity_np(pool.helper[i], sizeof pool.cpus, &pool.cpus);
	}
	const int cpus = CPU_COUNT(&pool.cpus);
	return cpus < PT_MOST && __atomic_load_n(&pool.keep, __ATOMIC_RELAXED) ? cpus : PT_MOST;
}

/* prepare returns how many workers a call gets that wants so many. */
static int prepare(int workers) {
	if (!pool.more || !pthread_equal(pool.caller, pthread_self())) {
		pool.caller = pthread_self();
		pool.most = follow();
	}
	workers = workers < pool.most ? workers : pool.most;
	while (pool.made < workers - 1 && !pool.refused)
		make();
	return workers < pool.made + 1 ? workers : pool.made + 1;
}

/* close_door waits until no helper is inside, and lets none in. */
static void close_door(void) {
	uint32_t door = __atomic_and_fetch(&pool.door, ~(uint32_t)(INSIDE - 1), __ATOMIC_ACQUIRE);
	for (int paused = 1; inside(door) != 0; paused++) {
		if (paused < CLOSE) {
			pmpi_pause();
		} else if (paused < 2 * CLOSE) {
			pmpi_yield();
		} else if (door & SLEEPS ||
				   __atomic_compare_exchange_n(&pool.door, &door, door | SLEEPS, 0,
											   __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
			sleep_on(&pool.door, door | SLEEPS);
		}
		door = __atomic_load_n(&pool.door, __ATOMIC_ACQUIRE);
	}
	__atomic_store_n(&pool.door, 0, __ATOMIC_RELAXED);
}

void pt_spread(pt_share share, void *work, int workers, int more) {
	if (workers < 2 || __atomic_exchange_n(&pool.taken, 1, __ATOMIC_ACQUIRE)) {
		share(work, 0);
		return;
	}
	workers = prepare(workers);
	pool.share = share;
	pool.work = work;
	pool.more = more;
	__atomic_store_n(&pool.door, (uint32_t)(workers - 1), __ATOMIC_SEQ_CST);
	if (workers > 1 && __atomic_load_n(&pool.asleep, __ATOMIC_SEQ_CST) > 0) {
		__atomic_fetch_add(&pool.bell, 1, __ATOMIC_SEQ_CST);
		wake(&pool.bell, workers - 1);
	}
	share(work, 0);
	close_door();
	__atomic_store_n(&pool.taken, 0, __ATOMIC_RELEASE);
}

void pt_keep_to_cpus(int keep) {
	__atomic_store_n(&pool.keep, keep, __ATOMIC_RELAXED);
}

enum { PIECE = 128 << 10 };

typedef struct copying {
	char *to;
	const char *from;
	int64_t n, next; /* next: the first byte that no thread has claimed */
} copying;

static void copy_pieces(void *work, int worker) {
	copying *c = work;
	(void)worker;
	for (int64_t at; (at = __atomic_fetch_add(&c->next, PIECE, __ATOMIC_RELAXED)) < c->n;)
		memcpy(c->to + at, c->from + at, (size_t)(c->n - at < PIECE ? c->n - at : PIECE));
}

void pt_copy(void *to, const void *from, int64_t n, int workers) {
	copying c = {to, from, n, 0};
	pt_spread(copy_pieces, &c, workers, 0);
}

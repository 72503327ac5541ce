/* Go's sysmon thread looks at the other threads every 20 us while C threads call in and out of Go,
 * and takes time from the neighbouring core: an allreduce of 64 KiB took 14.6 us instead of 10.3. A
 * thread inherits the timer slack of the thread that starts it. Therefore a slack of 10 ms is set
 * before Go's constructor starts its threads, and is put back for the thread that loads the library
 * (measured: 10.4 us). */
#define _GNU_SOURCE
#include "slack.h"

#include <pthread.h>
#include <sys/prctl.h>

static int usual = -1;
static pthread_t loader;

/* Constructors with a priority run before those without. Go's has none. */
__attribute__((constructor(101))) static void coarse_timers(void) {
	usual = prctl(PR_GET_TIMERSLACK, 0, 0, 0, 0);
	loader = pthread_self();
	if (usual >= 0)
		prctl(PR_SET_TIMERSLACK, 10000000UL, 0, 0, 0);
}

void pmpi_slack_restore(void) {
	if (usual >= 0 && pthread_equal(loader, pthread_self())) {
		prctl(PR_SET_TIMERSLACK, (unsigned long)usual, 0, 0, 0);
		usual = -1;
	}
}

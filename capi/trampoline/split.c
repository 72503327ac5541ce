/* Comm_split of the world, for which not all processes need come.
 *
 * XLA calls it once for each clique, that is each set of devices that a collective joins, in the
 * members of that clique only, and always on the world. The colour is the clique's first device and
 * the key this process's place in it, so a clique of some processes only looks like the world of
 * which the others have not come yet. MPI's split would wait for good.
 *
 * Here the processes meet at a sheet, a window of rank 0. Who asks enters colour and key. When all
 * have entered, the last one publishes the entries as the result and clears the sheet. Who has
 * waited too long publishes those that are there, and clears the sheet, too: so all of them learn
 * the same, and the next split begins with a clean sheet, however often each process has asked
 * before. All of this happens under the lock of the window. A process has one entry at a time: its
 * other threads wait for their turn.
 *
 * A process with several devices comes once for each of them. Two of its devices may then meet one
 * of another process each, in any order, and look like members of cliques that do not exist. So an
 * entry says how many devices its process has, and a split fails on all if there is one with more
 * than one.
 *
 * Results are numbered, and two are kept, in turn. A process that reads its result after the one
 * after the next was published finds another number, and fails. That takes two splits without it,
 * each of which has waited for it. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "trampoline.h"

/* The sheet: int64 words in the memory of rank 0. A result has its number and its entries. */
enum {
	DONE = 0,
	ENTERED = 1,
	ENTRIES = 2
}; /* results there were; entries there are; the entries */
/* DEVICES: of its process; 0: the process has not come */
enum { DEVICES = 0, COLOUR = 1, KEY = 2, ENTRY = 3 };

enum { UNDEFINED = -32766 };

static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;

static int entries_words(void) {
	return ENTRY * this_job.size;
}

/* result_at returns where result number n is. */
static int result_at(int64_t n) {
	return ENTRIES + entries_words() + (int)(n % 2) * (1 + entries_words());
}

static int sheet_words(void) {
	return result_at(1) + 1 + entries_words();
}

int split_start(void) {
	int64_t bytes = 8 * (int64_t)sheet_words();
	void *memory = this_job.core->heap_alloc(bytes);
	if (memory == NULL)
		return PMPI_ERR_NO_MEMORY;
	memset(memory, 0, bytes);
	pmpi_buf sheet = {.data = memory, .count = sheet_words(), .dtype = PMPI_DTYPE_INT64};
	return this_job.core->window_new(&sheet, 0, -1, &this_job.window);
}

/* on_sheet is a call of the window on words of the sheet. Returns 0 or an error code of the core.
 */
static int on_sheet(int code, int64_t *words, int at, int n) {
	pmpi_window_op op = {.size = sizeof op,
						 .code = code,
						 .window = this_job.window,
						 .offset = at,
						 .timeout_ns = (int64_t)(this_job.split_seconds * 1e9) + 1000000000};
	pmpi_buf tensor = {.data = words, .count = n, .dtype = PMPI_DTYPE_INT64};
	if (code == PMPI_WINDOW_PUT)
		op.send = tensor;
	else if (code == PMPI_WINDOW_GET)
		op.recv = tensor;
	return this_job.core->window(&op);
}

static int lock_sheet(int64_t *sheet) {
	int rc = on_sheet(PMPI_WINDOW_LOCK, NULL, 0, 0);
	if (rc == 0)
		rc = on_sheet(PMPI_WINDOW_GET, sheet, 0, sheet_words());
	return rc;
}

static int unlock_sheet(int64_t *sheet, int write) {
	int rc = write ? on_sheet(PMPI_WINDOW_PUT, sheet, 0, sheet_words()) : 0;
	int unlocked = on_sheet(PMPI_WINDOW_UNLOCK, NULL, 0, 0); /* done at rank 0 when it returns */
	return rc ? rc : unlocked;
}

/* publish makes the entries on the sheet a result, and clears them. */
static void publish(int64_t *sheet) {
	int64_t *result = sheet + result_at(++sheet[DONE]);
	result[0] = sheet[DONE];
	memcpy(result + 1, sheet + ENTRIES, 8 * (size_t)entries_words());
	memset(sheet + ENTRIES, 0, 8 * (size_t)entries_words());
	sheet[ENTERED] = 0;
}

/* enter puts this process's entry on the sheet. *number becomes that of the result which it waits
 * for. Returns 0 or an error code of the core. */
static int enter(int64_t *sheet, int devices, int colour, int key, int64_t *number) {
	int rc = lock_sheet(sheet);
	if (rc)
		return rc;
	*number = sheet[DONE] + 1;
	int64_t *entry = sheet + ENTRIES + ENTRY * this_job.rank;
	sheet[ENTERED] += !entry[DEVICES]; /* it is there if give_up has failed before */
	entry[DEVICES] = devices;
	entry[COLOUR] = colour;
	entry[KEY] = key;
	if (sheet[ENTERED] == this_job.size)
		publish(sheet);
	return unlock_sheet(sheet, 1);
}

/* give_up publishes the entries that are there, unless the result has come meanwhile. Returns 0 or
 * an error code of the core. */
static int give_up(int64_t *sheet, int64_t number) {
	int rc = lock_sheet(sheet);
	if (rc)
		return rc;
	int late = sheet[DONE] < number;
	if (late)
		publish(sheet);
	return unlock_sheet(sheet, late);
}

static double now(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* await waits until the result has come, or the time is over. Returns 0 or an error code of the
 * core. */
static int await(int64_t number, int *came) {
	double deadline = now() + this_job.split_seconds;
	for (int64_t nap = 20000;; nap = nap < 1000000 ? 2 * nap : 1000000) {
		int64_t done;
		int rc = on_sheet(PMPI_WINDOW_GET, &done, DONE, 1);
		*came = done >= number;
		if (rc || *came || now() >= deadline)
			return rc;
		nanosleep(&(struct timespec){.tv_nsec = nap}, NULL);
	}
}

/* broken makes a communicator whose calls fail. Its size and rank are what XLA expects, as far as
 * they are known: it uses them before it sees an error. */
static comm *broken(int rank, int size, const char *why) {
	comm *c = calloc(1, sizeof *c);
	if (c == NULL)
		return NULL;
	char *kept = strdup(why);
	*c = (comm){.rank = rank, .size = size, .why = kept ? kept : "no memory"};
	return c;
}

static comm *broken_by_core(int key, const char *what) {
	char why[PMPI_ERROR_TEXT + 64];
	snprintf(why, sizeof why, "%s: %s", what, this_job.core->last_error()->message);
	return broken(key, key + 1, why);
}

static comm *incomplete(const int64_t *entries, int came, int colour, int key) {
	int alike = 0;
	char missing[256] = "";
	size_t n = 0;
	for (int i = 0; i < this_job.size; i++) {
		const int64_t *entry = entries + ENTRY * i;
		alike += entry[DEVICES] && entry[COLOUR] == colour;
		if (!entry[DEVICES] && n < sizeof missing - 16)
			n += snprintf(missing + n, sizeof missing - n, "%s%d", n ? ", " : "", i);
	}
	char why[1024];
	snprintf(why, sizeof why,
			 "Comm_split: %d of %d processes came within %g s (not %s); XLA can use MPI only where "
			 "every process takes part. Use gloo for this mesh, or paddlempi.jax with a group",
			 came, this_job.size, this_job.split_seconds, missing);
	return broken(key, alike > key ? alike : key + 1, why);
}

/* several is the communicator of a split for which a process with several devices came. */
static comm *several(int process, int64_t devices, int key) {
	char why[512];
	snprintf(why, sizeof why,
			 "Comm_split: process %d has %lld CPU devices, and XLA's collectives over MPI take one "
			 "device in each process. Start more processes, or use collectives='gloo'",
			 process, (long long)devices);
	return broken(key, key + 1, why);
}

/* One member of a clique. */
typedef struct member {
	int64_t key;
	int rank;
} member;

static int by_key(const void *a, const void *b) {
	const member *x = a, *y = b;
	return x->key != y->key ? (x->key > y->key) - (x->key < y->key) : x->rank - y->rank;
}

/* on_one_node says whether all members of a group share a node. */
static int on_one_node(long long number) {
	char request[64], *reply = NULL;
	snprintf(request, sizeof request, "{\"group\": %lld}", number);
	if (this_job.core->control("group_info", request, &reply))
		return 0;
	int yes = strstr(reply, "\"one_node\":true") != NULL;
	this_job.core->free(reply);
	return yes;
}

/* group makes the group of the core for the members of one colour, in the order of their keys. */
static comm *group(const member *members, int n, int key) {
	comm *c = calloc(1, sizeof *c);
	char *request = malloc(32 + 12 * (size_t)n), *reply = NULL;
	if (c == NULL || request == NULL) {
		free(c);
		free(request);
		return broken(key, n, "Comm_split: no memory");
	}
	size_t length = sprintf(request, "{\"ranks\": [");
	for (int i = 0; i < n; i++)
		length += sprintf(request + length, "%s%d", i ? "," : "", members[i].rank);
	sprintf(request + length, "]}");
	int rc = this_job.core->control("new_group", request, &reply);
	free(request);
	if (rc) {
		free(c);
		return broken_by_core(key, "Comm_split");
	}
	long long number = strtoll(strstr(reply, "\"group\":") + 8, NULL, 10);
	this_job.core->free(reply);
	*c = (comm){.group = number, .rank = key, .size = n, .one_node = on_one_node(number)};
	return c;
}

static comm *join(const int64_t *entries, int colour, int key) {
	int came = 0;
	for (int i = 0; i < this_job.size; i++) {
		const int64_t devices = entries[ENTRY * i + DEVICES];
		if (devices > 1)
			return several(i, devices, key);
		came += devices != 0;
	}
	if (came < this_job.size)
		return incomplete(entries, came, colour, key);
	if (colour == UNDEFINED)
		return NULL;
	member *members = calloc(this_job.size, sizeof *members);
	if (members == NULL)
		return broken(key, key + 1, "Comm_split: no memory");
	int n = 0;
	for (int i = 0; i < this_job.size; i++)
		if (entries[ENTRY * i + COLOUR] == colour)
			members[n++] = (member){.key = entries[ENTRY * i + KEY], .rank = i};
	qsort(members, n, sizeof *members, by_key);
	comm *c = NULL;
	for (int i = 0; i < n && c == NULL; i++)
		if (members[i].key !=
			i) /* XLA's keys are places, so these are not the members of one clique */
			c = broken(
				key, n,
				"Comm_split: the processes came for different meshes at the same time, which "
				"XLA does not tell MPI. Use gloo for a mesh of some processes only, or "
				"paddlempi.jax with a group");
	if (c == NULL)
		c = group(members, n, key);
	free(members);
	return c;
}

static comm *take_turn(int64_t *sheet, int devices, int colour, int key) {
	int64_t number;
	int came;
	if (enter(sheet, devices, colour, key, &number) || await(number, &came) ||
		(!came && give_up(sheet, number)))
		return broken_by_core(key, "Comm_split");
	if (lock_sheet(sheet) || unlock_sheet(sheet, 0)) /* nobody overwrites it meanwhile */
		return broken_by_core(key, "Comm_split");
	const int64_t *result = sheet + result_at(number);
	if (result[0] != number)
		return broken(key, key + 1, "Comm_split: this process has come too late for its result");
	return join(result + 1, colour, key);
}

comm *split(int colour, int key) {
	int64_t *sheet = calloc(sheet_words(), 8);
	if (sheet == NULL)
		return broken(key, key + 1, "Comm_split: no memory");
	const int devices = this_job.local_devices ? this_job.local_devices() : 1;
	pthread_mutex_lock(&turn);
	comm *c = take_turn(sheet, devices > 0 ? devices : 1, colour, key);
	pthread_mutex_unlock(&turn);
	free(sheet);
	return c;
}

/* Comm_split of the world, for which not all processes need come.
 *
 * XLA calls it once for each clique, that is each set of devices that a collective joins, in the
 * members of that clique only, and always on the world. The colour is the clique's first device and
 * the key this process's place in it, so a clique of some processes only looks like the world of
 * which the others have not come yet. MPI's split would wait for good.
 *
 * Here the processes meet at a board, a window of rank 0. Who asks enters colour and key. When all
 * have entered, the last one publishes all entries as the result of the next split and clears the
 * board. Who has waited too long takes its entry back. All of this happens under the lock of the
 * window, so a process either has the result or has left no trace, and the next split finds a clean
 * board, however often each process has asked before. A process has one entry at a time: its other
 * threads wait for their turn.
 *
 * Two results are kept, in turn. The result of a split can be overwritten only by the one after the
 * next, which needs an entry of every process, and a process that has not read its result yet makes
 * none. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "trampoline.h"

/* The board: int64 words in the memory of rank 0. */
enum { DONE = 0, ENTERED = 1, ENTRIES = 2 }; /* splits done; entries there are; the entries */
enum { IS_THERE = 0, COLOUR = 1, KEY = 2, ENTRY = 3 };

enum { UNDEFINED = -32766 };

static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;

static int board_words(void) {
	return ENTRIES + 3 * ENTRY * this_job.size; /* the entries, and two results */
}

static int result_at(int64_t done) {
	return ENTRIES + (1 + (int)(done % 2)) * ENTRY * this_job.size;
}

int split_start(void) {
	int64_t bytes = 8 * (int64_t)board_words();
	void *memory = this_job.core->heap_alloc(bytes);
	if (memory == NULL)
		return PMPI_ERR_NO_MEMORY;
	memset(memory, 0, bytes);
	pmpi_buf board = {.data = memory, .count = board_words(), .dtype = PMPI_DTYPE_INT64};
	return this_job.core->window_new(&board, 0, -1, &this_job.window);
}

/* on_board is a call of the window on words of the board. Returns 0 or an error code of the core.
 */
static int on_board(int code, int64_t *words, int at, int n) {
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

static int lock_board(int64_t *board) {
	int rc = on_board(PMPI_WINDOW_LOCK, NULL, 0, 0);
	if (rc == 0)
		rc = on_board(PMPI_WINDOW_GET, board, 0, board_words());
	return rc;
}

static int unlock_board(int64_t *board, int write) {
	int rc = write ? on_board(PMPI_WINDOW_PUT, board, 0, board_words()) : 0;
	int unlocked = on_board(PMPI_WINDOW_UNLOCK, NULL, 0, 0); /* done at rank 0 when it returns */
	return rc ? rc : unlocked;
}

/* enter puts this process's entry on the board. *done becomes the number of the split that it waits
 * for, minus one. Returns 0 or an error code of the core. */
static int enter(int64_t *board, int colour, int key, int64_t *done) {
	int rc = lock_board(board);
	if (rc)
		return rc;
	*done = board[DONE];
	int64_t *entry = board + ENTRIES + ENTRY * this_job.rank;
	board[ENTERED] += !entry[IS_THERE]; /* it is there if withdraw has failed before */
	entry[IS_THERE] = 1;
	entry[COLOUR] = colour;
	entry[KEY] = key;
	if (board[ENTERED] == this_job.size) {
		size_t bytes = 8 * ENTRY * (size_t)this_job.size;
		memcpy(board + result_at(board[DONE]), board + ENTRIES, bytes);
		memset(board + ENTRIES, 0, bytes);
		board[ENTERED] = 0;
		board[DONE]++;
	}
	return unlock_board(board, 1);
}

/* withdraw takes this process's entry back, unless the split has happened meanwhile: then *came is
 * 1. Otherwise board is what it was before. Returns 0 or an error code of the core. */
static int withdraw(int64_t *board, int64_t done, int *came) {
	int rc = lock_board(board);
	if (rc)
		return rc;
	*came = board[DONE] != done;
	if (*came)
		return unlock_board(board, 0);
	int64_t *is_there = board + ENTRIES + ENTRY * this_job.rank + IS_THERE;
	*is_there = 0;
	board[ENTERED]--;
	rc = unlock_board(board, 1);
	*is_there = 1;
	return rc;
}

static double now(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* await waits until split number done + 1 has happened, or the time is over. Returns 0 or an error
 * code of the core. */
static int await(int64_t done, int *came) {
	double deadline = now() + this_job.split_seconds;
	int64_t nap = 20000, word;
	for (*came = 0;;) {
		int rc = on_board(PMPI_WINDOW_GET, &word, DONE, 1);
		*came = word != done;
		if (rc || *came || now() >= deadline)
			return rc;
		nanosleep(&(struct timespec){.tv_nsec = nap}, NULL);
		nap = nap < 1000000 ? 2 * nap : 1000000;
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

static comm *incomplete(const int64_t *board, int colour, int key) {
	int alike = 0, came = 0;
	char missing[256] = "";
	size_t n = 0;
	for (int i = 0; i < this_job.size; i++) {
		const int64_t *entry = board + ENTRIES + ENTRY * i;
		came += entry[IS_THERE] != 0;
		alike += entry[IS_THERE] && entry[COLOUR] == colour;
		if (!entry[IS_THERE] && n < sizeof missing - 16)
			n += snprintf(missing + n, sizeof missing - n, "%s%d", n ? ", " : "", i);
	}
	char why[1024];
	snprintf(why, sizeof why,
			 "Comm_split: %d of %d processes came within %g s (not %s); XLA can use MPI only where "
			 "every process takes part. Use gloo for this mesh, or paddlempi.jax with a group",
			 came, this_job.size, this_job.split_seconds, missing);
	return broken(key, alike > key ? alike : key + 1, why);
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

static comm *join(const int64_t *result, int colour, int key) {
	member *members = calloc(this_job.size, sizeof *members);
	if (members == NULL)
		return broken(key, key + 1, "Comm_split: no memory");
	int n = 0;
	for (int i = 0; i < this_job.size; i++)
		if (result[ENTRY * i + COLOUR] == colour)
			members[n++] = (member){.key = result[ENTRY * i + KEY], .rank = i};
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

static comm *take_turn(int64_t *board, int colour, int key) {
	int64_t done;
	int came;
	if (enter(board, colour, key, &done))
		return broken_by_core(key, "Comm_split");
	if (await(done, &came))
		return broken_by_core(key, "Comm_split");
	if (!came && withdraw(board, done, &came))
		return broken_by_core(key, "Comm_split");
	if (!came)
		return incomplete(board, colour, key);
	int64_t *result = board + result_at(done);
	if (on_board(PMPI_WINDOW_GET, result, result_at(done), ENTRY * this_job.size))
		return broken_by_core(key, "Comm_split");
	return colour == UNDEFINED ? NULL : join(result, colour, key);
}

comm *split(int colour, int key) {
	int64_t *board = calloc(board_words(), 8);
	if (board == NULL)
		return broken(key, key + 1, "Comm_split: no memory");
	pthread_mutex_lock(&turn);
	comm *c = take_turn(board, colour, key);
	pthread_mutex_unlock(&turn);
	free(board);
	return c;
}

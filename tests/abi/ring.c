/* A C program that uses paddlempi's core through libpaddlempi.so: no Python, no mpi.h.
 *
 *   mpirun -np N ring          checks everything and prints "ring: rank R of N is done"
 *   mpirun -np N ring fail     rank 1 ends with status 3 while the other ranks wait for it
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "pmpi.h"

static int rank, size;

#define CHECK(what)                                                                                \
	do {                                                                                           \
		if (!(what))                                                                               \
			fail(__LINE__, #what);                                                                 \
	} while (0)

static void fail(int line, const char *what) {
	fprintf(stderr, "ring: rank %d, line %d: %s; latest error: %s\n", rank, line, what,
			pmpi_last_error()->message);
	exit(1);
}

static int number(const char *json, const char *key) {
	char quoted[32];
	snprintf(quoted, sizeof quoted, "\"%s\":", key);
	const char *at = strstr(json, quoted);
	CHECK(at != NULL);
	return atoi(at + strlen(quoted));
}

static void begin(void) {
	char *reply = NULL;
	CHECK(pmpi_control("init", "{\"timeout\": 20}", &reply) == PMPI_OK);
	rank = number(reply, "rank");
	size = number(reply, "size");
	pmpi_free(reply);
}

/* A token goes around the ring, and every rank but 0 increments it. */
static void ring(void) {
	int32_t token[2] = {0, 7};
	pmpi_result got;
	if (size == 1)
		return;
	if (rank == 0) {
		CHECK(pmpi_send(token, 2, PMPI_DTYPE_INT32, 1, 5, 0) == PMPI_OK);
		CHECK(pmpi_recv(token, 2, PMPI_DTYPE_INT32, size - 1, 5, 0, &got) == PMPI_OK);
		CHECK(token[0] == size - 1 && token[1] == 7);
	} else {
		CHECK(pmpi_recv(token, 2, PMPI_DTYPE_INT32, -1, 5, 0, &got) == PMPI_OK);
		token[0]++;
		CHECK(pmpi_send(token, 2, PMPI_DTYPE_INT32, (rank + 1) % size, 5, 0) == PMPI_OK);
	}
	CHECK(got.source == (rank + size - 1) % size && got.tag == 5 && got.bytes == 8);
	CHECK(pmpi_op_has_result(PMPI_OP_RECV) == 1 && pmpi_op_has_result(PMPI_OP_SEND) == 0 &&
		  pmpi_op_has_result(-1) == 0);
}

static void reductions(void) {
	enum { N = 100003 };
	static double in[N], out[N];
	static int32_t same[N];
	for (int i = 0; i < N; i++) {
		in[i] = rank + i;
		same[i] = rank * i;
	}
	CHECK(pmpi_allreduce(in, out, N, PMPI_DTYPE_FLOAT64, PMPI_REDUCE_SUM, 0) == PMPI_OK);
	CHECK(pmpi_allreduce(NULL, same, N, PMPI_DTYPE_INT32, PMPI_REDUCE_MAX, 0) == PMPI_OK);
	for (int i = 0; i < N; i++) {
		CHECK(in[i] == rank + i);
		CHECK(out[i] == size * (size - 1) / 2 + (double)size * i);
		CHECK(same[i] == (size - 1) * i);
	}
}

/* An asynchronous operation: submit, wait with a limit, completion, release. */
static void asynchronous(void) {
	int64_t word = -1, other = rank;
	pmpi_buf buf = {.data = &word, .count = 1, .dtype = PMPI_DTYPE_INT64, .device_type = 1};
	pmpi_op op = {.size = sizeof op,
				  .code = PMPI_OP_RECV,
				  .flags = PMPI_FLAG_ASYNC,
				  .root = -1,
				  .tag = 6,
				  .n_recv = 1,
				  .recv = &buf,
				  .timeout_ns = -1};
	op.peer = (rank + size - 1) % size;
	uint32_t state = 0;
	op.cookie = 41;
	op.state = &state;
	pmpi_work work = 0;
	pmpi_result got;
	pmpi_completion ended[3];
	CHECK(pmpi_submit(&op, &work, NULL) == PMPI_OK && work != 0);
	CHECK(pmpi_test(work) == 0);
	CHECK(pmpi_wait(work, 1000000, &got) == PMPI_ERR_NOT_READY);
	CHECK(pmpi_order(work, 0) == PMPI_ERR_ARGUMENT); /* the work is not over */
	CHECK(__atomic_fetch_or(&state, PMPI_STATE_NOTIFY, __ATOMIC_SEQ_CST) == 0);
	CHECK(pmpi_next_completions(ended, 3, 0) == 0 && pmpi_completion_fd() >= 0);
	/* No rank sends before this allreduce, so every rank has made the checks above. */
	CHECK(pmpi_allreduce(NULL, &other, 1, PMPI_DTYPE_INT64, PMPI_REDUCE_MAX, 0) == PMPI_OK);
	other = rank;
	CHECK(pmpi_send(&other, 1, PMPI_DTYPE_INT64, (rank + 1) % size, 6, 0) == PMPI_OK);
	CHECK(pmpi_next_completions(ended, 3, 20000000000) == 1);
	CHECK(ended[0].work == work && ended[0].cookie == 41 && ended[0].code == PMPI_OK);
	CHECK(state == (PMPI_STATE_OVER | PMPI_STATE_NOTIFY) && ended[0].result.released == 1);
	CHECK(word == op.peer && ended[0].result.source == op.peer && ended[0].result.bytes == 8);
	CHECK(pmpi_test(work) == -PMPI_ERR_ARGUMENT && pmpi_release(work) == 0);

	/* The same without a completion. Again the work cannot be over before the allreduce. */
	op.tag = 7;
	op.state = NULL;
	CHECK(pmpi_submit(&op, &work, NULL) == PMPI_OK && work != 0);
	int64_t all = 0;
	CHECK(pmpi_allreduce(NULL, &all, 1, PMPI_DTYPE_INT64, PMPI_REDUCE_MAX, 0) == PMPI_OK);
	CHECK(pmpi_send(&other, 1, PMPI_DTYPE_INT64, (rank + 1) % size, 7, 0) == PMPI_OK);
	CHECK(pmpi_wait(work, -1, &got) == PMPI_OK && got.released == 0 && got.source == op.peer);
	CHECK(got.device == 0 && pmpi_order(work, 0) == PMPI_OK && pmpi_test(work) == 1);
	CHECK(pmpi_finish(work, -1, &got) == PMPI_OK && got.released == 1);
	CHECK(pmpi_finish(work, -1, &got) == PMPI_ERR_ARGUMENT && got.released == 1);

	/* With a late completion, which the thread that waits takes. The core may list it a moment
	 * after the work is over. */
	op.tag = 8;
	op.state = &state;
	state = 0;
	CHECK(pmpi_submit(&op, &work, NULL) == PMPI_OK && work != 0);
	CHECK(__atomic_fetch_or(&state, PMPI_STATE_NOTIFY | PMPI_STATE_LATE, __ATOMIC_SEQ_CST) == 0);
	pmpi_hurry(work);
	CHECK(pmpi_take_completion(work) == 0);
	CHECK(pmpi_allreduce(NULL, &all, 1, PMPI_DTYPE_INT64, PMPI_REDUCE_MAX, 0) == PMPI_OK);
	CHECK(pmpi_send(&other, 1, PMPI_DTYPE_INT64, (rank + 1) % size, 8, 0) == PMPI_OK);
	CHECK(pmpi_finish(work, -1, &got) == PMPI_OK && got.released == 1);
	while (pmpi_take_completion(work) == 0)
		usleep(100);
	CHECK(pmpi_take_completion(work) == 0 && pmpi_next_completions(ended, 3, 0) == 0);
}

static void groups(void) {
	char request[256] = "{\"ranks\": [";
	for (int r = size - 1; r >= 0; r--)
		sprintf(request + strlen(request), "%d%s", r, r ? ", " : "]}");
	char *reply;
	CHECK(pmpi_control("new_group", request, &reply) == PMPI_OK);
	int group = number(reply, "group");
	CHECK(number(reply, "rank") == size - 1 - rank);
	pmpi_free(reply);
	float mine = 1;
	CHECK(pmpi_allreduce(NULL, &mine, 1, PMPI_DTYPE_FLOAT32, PMPI_REDUCE_SUM, group) == PMPI_OK &&
		  mine == size);
	snprintf(request, sizeof request, "{\"group\": %d}", group);
	CHECK(pmpi_control("destroy_group", request, NULL) == PMPI_OK);
	CHECK(pmpi_allreduce(NULL, &mine, 1, PMPI_DTYPE_FLOAT32, PMPI_REDUCE_SUM, group) ==
		  PMPI_ERR_GROUP_DESTROYED);
	CHECK(pmpi_control("no_such_method", "{}", NULL) == PMPI_ERR_ARGUMENT);
}

static void *other_thread(void *unused) {
	CHECK(pmpi_last_error()->code == PMPI_OK);
	return unused;
}

static void errors(void) {
	float x[4] = {1, 1, 1, 1};
	CHECK(pmpi_send(x, 4, PMPI_DTYPE_FLOAT32, size, 0, 0) == PMPI_ERR_ARGUMENT);
	CHECK(pmpi_last_error()->code == PMPI_ERR_ARGUMENT &&
		  strstr(pmpi_last_error()->message, "peer"));
	pthread_t thread; /* every thread has a latest error of its own */
	CHECK(pthread_create(&thread, NULL, other_thread, NULL) == 0 &&
		  pthread_join(thread, NULL) == 0);
	CHECK(pmpi_send(x, 4, 999, 0, 0, 0) == PMPI_ERR_TYPE);
	CHECK(pmpi_allreduce(NULL, x, 4, PMPI_DTYPE_FLOAT32, PMPI_REDUCE_BAND, 0) == PMPI_ERR_TYPE);
	if (size > 1) {
		CHECK(pmpi_allreduce(NULL, x, rank ? 4 : 3, PMPI_DTYPE_FLOAT32, PMPI_REDUCE_SUM, 0) ==
			  PMPI_ERR_MISMATCH);
		CHECK(strstr(pmpi_last_error()->message, "float32[3]") && pmpi_last_error()->n_ranks > 0);
		if (rank == 1)
			CHECK(pmpi_refuse(0, PMPI_OP_ALL_REDUCE) == PMPI_OK);
		else
			CHECK(pmpi_allreduce(NULL, x, 4, PMPI_DTYPE_FLOAT32, PMPI_REDUCE_SUM, 0) ==
					  PMPI_ERR_REFUSED &&
				  pmpi_last_error()->ranks[0] == 1);
	}
	CHECK(pmpi_allreduce(NULL, x, 4, PMPI_DTYPE_FLOAT32, PMPI_REDUCE_SUM, 0) == PMPI_OK &&
		  x[3] == size);
	/* Of a caller that was compiled with another header. A message as short as this one could be
	 * carried out before the core looks at it. */
	pmpi_buf buf = {.data = x, .count = 1, .dtype = PMPI_DTYPE_FLOAT32, .device_type = 1};
	pmpi_op short_op = {.size = 8, .code = PMPI_OP_SEND, .n_send = 1, .send = &buf};
	short_op.peer = (rank + 1) % size;
	CHECK(pmpi_submit(&short_op, NULL, NULL) == PMPI_ERR_ARGUMENT);
}

/* In a forked process every call fails with PMPI_ERR_FORKED. Its exit does not end the job. */
static void forked(void) {
	fflush(NULL);
	pid_t child = fork();
	if (child == 0) {
		int32_t x = 0;
		pmpi_result got;
		CHECK(pmpi_send(&x, 1, PMPI_DTYPE_INT32, 0, 0, 0) == PMPI_ERR_FORKED);
		CHECK(pmpi_allreduce(NULL, &x, 1, PMPI_DTYPE_INT32, PMPI_REDUCE_SUM, 0) == PMPI_ERR_FORKED);
		CHECK(pmpi_control("info", NULL, NULL) == PMPI_ERR_FORKED);
		CHECK(pmpi_test(1) == -PMPI_ERR_FORKED && pmpi_wait(1, 0, &got) == PMPI_ERR_FORKED);
		CHECK(pmpi_order(1, 0) == PMPI_ERR_FORKED);
		pmpi_completion ended[1];
		CHECK(pmpi_next_completions(ended, 1, -1) == 0 && pmpi_completion_fd() == -1);
		CHECK(pmpi_last_error()->code == PMPI_ERR_FORKED);
		pmpi_release(1);
		pmpi_exit(9);
		exit(6);
	}
	int status;
	CHECK(child > 0 && waitpid(child, &status, 0) == child);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 6);
}

int main(int argc, char **argv) {
	float x = 1;
	CHECK(pmpi_allreduce(NULL, &x, 1, PMPI_DTYPE_FLOAT32, PMPI_REDUCE_SUM, 0) ==
		  PMPI_ERR_NOT_INITIALIZED);
	begin();
	if (argc > 1 && strcmp(argv[1], "fail") == 0) {
		if (rank == 1)
			return 3;
		pmpi_allreduce(NULL, &x, 1, PMPI_DTYPE_FLOAT32, PMPI_REDUCE_SUM, 0);
		printf("ring: rank %d went on\n", rank);
		return 0;
	}
	ring();
	reductions();
	asynchronous();
	groups();
	errors();
	forked();
	ring();
	CHECK(pmpi_control("init", "{}", NULL) == PMPI_ERR_ALREADY_INITIALIZED);
	CHECK(pmpi_control("destroy", "{}", NULL) == PMPI_OK);
	CHECK(pmpi_send(&x, 1, PMPI_DTYPE_FLOAT32, 0, 0, 0) == PMPI_ERR_NOT_INITIALIZED);
	begin();
	reductions();
	printf("ring: rank %d of %d is done\n", rank, size);
	return 0;
}

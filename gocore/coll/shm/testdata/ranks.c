/* The ranks of a node go through collectives: arrive (slots.c), some ahead of their turn, share out
 * the chunks (chunks.c), and now and then refuse or give up. argv: ranks, collectives, a seed,
 * whether ranks may give up (0, 1, or 2 for in the work and more often), how many collectives a
 * rank may have announced, and RANK:POINT:N for each rank that is killed (primitives/kill.h).
 * Prints how the collectives ended. Ranks have different numbers of threads, which work at once if
 * a rank may do all chunks.
 *
 * The ranks are threads of one process, for ThreadSanitizer: every tensor, payload and result is
 * plain memory, so it reports whoever touches one too early. If some rank is killed, they are
 * processes that share a mapping. The process that started them tells them who is dead, as the
 * locks of the heaps do elsewhere. The others must end every collective alike, and know who has
 * died. */
#define _GNU_SOURCE
#include "../../../arrive/slots.h"
#include "../../../primitives/words.h"
#include "../chunks.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST = 8, COUNT = 3000, CHUNKS = 24, THREADS = 3 };

/* Why a rank gives up: pa_closer and pa_why tell the others. */
enum { TIMEOUT = 7, DIED = 8 };

static int n, rounds, gives_up, ahead;
static unsigned seed;
static pa_member *slots;
static int32_t *tensors[MOST][PA_SLOTS]; /* by rank, and by collective % ahead */

/* How far a rank has come. It lies in memory that all ranks share. */
static struct outcome {
	int done, given_up, refused; /* two collectives, and how many */
	int announced;               /* the newest one */
	int named;                   /* the dead rank because of which it gave up; -1 for none */
	int dead;                    /* the rank was killed */
} *outcomes;

static int32_t *tensor(int rank, uint64_t seq) {
	return tensors[rank][seq % (uint64_t)ahead];
}

static int32_t input(int rank, uint64_t seq) {
	return (int32_t)(rank * 1000 + seq);
}

/* What a payload carries: long ones lie in an area of their own. */
typedef struct payload {
	uint64_t seq, filling[7];
	int32_t rank;
} payload;

/* shared returns memory of zeros that ranks share, also if they are processes. */
static void *shared(size_t bytes) {
	void *at = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (at == MAP_FAILED)
		abort();
	return at;
}

static int is_dead(int rank) {
	return __atomic_load_n(&outcomes[rank].dead, __ATOMIC_ACQUIRE);
}

/* newest returns the newest collective that a rank has announced. */
static uint64_t newest(int rank) {
	uint64_t newest = 0;
	for (int k = 0; k < PA_SLOTS; k++) {
		uint64_t seq = sw_read64(&slots[rank].slot[k].seq);
		if (seq & PA_HERE_BIT)
			seq &= ~(PA_REFUSED_BIT | PA_HERE_BIT);
		else if (seq & (PA_CLOSED_BIT | PA_REFUSED_BIT))
			seq = 0;
		newest = seq > newest ? seq : newest;
	}
	return newest;
}

/* dead_before returns a dead rank that has not announced seq, -1 if there is none. */
static int dead_before(uint64_t seq) {
	for (int r = 0; r < n; r++)
		if (is_dead(r) && newest(r) < seq)
			return r;
	return -1;
}

static void wrong(const char *what, int me, uint64_t seq) {
	fprintf(stderr, "rank %d, collective %llu: %s\n", me, (unsigned long long)seq, what);
	exit(1);
}

/* A reduction without vector code: ThreadSanitizer sees every access. */
static void add(const pmpi_fold *f, void *const *dst, int ndst, const void *const *src, int nsrc,
				int64_t m) {
	(void)f;
	sched_yield(); /* so that other ranks meet chunks that are being worked on */
	for (int64_t i = 0; i < m; i++) {
		int32_t sum = 0;
		for (int r = 0; r < nsrc; r++)
			sum += ((const int32_t *)src[r])[i];
		for (int r = 0; r < ndst; r++)
			((int32_t *)dst[r])[i] = sum;
	}
}

static int over(sm_op *op, unsigned *random) {
	for (;;) {
		sm_work(op, rand_r(random) % 2 ? CHUNKS : 1 + rand_r(random) % 4);
		int state = sm_state(op, 10, 2);
		const int worker = sm_worker(op);
		if (worker >= 0 && is_dead(worker))
			sm_fail_peer(op, worker);
		if (worker < 0 && op->blind && state == SM_PENDING && dead_before(UINT64_MAX) >= 0) {
			pa_explain(slots, op->me, DIED); /* the dead rank may be the only one that could work */
			state = sm_close(op);
		}
		if (state == SM_CLOSING)
			state = sm_close(op);
		if (state == SM_DONE || state == SM_CLOSED)
			return state;
		sched_yield();
	}
}

/* killer returns the dead rank because of which the work on op was given up, -1 if there is none.
 */
static int killer(const sm_op *op) {
	for (int from = -1, r = sm_closer(op, &from); r >= 0; r = sm_closer(op, &from))
		if (is_dead(r))
			return r;
	for (int r = 0; r < n; r++)
		if (pa_why(slots, r) == DIED)
			return dead_before(UINT64_MAX);
	return -1;
}

/* announce announces seq for rank me: in its turn, or ahead of it. */
static void announce(int me, uint64_t seq) {
	int32_t *t = tensor(me, seq);
	for (int i = 0; i < COUNT; i++)
		t[i] = input(me, seq);
	uint64_t word[PA_WORDS] = {1, seq, 2};
	payload told = {.seq = seq, .rank = me};
	pa_announce(slots, n, me, seq, word, 0, (uint8_t *)&told, seq % 2 ? sizeof told : 8);
}

/* give_back is what a caller does with the tensors of calls that have failed. */
static void give_back(int me, uint64_t seq, uint64_t announced) {
	for (; seq <= announced; seq++)
		memset(tensor(me, seq), 0, COUNT * 4);
}

/* given_back checks, when all ranks have ended, that nothing was written to these tensors since. */
static void given_back(int me) {
	const struct outcome *o = &outcomes[me];
	for (int seq = o->given_up; seq > 0 && seq <= o->announced; seq++)
		for (int i = 0; i < COUNT; i++)
			if (tensor(me, (uint64_t)seq)[i] != 0)
				wrong("a tensor was written to after its call had failed", me, (uint64_t)seq);
}

/* leave_all withdraws rank me from the collectives that it has announced after seq. */
static void leave_all(int me, uint64_t seq, uint64_t announced, uint32_t why) {
	while (seq++ < announced)
		if (!pa_close(slots, n, me, seq, why)) /* all have announced it, and none gets to it */
			pa_stop(slots, me, seq, why);
	if (seq <= PA_SLOTS || pa_may_announce(slots, n, seq))
		pa_close(slots, n, me, seq, why);
}

/* failed ends rank me, whose collective seq was given up, because of a dead rank or not. */
static void *failed(int me, uint64_t seq, uint64_t announced, int dead) {
	if (dead < 0 && !gives_up)
		wrong("it was given up for no reason", me, seq);
	leave_all(me, seq, announced, dead < 0 ? TIMEOUT : DIED);
	give_back(me, seq, announced);
	outcomes[me].given_up = (int)seq, outcomes[me].announced = (int)announced;
	outcomes[me].named = dead;
	return 0;
}

static void *rank(void *arg) {
	const int me = (int)(intptr_t)arg;
	unsigned random = seed * 16 + (unsigned)me;
	const void *src[MOST * THREADS];
	void *dst[MOST * THREADS];
	/* Every tensor has two parts, which end at different places. */
	const int64_t begin[] = {0, COUNT};
	sm_part parts[MOST][2];
	sm_side sides[MOST];
	uint64_t announced = 0, refuses = 0; /* refuses: the newest that this rank has refused late */
	for (uint64_t seq = 1; seq <= (uint64_t)rounds; seq++) {
		pa_turn(slots, me, seq);
		if (announced < seq)
			announce(me, announced = seq);
		while (announced < (uint64_t)rounds && announced < seq + (uint64_t)ahead - 1 &&
			   rand_r(&random) % 4 && pa_may_announce(slots, n, announced + 1)) {
			announce(me, ++announced);
			if (rand_r(&random) % 16 == 0 && pa_refuse(slots, n, me, announced)) {
				refuses = announced;
				memset(tensor(me, announced), 0, COUNT * 4); /* the call has failed */
			}
		}
		const uint32_t bytes = seq % 2 ? sizeof(payload) : 8;
		uint32_t all, any, diff;
		int from = 0, state = PA_PENDING;
		while (state == PA_PENDING) {
			if (dead_before(seq) >= 0 && pa_close(slots, n, me, seq, DIED))
				state = PA_CLOSED;
			else if (gives_up == 1 && rand_r(&random) % 4000 == 0 &&
					 pa_close(slots, n, me, seq, TIMEOUT))
				state = PA_CLOSED;
			else
				state = pa_poll(slots, n, me, seq, 5, 2, &from, &all, &any, &diff);
		}
		if (state == PA_CLOSED)
			return failed(me, seq, announced, dead_before(seq));
		if (state != PA_AGREED)
			wrong("the words differ", me, seq);
		if (any & PA_REFUSED) {
			outcomes[me].refused++;
			continue;
		}
		if (seq == refuses)
			wrong("the refusal was not seen", me, seq);
		for (int r = 0; r < n; r++) {
			uint32_t length;
			const payload *got = pa_payload(slots, n, r, seq, &length);
			if (got->seq != seq || (bytes > 8 && got->rank != r))
				wrong("the payload is of another collective", me, seq);
			const int cut = COUNT / 2 + r * 17;
			parts[r][0] = (sm_part){(char *)tensor(r, seq), cut};
			parts[r][1] = (sm_part){(char *)(tensor(r, seq) + cut), COUNT};
			sides[r] = (sm_side){parts[r], 2};
		}
		uint64_t *words = pa_chunks(slots, n, seq);
		sm_op op = {.seq = seq,
					.words = words + 1,
					.blind_ranks = words,
					.n = n,
					.me = me,
					.kind = SM_ALL_REDUCE,
					.pieces = 1,
					.chunks = CHUNKS,
					.threads = 1 + (me + n) % THREADS,
					.spread = pt_spread,
					.begin = begin,
					.elem = 4,
					.out_elem = 4,
					.run = add,
					.in = sides,
					.out = sides,
					.src = src,
					.dst = dst};
		if (seq % 5 == 0 && me == (int)(seq / 5) % n && n > 1)
			sm_blind(&op);
		if (gives_up && rand_r(&random) % (gives_up == 1 ? 64 : 8) == 0) {
			sm_work(&op, rand_r(&random) % 8);
			if (rand_r(&random) % 2)
				sm_close(&op);
			else
				sm_leave(&op);
		}
		if (over(&op, &random) == SM_CLOSED)
			return failed(me, seq, announced, killer(&op));
		int32_t want = 0;
		for (int r = 0; r < n; r++)
			want += input(r, seq);
		for (int i = 0; i < COUNT; i++)
			if (tensor(me, seq)[i] != want)
				wrong("the result is wrong", me, seq);
		outcomes[me].done = (int)seq;
	}
	outcomes[me].announced = (int)announced;
	return 0;
}

/* run_processes runs the ranks as processes. The ranks of kills are killed where these say. Returns
 * how many were. */
static int run_processes(char **kills) {
	pid_t pids[MOST];
	int killed = 0;
	for (int r = 0; r < n; r++) {
		pids[r] = fork();
		if (pids[r] != 0)
			continue;
		for (char **k = kills; *k; k++)
			if (atoi(*k) == r)
				setenv("PADDLEMPI_KILL", strchr(*k, ':') + 1, 1);
		rank((void *)(intptr_t)r);
		_exit(0);
	}
	for (int left = n; left > 0; left--) {
		int status, r = 0;
		const pid_t ended = wait(&status);
		while (pids[r] != ended)
			r++;
		if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) {
			__atomic_store_n(&outcomes[r].dead, 1, __ATOMIC_RELEASE);
			killed++;
		} else if (status != 0) {
			for (int i = 0; i < n; i++) /* they would wait for it; it has told what is wrong */
				kill(pids[i], SIGKILL);
			exit(1);
		}
	}
	return killed;
}

static void run_threads(void) {
	pthread_t threads[MOST];
	for (int r = 0; r < n; r++)
		pthread_create(&threads[r], 0, rank, (void *)(intptr_t)r);
	for (int r = 0; r < n; r++)
		pthread_join(threads[r], 0);
}

int main(int argc, char **argv) {
	if (argc < 6)
		return 2;
	n = atoi(argv[1]), rounds = atoi(argv[2]), seed = (unsigned)atoi(argv[3]),
	gives_up = atoi(argv[4]), ahead = atoi(argv[5]);
	slots = shared((size_t)pa_size(n));
	outcomes = shared(MOST * sizeof *outcomes);
	int killed = 0, first = -1;
	for (int r = 0; r < n; r++) {
		outcomes[r].named = -1;
		for (int i = 0; i < ahead; i++)
			tensors[r][i] = shared(COUNT * 4);
	}
	if (argc > 6)
		killed = run_processes(argv + 6);
	else
		run_threads();
	for (int r = 0; r < n; r++) {
		const struct outcome *o = &outcomes[r], *f = &outcomes[first < 0 ? r : first];
		if (o->dead)
			continue;
		if (first < 0)
			first = r;
		if (o->done != f->done || o->given_up != f->given_up || o->refused != f->refused)
			wrong("it ended otherwise than for the first rank that lives", r, (uint64_t)o->done);
		given_back(r);
	}
	printf("%d done, %d refused, given up at %d", outcomes[first].done, outcomes[first].refused,
		   outcomes[first].given_up);
	if (argc > 6)
		printf(", %d killed, rank %d named", killed, outcomes[first].named);
	printf("\n");
	return 0;
}

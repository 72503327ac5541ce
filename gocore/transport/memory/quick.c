#define _GNU_SOURCE
#include "quick.h"

#include <sched.h>
#include <stdlib.h>

#include "../../primitives/yield.h"

/* The place of a group is its number, modulo GROUPS. Messages of groups that find it taken go
 * through Go. */
enum { GROUPS = 64, YIELD_EVERY = 256, BYTES_A_PAUSE = 128 };

static pq_group groups[GROUPS];
static int64_t initial;
static uint32_t stopped;

pq_group *pq_open(int64_t id, int32_t size) {
	pq_group *p = &groups[(uint64_t)id % GROUPS];
	if (id <= 0 || !sw_lock32(&p->taken, 1))
		return NULL;
	if (p->room < size) {
		int32_t *members = calloc((size_t)size, sizeof *members);
		if (members == NULL) {
			sw_write32(&p->taken, 0);
			return NULL;
		}
		free(p->members);
		p->members = members;
		p->room = size;
	}
	p->size = size;
	p->held = 0;
	return p;
}

void pq_publish(pq_group *p, int64_t id) {
	__atomic_store_n(&p->id, id, __ATOMIC_SEQ_CST);
}

void pq_close(pq_group *p) {
	__atomic_store_n(&p->id, 0, __ATOMIC_SEQ_CST);
	while (__atomic_load_n(&p->inside, __ATOMIC_SEQ_CST) != 0)
		sched_yield(); /* they wait for some microseconds at most */
	sw_write32(&p->taken, 0);
}

void pq_hold(pq_group *p, int32_t n) {
	__atomic_fetch_add(&p->held, (uint32_t)n, __ATOMIC_RELAXED); /* for calls of the same thread */
}

void pq_initial(int64_t id) {
	__atomic_store_n(&initial, id, __ATOMIC_RELAXED);
}

void pq_stop(void) {
	__atomic_store_n(&stopped, 1, __ATOMIC_RELAXED);
}

/* enter returns a group, or NULL. leave must follow. */
static pq_group *enter(int64_t group) {
	const int64_t id = group ? group : __atomic_load_n(&initial, __ATOMIC_RELAXED);
	pq_group *p = &groups[(uint64_t)id % GROUPS];
	if (id <= 0 || __atomic_load_n(&p->id, __ATOMIC_RELAXED) != id ||
		__atomic_load_n(&stopped, __ATOMIC_RELAXED))
		return NULL;
	__atomic_fetch_add(&p->inside, 1, __ATOMIC_SEQ_CST);
	if (__atomic_load_n(&p->id, __ATOMIC_SEQ_CST) == id)
		return p;
	__atomic_fetch_sub(&p->inside, 1, __ATOMIC_RELEASE);
	return NULL;
}

static void leave(pq_group *p) {
	__atomic_fetch_sub(&p->inside, 1, __ATOMIC_RELEASE);
}

/* mine tells whether no other message of the group has to come first. */
static int mine(const pq_group *p) {
	return __atomic_load_n(&p->busy, __ATOMIC_RELAXED) == 0 &&
		   __atomic_load_n(&p->held, __ATOMIC_RELAXED) == 0;
}

/* patience returns how often to pause. The other side of a long message may first have to copy one
 * that is as long, and Go takes some microseconds more for such a message, after which the other
 * side waits longer for the next one. But who waits here takes no other message further. */
static int patience(const pq_group *p, const pq_message *m, int pauses) {
	return pauses == 0 || sw_read32(&p->endpoint->moves) ? pauses
														 : pauses + (int)(m->bytes / BYTES_A_PAUSE);
}

/* send sends a message to the member m->peer. */
static int send(pq_group *p, const pq_message *m, int pauses) {
	const int32_t to = p->members[m->peer];
	pauses = patience(p, m, pauses);
	for (int i = 1;
		 i <= pauses && !pm_asked(p->endpoint, to, p->context, m->tag, (uint64_t)m->bytes); i++)
		if (pmpi_linger(i, YIELD_EVERY))
			return 1;
	if (!pm_lock(p->endpoint))
		return 1;
	const int rc = __atomic_load_n(&p->held, __ATOMIC_RELAXED) != 0 ||
				   pm_send(p->endpoint, to, p->context, m->tag, m->data, (uint64_t)m->bytes, 1);
	pm_unlock(p->endpoint);
	return rc;
}

/* await waits until something has come from a rank, and tells whether it has. */
static int await(pq_group *p, int32_t from, const pq_message *m, int pauses) {
	uint32_t *waits = p->endpoint->pairs[from].in.waits;
	int come = 0;
	pauses = patience(p, m, pauses);
	if (m->bytes > PM_EAGER)
		sw_write32(waits, pm_sought(p->context, m->tag));
	for (int i = 1; !(come = pm_come(p->endpoint, from)) && i <= pauses; i++) {
		if (!mine(p))
			break;
		if (pmpi_linger(i, YIELD_EVERY))
			break;
	}
	if (m->bytes > PM_EAGER)
		sw_write32(waits, 0);
	return come;
}

/* receive receives a message from the member m->peer. */
static int receive(pq_group *p, const pq_message *m, int pauses) {
	const int32_t from = p->members[m->peer];
	if (!pm_come(p->endpoint, from) && (pauses == 0 || !await(p, from, m, pauses)))
		return 1;
	if (!pm_lock(p->endpoint))
		return 1;
	const int rc = !mine(p) || pm_receive(p->endpoint, from, p->context, m->tag, m->data,
										  (uint64_t)m->bytes, pauses);
	pm_unlock(p->endpoint);
	return rc;
}

int pq_carry(const pq_message *m, int pauses) {
	if (m->bytes < 0 || m->bytes > PM_MOST || m->tag < 0)
		return 1;
	pq_group *p = enter(m->group);
	if (p == NULL)
		return 1;
	int rc = 1;
	if (m->peer >= 0 && m->peer < p->size && m->peer != p->rank && m->tag <= p->most_tag) {
		if (p->crowded)
			pauses = 0;
		const uint64_t since = p->trace.list ? tr_now(&p->trace) : 0;
		rc = m->receives ? receive(p, m, pauses) : send(p, m, pauses);
		if (rc == 0)
			tr_message(&p->trace, p->id, (uint64_t)(uint32_t)m->code | (uint64_t)m->dtype << 8,
					   (uint64_t)m->count, m->async ? TR_ASYNC : 0, m->peer, m->tag, since);
	}
	leave(p);
	return rc;
}

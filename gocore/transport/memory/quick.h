/* Short messages within a node, without Go: a call into Go and back takes as long as the rest of
 * such a message.
 *
 * A group whose members are on one node has a pq_group, if there is one left. What a call finds
 * there decides whether it may go on: other calls may have to come first. Whatever needs more than
 * a copy is for Go: a wait, an error, another message. */
#ifndef PADDLEMPI_MEMORY_QUICK_H
#define PADDLEMPI_MEMORY_QUICK_H

#include <stdint.h>

#include "../../trace/entry.h"
#include "rings.h"

#pragma GCC visibility push(hidden)

/* A message; capi/quick.c makes it of a pmpi_op. */
typedef struct pq_message {
	int64_t group, count, bytes;
	void *data;
	int32_t code, dtype, peer, tag;
	int32_t receives, async;
} pq_message;

/* A group. The struct stays when the group is freed, and is used again for another one. */
typedef struct pq_group {
	int64_t id;      /* its number; 0: it takes no messages */
	uint32_t inside; /* threads that are in pq_carry with it */
	uint32_t taken;  /* it is some group's */
	uint32_t held;   /* messages of the group that wait for something before they begin */
	uint32_t busy;   /* its context has receives that wait, or messages that nobody received */
	bool crowded;    /* the node has fewer cores than ranks: none is kept by pauses */
	int32_t rank, size, room, most_tag;
	int32_t *members; /* rank of the endpoint, by member */
	pm_endpoint *endpoint;
	uint64_t context;
	tr_ring trace;
} pq_group;

/* pq_open takes a struct for a group of size members, or returns NULL if there is none. pq_publish
 * gives it the number of the group, by which pq_carry finds it: now all its fields are set.
 * pq_close takes the number away, waits for the threads that are in pq_carry, and gives the struct
 * back. */
pq_group *pq_open(int64_t id, int32_t size);
void pq_publish(pq_group *p, int64_t id);
void pq_close(pq_group *p);

/* pq_hold adds n to what waits. */
void pq_hold(pq_group *p, int32_t n);

/* pq_initial says which group the number 0 stands for. */
void pq_initial(int64_t id);

/* pq_stop ends all that is quick in this process. */
void pq_stop(void);

/* pq_carry carries out a message of PM_MOST bytes at most. It pauses so many times for the other
 * side, and more often for a long message. Returns 0, or 1 with nothing done. */
int pq_carry(const pq_message *m, int pauses);

#pragma GCC visibility pop

#endif

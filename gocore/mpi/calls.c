// The calls on the hot path: blocking calls, nonblocking calls, and the poll.
#include "calls.h"

#include <limits.h>
#include <string.h>

#include "table.h"

_Static_assert(sizeof(void *) == 8, "handles are kept in 8 bytes");
_Static_assert(sizeof(int) == sizeof(int32_t), "int32 arrays are given to MPI as they are");

static int32_t field(const raw_status *status, int32_t offset) {
	int32_t value;
	memcpy(&value, status->bytes + offset, sizeof value);
	return value;
}

static void read_status(const struct pmpi_mpi_table *t, const raw_status *raw,
						struct pmpi_mpi_status *out) {
	mpi_count n = 0;
	out->source = field(raw, t->k.status_source);
	out->tag = field(raw, t->k.status_tag);
	// Every MPI keeps the length in bytes, so it may be read as MPI_BYTE whatever type was
	// received.
	out->bytes = t->f.Get_elements_x(raw, t->k.byte, &n) == 0 && n >= 0 ? n : 0;
}

static int32_t source_of(const struct pmpi_mpi_table *t, int32_t peer) {
	return peer == -1 ? t->k.any_source : peer;
}

static int32_t tag_of(const struct pmpi_mpi_table *t, int32_t tag) {
	return tag == -1 ? t->k.any_tag : tag;
}

#define SEND      (c->in_place ? (const void *)t->k.in_place : (const void *)c->send_buf)
#define RECV      ((void *)c->recv_buf)
#define SCATTERED (c->in_place ? (void *)t->k.in_place : (void *)c->recv_buf)
#define SN        ((int)c->send_count)
#define RN        ((int)c->recv_count)
#define SNS       ((const int *)c->send_counts)
#define SDS       ((const int *)c->send_displs)
#define RNS       ((const int *)c->recv_counts)
#define RDS       ((const int *)c->recv_displs)
#define ST        (c->send_type)
#define RT        (c->recv_type)

// The collectives, for both forms: PREFIX is empty or I, MORE is the request argument of the
// nonblocking form.
#define EACH_COLLECTIVE(PREFIX, MORE)                                                              \
	case PMPI_FN_BCAST:                                                                            \
		return t->f.PREFIX##Bcast(RECV, RN, RT, c->peer, c->comm MORE);                            \
	case PMPI_FN_ALLREDUCE:                                                                        \
		return t->f.PREFIX##Allreduce(SEND, RECV, RN, RT, c->op, c->comm MORE);                    \
	case PMPI_FN_REDUCE:                                                                           \
		return t->f.PREFIX##Reduce(SEND, RECV, RN, RT, c->op, c->peer, c->comm MORE);              \
	case PMPI_FN_ALLGATHER:                                                                        \
		return t->f.PREFIX##Allgather(SEND, SN, ST, RECV, RN, RT, c->comm MORE);                   \
	case PMPI_FN_ALLGATHERV:                                                                       \
		return t->f.PREFIX##Allgatherv(SEND, SN, ST, RECV, RNS, RDS, RT, c->comm MORE);            \
	case PMPI_FN_GATHER:                                                                           \
		return t->f.PREFIX##Gather(SEND, SN, ST, RECV, RN, RT, c->peer, c->comm MORE);             \
	case PMPI_FN_GATHERV:                                                                          \
		return t->f.PREFIX##Gatherv(SEND, SN, ST, RECV, RNS, RDS, RT, c->peer, c->comm MORE);      \
	case PMPI_FN_SCATTER:                                                                          \
		return t->f.PREFIX##Scatter((const void *)c->send_buf, SN, ST, SCATTERED, RN, RT, c->peer, \
									c->comm MORE);                                                 \
	case PMPI_FN_SCATTERV:                                                                         \
		return t->f.PREFIX##Scatterv((const void *)c->send_buf, SNS, SDS, ST, SCATTERED, RN, RT,   \
									 c->peer, c->comm MORE);                                       \
	case PMPI_FN_REDUCE_SCATTER:                                                                   \
		return t->f.PREFIX##Reduce_scatter(SEND, RECV, RNS, RT, c->op, c->comm MORE);              \
	case PMPI_FN_REDUCE_SCATTER_BLOCK:                                                             \
		return t->f.PREFIX##Reduce_scatter_block(SEND, RECV, RN, RT, c->op, c->comm MORE);         \
	case PMPI_FN_ALLTOALL:                                                                         \
		return t->f.PREFIX##Alltoall(SEND, SN, ST, RECV, RN, RT, c->comm MORE);                    \
	case PMPI_FN_ALLTOALLV:                                                                        \
		return t->f.PREFIX##Alltoallv(SEND, SNS, SDS, ST, RECV, RNS, RDS, RT, c->comm MORE);       \
	case PMPI_FN_SCAN:                                                                             \
		return t->f.PREFIX##Scan(SEND, RECV, RN, RT, c->op, c->comm MORE);                         \
	case PMPI_FN_EXSCAN:                                                                           \
		return t->f.PREFIX##Exscan(SEND, RECV, RN, RT, c->op, c->comm MORE);

#define NOTHING
#define REQUEST , &r->handle

// A receive. The caller may want its status.
static int receive(const struct pmpi_mpi_table *t, const struct pmpi_mpi_call *c,
				   struct pmpi_mpi_status *out) {
	raw_status raw = {{0}};
	void *status = out ? (void *)&raw : (void *)t->k.status_ignore;
	int rc;
	if (c->fn == PMPI_FN_MRECV) {
		handle message = c->message;
		rc = t->f.Mrecv(RECV, RN, RT, &message, status);
	} else {
		rc = t->f.Recv(RECV, RN, RT, source_of(t, c->peer), tag_of(t, c->tag), c->comm, status);
	}
	if (out && rc == 0)
		read_status(t, &raw, out);
	return rc;
}

int pmpi_mpi_run(const struct pmpi_mpi_table *t, const struct pmpi_mpi_call *c,
				 struct pmpi_mpi_status *out) {
	switch (c->fn) {
	case PMPI_FN_BARRIER:
		return t->f.Barrier(c->comm);
		EACH_COLLECTIVE(, NOTHING)
	case PMPI_FN_SEND:
		return t->f.Send((const void *)c->send_buf, SN, ST, c->peer, c->tag, c->comm);
	case PMPI_FN_RECV:
	case PMPI_FN_MRECV:
		return receive(t, c, out);
	}
	return INT_MIN;
}

static int start(const struct pmpi_mpi_table *t, const struct pmpi_mpi_call *c,
				 struct pmpi_mpi_request *r) {
	switch (c->fn) {
	case PMPI_FN_BARRIER:
		return t->f.IBarrier(c->comm REQUEST);
		EACH_COLLECTIVE(I, REQUEST)
	case PMPI_FN_SEND:
		return t->f.Isend((const void *)c->send_buf, SN, ST, c->peer, c->tag, c->comm REQUEST);
	case PMPI_FN_RECV:
		return t->f.Irecv(RECV, RN, RT, source_of(t, c->peer), tag_of(t, c->tag), c->comm REQUEST);
	case PMPI_FN_MRECV: {
		handle message = c->message;
		return t->f.Imrecv(RECV, RN, RT, &message REQUEST);
	}
	case PMPI_FN_DUP:
		return t->f.Comm_idup(c->comm, &r->made REQUEST);
	}
	return INT_MIN;
}

// A reader that sees done == 1 also sees the other fields.
static void finish(struct pmpi_mpi_request *r, int err) {
	r->err = err;
	__atomic_store_n(&r->done, 1, __ATOMIC_RELEASE);
}

static int is_done(const struct pmpi_mpi_request *r) {
	return __atomic_load_n(&r->done, __ATOMIC_ACQUIRE);
}

int pmpi_mpi_start(const struct pmpi_mpi_table *t, const struct pmpi_mpi_call *c,
				   struct pmpi_mpi_request *r) {
	memset(r, 0, sizeof *r);
	int rc = start(t, c, r);
	if (rc != 0)
		finish(r, rc);
	return rc;
}

// ended takes in what MPI has said of a request that is over.
static void ended(const struct pmpi_mpi_table *t, struct pmpi_mpi_request *r, int rc,
				  const raw_status *raw) {
	if (rc == 0) {
		struct pmpi_mpi_status status;
		read_status(t, raw, &status);
		r->source = status.source;
		r->tag = status.tag;
		r->bytes = status.bytes;
		int cancelled = 0;
		t->f.Test_cancelled(raw, &cancelled);
		r->cancelled = cancelled != 0;
		if (r->made)
			rc = pmpi_mpi_errors_return(t, r->made);
	}
	finish(r, rc);
}

static int test(const struct pmpi_mpi_table *t, struct pmpi_mpi_request *r) {
	raw_status raw = {{0}};
	int flag = 0;
	int rc = t->f.Test(&r->handle, &flag, &raw);
	if (rc == 0 && !flag)
		return 0;
	ended(t, r, rc, &raw);
	return 1;
}

enum { SOME = 64 };

// test_some tests up to SOME requests. MPI looks at the network once for all of them, where a test
// of each takes a look for each.
static int test_some(const struct pmpi_mpi_table *t, struct pmpi_mpi_request *const *requests,
					 int n) {
	union {
		handle wide[SOME];
		int32_t narrow[SOME];
	} handles;
	for (int i = 0; i < n; i++) {
		if (t->k.request_size == sizeof(int32_t))
			handles.narrow[i] = (int32_t)requests[i]->handle;
		else
			handles.wide[i] = requests[i]->handle;
	}
	int count = 0, index[SOME], class = 0;
	char statuses[SOME * sizeof(raw_status)];
	int rc = t->f.Testsome(n, &handles, &count, index, statuses);
	if (rc != 0) {
		t->f.Error_class(rc, &class);
		if (class != t->k.err_in_status) { // each one says what is wrong with it
			count = 0;
			for (int i = 0; i < n; i++)
				count += test(t, requests[i]);
			return count;
		}
	}
	for (int i = 0; i < count; i++) {
		raw_status raw = {{0}};
		memcpy(&raw, statuses + (size_t)(i * t->k.status_size), (size_t)t->k.status_size);
		ended(t, requests[index[i]], rc != 0 ? field(&raw, t->k.status_error) : 0, &raw);
	}
	return count;
}

int pmpi_mpi_poll(const struct pmpi_mpi_table *t, const uintptr_t *requests, int n) {
	int changed = 0, some = 0;
	struct pmpi_mpi_request *under_way[SOME];
	for (int i = 0; i < n; i++) {
		struct pmpi_mpi_request *r = (struct pmpi_mpi_request *)requests[i];
		if (is_done(r))
			continue;
		under_way[some++] = r;
		if (some == SOME) {
			changed += test_some(t, under_way, some);
			some = 0;
		}
	}
	if (some == 1)
		return changed + test(t, under_way[0]);
	return some == 0 ? changed : changed + test_some(t, under_way, some);
}

int pmpi_mpi_cancel(const struct pmpi_mpi_table *t, struct pmpi_mpi_request *r) {
	return is_done(r) ? 0 : t->f.Cancel(&r->handle);
}

int pmpi_mpi_improbe(const struct pmpi_mpi_table *t, uintptr_t comm, int32_t source, int32_t tag,
					 int *found, uintptr_t *message, struct pmpi_mpi_status *out) {
	raw_status raw = {{0}};
	int rc;
	if (message) {
		*message = 0;
		rc = t->f.Improbe(source_of(t, source), tag_of(t, tag), comm, found, message, &raw);
	} else {
		rc = t->f.Iprobe(source_of(t, source), tag_of(t, tag), comm, found, &raw);
	}
	if (rc == 0 && *found)
		read_status(t, &raw, out);
	return rc;
}

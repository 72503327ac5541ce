/* A send or a receive that needs no Go: of one short tensor in host memory, to or from a rank of
 * this node, in a call that waits for nothing or not for long. gocore/transport/memory/quick.h
 * has the rest. */
#include "quick.h"

#include "../gocore/transport/memory/quick.h"

_Static_assert((int)QUICK_MOST == (int)PM_MOST, "what C takes is what it may carry out");

/* In gocore/transport/memory/quick.c. It is weak, because cgo links the files of this folder
 * without those of others to see what they import. */
__attribute__((weak)) int pq_carry(const pq_message *m, int pauses);

int quick_message(const pmpi_op *op, pmpi_result *r, int64_t most, int pauses) {
	const int receives = op->code == PMPI_OP_RECV;
	if ((!receives && op->code != PMPI_OP_SEND) || op->size != sizeof *op || op->prepared ||
		(op->flags & ~(uint32_t)PMPI_FLAG_ASYNC) || op->n_send != !receives ||
		op->n_recv != receives)
		return 1;
	const pmpi_buf *b = receives ? op->recv : op->send;
	const int64_t size = pmpi_dtype_size(b->dtype);
	if (size == 0 || b->strides != NULL || b->count < 0 || b->count > most ||
		b->count * size > most || (b->data == NULL && b->count > 0) ||
		(b->device_type != 1 && b->device_type != 0)) /* pmpi.h */
		return 1;
	const pq_message m = {
		.group = op->group,
		.count = b->count,
		.bytes = b->count * size,
		.data = b->data,
		.code = op->code,
		.dtype = b->dtype,
		.peer = op->peer,
		.tag = op->tag,
		.receives = receives,
		.async = (op->flags & PMPI_FLAG_ASYNC) != 0,
	};
	if (pq_carry(&m, pauses))
		return 1;
	if (op->state)
		__atomic_fetch_or(op->state, PMPI_STATE_OVER, __ATOMIC_SEQ_CST);
	if (r)
		*r = receives ? (pmpi_result){.source = m.peer, .tag = m.tag, .bytes = m.bytes}
					  : (pmpi_result){0};
	return 0;
}

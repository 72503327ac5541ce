/* What an operation keeps alive while MPI or a device may use it. */
#ifndef PMPI_KEPT_H
#define PMPI_KEPT_H

#include "crash.h"
#include "pyabi.h"
#include "tensor.h"

/* What an operation keeps alive: the tensors, and the Py_buffers of tensors with the buffer
 * protocol. It is freed when neither MPI nor the device uses the tensors. That may be after the
 * operation has ended for its caller, and after its object is gone. */
typedef struct kept {
	struct kept *next; /* in the list of orphans */
	pmpi_work work;
	uint32_t state;        /* shared with the core: PMPI_STATE_* */
	PyObject *send, *recv; /* NULL once they were dropped */
	crash_pending crash;
	int32_t n;
	Py_buffer views[];
} kept;

/* kept_new returns an empty kept with room for the Py_buffers of both sides, or NULL with a Python
 * exception set. */
kept *kept_new(const side *a, const side *b);

/* kept_take moves the tensors of op and their Py_buffers of both sides into k. */
void kept_take(kept *k, const pmpi_op *op, PyObject *send, PyObject *recv, side *a, side *b);

/* kept_drop drops what k keeps alive. This may run destructors, which may call anything here. */
void kept_drop(kept *k);

/* kept_release releases a work. It frees k at once, or makes k an orphan if MPI or a device still
 * uses the tensors. */
void kept_release(pmpi_work work, kept *k);

/* kept_linger releases work, the operation op of a call that failed. It keeps the tensors and the
 * Py_buffers of both sides as long as MPI uses them. The Python exception that is set stays set. */
void kept_linger(const pmpi_op *op, pmpi_work work, PyObject *send, PyObject *recv, side *a,
				 side *b);

extern kept *kept_orphans; /* the kept of operations without an object; see kept_collect */

/* kept_collect frees the tensors of operations whose objects are gone, if MPI and the device have
 * finished with them. */
void kept_collect(void);

#endif

/* Short messages that need no Go; see quick.c. */
#ifndef PMPI_QUICK_H
#define PMPI_QUICK_H

#include "pmpi.h"

enum {
	QUICK_PAUSES = 256,    /* some 10 us */
	QUICK_SHORT = 4 << 10, /* what is copied at once */
	QUICK_MOST = 1 << 20
};

/* quick_is_for tells whether op may be a call for quick_message. */
#define quick_is_for(op) ((op)->code == PMPI_OP_SEND || (op)->code == PMPI_OP_RECV)

/* quick_message carries out a send or a receive of most bytes at most within the node. It pauses so
 * many times for the other side, and more often for a long message. Returns 0, or 1 with nothing
 * done: then pmpi_submit carries the call out, or returns its error. r may be NULL. The process is
 * no forked child. */
int quick_message(const pmpi_op *op, pmpi_result *r, int64_t most, int pauses);

#endif

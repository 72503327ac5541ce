/* Short messages that need no Go; see quick.c. */
#ifndef PMPI_QUICK_H
#define PMPI_QUICK_H

#include "pmpi.h"

enum { QUICK_PAUSES = 256 }; /* some 10 us */

/* quick_message carries out a send or a receive within the node, and pauses so many times for a
 * message that has not come. It holds no lock meanwhile. Returns 0, or 1 with nothing done: then
 * pmpi_submit carries the call out, or returns its error. r may be NULL. */
int quick_message(const pmpi_op *op, pmpi_result *r, int pauses);

#endif

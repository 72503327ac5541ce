/* Collectives in which the ranks read the rows in the memory of those that give them.
 *
 * Such an operation has one round. Who gives writes the addresses of its rows into its block, and
 * publishes the round; who gets them reads them from there, by process_vm_readv(2), and says that
 * it has finished. All ranks have proved before that they may (package cma).
 *
 * Why this is safe
 *   - A rank that gives does not end its part before all others have finished. So its tensors stay
 *     as they are, and it writes no other addresses.
 *   - If it gives the operation up all the same, it says so where all ranks see it before its call
 *     ends. Who has read looks there at its end, and drops what it has read: its caller's business.
 *   - With each piece the number is read that the process has shown. A process that was put in the
 *     place of a dead one has another.
 *   - An address may be anything. No length comes from another rank. */
#ifndef PMPI_BOUNCE_CMA_H
#define PMPI_BOUNCE_CMA_H

#include "rounds.h"

enum {
	PB_PIECE = 1 << 20,        /* bytes that a thread reads at once */
	PB_PIECE_STEPS = 16,       /* steps that such a piece counts as */
	PB_LEAST_PIECE = 128 << 10 /* bytes that are worth another thread */
};

/* pb_step_cma does one thing, if it can, and returns how many steps that were. */
int pb_step_cma(pb_op *op);

#endif

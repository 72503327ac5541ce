/* Functions of guard.c for the other files of this folder; not part of pmpi.h. */
#ifndef PMPI_GUARD_H
#define PMPI_GUARD_H

#include "pmpi.h"

int pmpi_guard_forked(void);    /* returns 1 in a child of fork() */
int pmpi_guard_interrupt(void); /* returns the result of the caller's interrupt check */
/* carries out a call of a window that needs neither a wait nor an error text; returns 1 with
 * nothing done if it does */
int pmpi_guard_window(const pmpi_window_op *op);
void pmpi_guard_exit(int succeeded); /* has pmpi_exit run at exit, once, after an init */
void pmpi_guard_finalize(void);      /* called by MPI at the beginning of MPI_Finalize */

#endif

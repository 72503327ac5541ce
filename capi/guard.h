/* What guard.c offers to the other files of this folder; not part of pmpi.h. */
#ifndef PMPI_GUARD_H
#define PMPI_GUARD_H

#include "pmpi.h"

int pmpi_guard_forked(void);    /* returns 1 in a child of fork() */
int pmpi_guard_interrupt(void); /* returns what the caller's interrupt check says */
void pmpi_guard_exit(void);     /* registers pmpi_exit to run at exit, once */
void pmpi_guard_finalize(void); /* what MPI_Finalize calls first */

#endif

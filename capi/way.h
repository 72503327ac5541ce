/* For tools/way: which functions of the core run between two moments. Not part of the package. */
#ifndef PMPI_WAY_H
#define PMPI_WAY_H

/* pmpi_way_start begins to record C functions, on all threads, and clears the counters of Go's
 * coverage. Returns 0, or 1 if the core was built without coverage. */
int pmpi_way_start(void);

/* pmpi_way_stop stops recording. It writes Go's counters into folder, and the C functions to its
 * file c: their offsets in this library, in hexadecimal, one on a line. Returns 0 or 1. */
int pmpi_way_stop(const char *folder);

#endif

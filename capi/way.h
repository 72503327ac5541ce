/* For tools/way: what the C functions of the core pass through between two moments. Not part of the
 * package. */
#ifndef PMPI_WAY_H
#define PMPI_WAY_H

/* pmpi_way_start begins to note C functions, on all threads, and clears the counters of Go's
 * coverage. Returns 0, or 1 where the core was built without coverage. */
int pmpi_way_start(void);

/* pmpi_way_stop ends that, writes Go's counters into folder, and the offsets of the C functions in
 * this library, in hexadecimal and a line each, to the file c in it. Returns 0 or 1. */
int pmpi_way_stop(const char *folder);

#endif

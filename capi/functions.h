/* functions.h: the functions of the core as a table, for a library in the same process that cannot
 * link to the core. There is one Go runtime a process, so libpaddlempi_trampoline.so, which jaxlib
 * loads by its path, must not bring another; and the extension module exports nothing but its init
 * function. `_core.functions()` has the address of the table. */
#ifndef PMPI_FUNCTIONS_H
#define PMPI_FUNCTIONS_H

#include "pmpi.h"

/* Pointers to functions of pmpi.h, which has their contracts, but for submit, which is xla_submit
 * of xla.h. The table is valid as long as the process. Entries are only added, at the end; size
 * says how many there are. */
typedef struct pmpi_functions {
	uint32_t size; /* sizeof(pmpi_functions) */
	int (*control)(const char *method, const char *request, char **reply);
	void (*free)(char *reply);
	int (*submit)(const pmpi_op *op, pmpi_work *work, pmpi_result *result);
	int (*release)(pmpi_work work);
	int (*memory_is_free)(pmpi_work work);
	const pmpi_error *(*last_error)(void);
	int (*window_new)(const pmpi_buf *memory, int64_t group, int64_t timeout_ns, int64_t *window);
	int (*window)(const pmpi_window_op *op);
	void *(*heap_alloc)(int64_t bytes);
	int (*heap_free)(void *memory);
} pmpi_functions;

#endif

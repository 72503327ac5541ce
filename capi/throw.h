/* The Python exception that is set, thrown through C++ of torch; see throw.c. */
#ifndef PMPI_THROW_H
#define PMPI_THROW_H

#include "pyabi.h"

/* throw_prepare finds what a throw needs. Returns 0, or -1 if this process has no libstdc++. */
int throw_prepare(void);

/* throw_set throws the Python exception that is set, after it gave back gil, which
 * PyGILState_Ensure returned. throw_prepare came before. It does not return. */
_Noreturn void throw_set(PyGILState_STATE gil);

#endif

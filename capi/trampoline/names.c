/* The names that jaxlib looks up; the lists are in names.h. */
#include "names.h"
#include "trampoline.h"

/* jaxlib compares the version of the ABI with its own: the major versions must be equal, and the
 * minor version not lower. The wrapper's version only has to exist. */
EXPORT int mpiwrapper_version_major = 2, mpiwrapper_version_minor = 11,
		   mpiwrapper_version_patch = 0;
EXPORT int mpiabi_version_major = 2, mpiabi_version_minor = 10, mpiabi_version_patch = 0;

/* jaxlib reads a constant as an int or as a pointer, by what it is. */
#define CONSTANT(name, value) EXPORT intptr_t MPIABI_##name = (intptr_t)(value);
TRAMPOLINE_CONSTANTS(CONSTANT)

/* A handle, dtype or op that is none. */
#define UNUSED(name) CONSTANT(name, -99)
TRAMPOLINE_UNUSED(UNUSED)

#define REFUSED(name)                                                                              \
	EXPORT int MPIABI_##name(void);                                                                \
	int MPIABI_##name(void) {                                                                      \
		return refused(#name);                                                                     \
	}
TRAMPOLINE_REFUSED(REFUSED)

/* Fortran has nothing to do with this; jaxlib calls it after loading. */
EXPORT void mpiwrapper_export_fortran_constants_(void);
void mpiwrapper_export_fortran_constants_(void) {}

#define NO_DEVICES(name)                                                                           \
	EXPORT int MPIXABI_Query_##name##_support(void);                                               \
	int MPIXABI_Query_##name##_support(void) {                                                     \
		return 0;                                                                                  \
	}
NO_DEVICES(cuda)
NO_DEVICES(hip)
NO_DEVICES(rocm)
NO_DEVICES(ze)

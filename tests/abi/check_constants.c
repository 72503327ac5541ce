// Compares the constants of gocore/mpi (constants.h, written by tests/abi/dump)
// with the header of the MPI whose mpicc compiles this file. Prints a line for
// every constant that differs and for every optional constant that the header
// lacks, and then the number of checks. Exits with 1 if any constant differs.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <mpi.h>
#if defined(OPEN_MPI)
#include <mpi-ext.h>
#endif
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

static int checked, wrong;

static void same(const char *name, long long header, long long ours) {
	checked++;
	if (header != ours) {
		wrong++;
		printf("%s: %lld (%#llx) in mpi.h, %lld (%#llx) in gocore/mpi\n", name, header,
			   (unsigned long long)header, ours, (unsigned long long)ours);
	}
}

#define HANDLE(name, value) same(#name, (long long)(uintptr_t)(name), value);
#define SYMBOL(name, symbol)                                                                       \
	same(#name, (long long)(uintptr_t)(name), (intptr_t)dlsym(RTLD_DEFAULT, symbol));
#define INT(name, value)      same(#name, name, value);
#define POINTER(name, value)  same(#name, (intptr_t)(name), value);
#define SIZE(type, value)     same("sizeof(" #type ")", sizeof(type), value);
#define MEMBER(member, value) same("MPI_Status." #member, offsetof(MPI_Status, member), value);
#define ABSENT(name)          printf("absent: %s\n", #name);
#define AT_MOST_8(type)       same("sizeof(" #type ") <= 8", sizeof(type) <= 8, 1);

int main(void) {
#include "constants.h"
	// What table.h assumes.
	SIZE(MPI_Count, 8)
	SIZE(MPI_Aint, sizeof(intptr_t))
	INT(MPI_SUCCESS, 0)
	AT_MOST_8(MPI_Comm)
	AT_MOST_8(MPI_Datatype)
	AT_MOST_8(MPI_Op)
	AT_MOST_8(MPI_Request)
	AT_MOST_8(MPI_Message)
	AT_MOST_8(MPI_Group)
	AT_MOST_8(MPI_Info)
	AT_MOST_8(MPI_Errhandler)
	same("MPI_MAX_LIBRARY_VERSION_STRING <= 16384", MPI_MAX_LIBRARY_VERSION_STRING <= 16384, 1);
	same("MPI_MAX_ERROR_STRING <= 4096", MPI_MAX_ERROR_STRING <= 4096, 1);
	printf("checked %d\n", checked);
	return wrong != 0;
}

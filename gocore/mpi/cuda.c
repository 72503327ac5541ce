// Queries whether MPI takes the addresses of device memory. Not every MPI has these functions.
#include "calls.h"

int pmpi_mpi_query_cuda(void *symbol) {
	return ((int (*)(void))symbol)();
}

int pmpi_mpi_query_gpu(void *symbol, int *flag) {
	enum { MPIX_GPU_SUPPORT_CUDA = 0 };
	*flag = 0;
	return ((int (*)(int, int *))symbol)(MPIX_GPU_SUPPORT_CUDA, flag);
}

int pmpi_mpi_memory_kinds(void *comm_get_info, void *info_get_string, void *info_free,
						  uintptr_t comm, char *value, int size) {
	uintptr_t info = 0; // wide enough for a handle of every ABI, as in table.h
	int found = 0;
	if (((int (*)(uintptr_t, uintptr_t *))comm_get_info)(comm, &info) != 0)
		return 0;
	int rc = ((int (*)(uintptr_t, const char *, int *, char *, int *))info_get_string)(
		info, "mpi_memory_alloc_kinds", &size, value, &found);
	((int (*)(uintptr_t *))info_free)(&info);
	return rc == 0 && found;
}

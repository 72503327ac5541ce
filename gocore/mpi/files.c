// Files (MPI-4.1 chapter 14). What a file that was opened so returns for an error is an error code:
// the default error handler of files is MPI_ERRORS_RETURN.
#include <stddef.h>

#include "calls.h"
#include "table.h"

const char *pmpi_mpi_lacks_files(const struct pmpi_mpi_table *t) {
#define LACKS(name, args)                                                                          \
	if (t->f.name == NULL)                                                                         \
		return "MPI_" #name;
	OPTIONAL(LACKS)
	return NULL;
}

int pmpi_mpi_file_open(const struct pmpi_mpi_table *t, uintptr_t comm, const char *path, int mode,
					   char **hints, int n, uintptr_t *out) {
	handle info = t->k.info_null;
	int rc = 0;
	*out = 0;
	if (n) {
		info = 0;
		rc = t->f.Info_create(&info);
		for (int i = 0; i < n && rc == 0; i++)
			rc = t->f.Info_set(info, hints[2 * i], hints[2 * i + 1]);
	}
	if (rc == 0)
		rc = t->f.File_open(comm, path, mode, info, out);
	if (n && info)
		t->f.Info_free(&info);
	return rc;
}

enum { MOST = 1 << 30 }; // bytes of a call, whose count is an int

static int length(int64_t bytes) {
	return bytes < MOST ? (int)bytes : MOST;
}

// moved_by returns how many bytes a call has moved, by its status.
static int64_t moved_by(const struct pmpi_mpi_table *t, const raw_status *raw) {
	mpi_count n = 0;
	return t->f.Get_elements_x(raw, t->k.byte, &n) == 0 && n > 0 ? n : 0;
}

int pmpi_mpi_file_write(const struct pmpi_mpi_table *t, uintptr_t file, int64_t at, uintptr_t data,
						int64_t bytes, int64_t *moved) {
	raw_status raw = {{0}};
	int rc = t->f.File_write_at(file, at, (const void *)data, length(bytes), t->k.byte, &raw);
	*moved = rc ? 0 : moved_by(t, &raw);
	return rc;
}

int pmpi_mpi_file_read(const struct pmpi_mpi_table *t, uintptr_t file, int64_t at, uintptr_t data,
					   int64_t bytes, int64_t *moved) {
	raw_status raw = {{0}};
	int rc = t->f.File_read_at(file, at, (void *)data, length(bytes), t->k.byte, &raw);
	*moved = rc ? 0 : moved_by(t, &raw);
	return rc;
}

int pmpi_mpi_file_sync(const struct pmpi_mpi_table *t, uintptr_t file) {
	return t->f.File_sync(file);
}

int pmpi_mpi_file_close(const struct pmpi_mpi_table *t, uintptr_t file) {
	return t->f.File_close(&file);
}

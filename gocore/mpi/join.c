// Processes that are not in MPI_COMM_WORLD: spawn, join, and how the two parties become one
// communicator.
#include <stdlib.h>

#include "calls.h"
#include "table.h"

// usable returns rc, or what comes of making the communicator that a call has made return errors.
static int usable(const struct pmpi_mpi_table *t, int rc, const uintptr_t *made) {
	return rc ? rc : pmpi_mpi_errors_return(t, *made);
}

int pmpi_mpi_spawn(const struct pmpi_mpi_table *t, char **argv, int n, const char *folder,
				   uintptr_t comm, uintptr_t *out) {
	handle info = t->k.info_null;
	int rc = 0;
	*out = 0;
	int *codes = calloc((size_t)n, sizeof *codes);
	if (codes == NULL)
		return -1;
	if (folder) {
		info = 0;
		rc = t->f.Info_create(&info);
		if (rc == 0)
			rc = t->f.Info_set(info, "wdir", folder);
	}
	if (rc == 0)
		rc = t->f.Comm_spawn(argv[0], argv + 1, n, info, 0, comm, out, codes);
	for (int i = 0; i < n && rc == 0; i++)
		rc = codes[i];
	if (folder && info)
		t->f.Info_free(&info);
	free(codes);
	return usable(t, rc, out);
}

int pmpi_mpi_parent(const struct pmpi_mpi_table *t, uintptr_t *out) {
	*out = 0;
	return t->f.Comm_get_parent(out);
}

// MPICH 5.0.2 takes fewer bytes than its ports have, unless it is told so (measured). Others do not
// know the key.
int pmpi_mpi_open_port(const struct pmpi_mpi_table *t, char *port) {
	handle info = 0;
	int rc = t->f.Info_create(&info);
	if (rc)
		return rc;
	rc = t->f.Info_set(info, "port_name_size", "1024");
	if (rc == 0)
		rc = t->f.Open_port(info, port);
	t->f.Info_free(&info);
	return rc;
}

int pmpi_mpi_close_port(const struct pmpi_mpi_table *t, const char *port) {
	return t->f.Close_port(port);
}

int pmpi_mpi_meet(const struct pmpi_mpi_table *t, const char *port, int accepts, uintptr_t comm,
				  uintptr_t *out) {
	*out = 0;
	int rc = accepts ? t->f.Comm_accept(port, t->k.info_null, 0, comm, out)
					 : t->f.Comm_connect(port, t->k.info_null, 0, comm, out);
	return usable(t, rc, out);
}

int pmpi_mpi_merge(const struct pmpi_mpi_table *t, uintptr_t inter, int high, uintptr_t *out) {
	*out = 0;
	return usable(t, t->f.Intercomm_merge(inter, high, out), out);
}

int pmpi_mpi_disconnect(const struct pmpi_mpi_table *t, uintptr_t comm) {
	return t->f.Comm_disconnect(&comm);
}

// The C side of package mpi, as Go sees it. The structs here have no pointer types on purpose: cgo
// then needs no run-time check of the memory that they are in. Go's mpi.Call, mpi.Status and
// transport.Request have the same layout (layouts_gen.go).
#ifndef PMPI_MPI_CALLS_H
#define PMPI_MPI_CALLS_H

#include <stdint.h>

// The values of mpi.Fn.
enum {
	PMPI_FN_NONE,
	PMPI_FN_BARRIER,
	PMPI_FN_BCAST,
	PMPI_FN_ALLREDUCE,
	PMPI_FN_REDUCE,
	PMPI_FN_ALLGATHER,
	PMPI_FN_ALLGATHERV,
	PMPI_FN_GATHER,
	PMPI_FN_GATHERV,
	PMPI_FN_SCATTER,
	PMPI_FN_SCATTERV,
	PMPI_FN_REDUCE_SCATTER,
	PMPI_FN_REDUCE_SCATTER_BLOCK,
	PMPI_FN_ALLTOALL,
	PMPI_FN_ALLTOALLV,
	PMPI_FN_SCAN,
	PMPI_FN_EXSCAN,
	PMPI_FN_SEND,
	PMPI_FN_RECV,
	PMPI_FN_MRECV,
	PMPI_FN_DUP,
};

// The layout of mpi.Call.
struct pmpi_mpi_call {
	int32_t fn;
	uint8_t in_place;
	int32_t peer;
	int32_t tag;
	uintptr_t comm;
	uintptr_t send_buf, recv_buf;
	int64_t send_count, recv_count;
	uintptr_t send_type, recv_type;
	uintptr_t op;
	uintptr_t message;
	uintptr_t send_counts, send_displs, recv_counts, recv_displs;
};

// The layout of mpi.Status.
struct pmpi_mpi_status {
	int32_t source;
	int32_t tag;
	int64_t bytes;
};

// The layout of transport.Request.
struct pmpi_mpi_request {
	uintptr_t handle;
	int32_t done;
	int32_t err;
	int32_t source;
	int32_t tag;
	int64_t bytes;
	int32_t cancelled;
	int32_t kind; // the Fn of the call; Go sets it
	uintptr_t made;
};

// The constants of the ABI that the calls need.
struct pmpi_mpi_constants {
	uintptr_t in_place, status_ignore;
	int32_t any_source, any_tag;
	int32_t status_source, status_tag, status_error; // offsets in MPI_Status
	int32_t status_size;
	int32_t request_size;  // bytes of an MPI_Request in an array: 4 or 8
	int32_t err_in_status; // the class MPI_ERR_IN_STATUS
	uintptr_t byte;        // MPI_BYTE
	uintptr_t errors_return;
	uintptr_t info_null;
	int32_t type_shared;
	int32_t keyval_invalid;
};

struct pmpi_mpi_table;

// pmpi_mpi_new allocates a zeroed table. It returns NULL if memory is short.
struct pmpi_mpi_table *pmpi_mpi_new(void);
// pmpi_mpi_free releases a table that no call is using.
void pmpi_mpi_free(struct pmpi_mpi_table *t);
// pmpi_mpi_function_name returns the symbol of the table's i-th function, or NULL after the last
// one.
const char *pmpi_mpi_function_name(int i);
// pmpi_mpi_function_is_optional tells whether an MPI may lack the table's i-th function.
int pmpi_mpi_function_is_optional(int i);
// pmpi_mpi_set_function fills in the i-th function.
void pmpi_mpi_set_function(struct pmpi_mpi_table *t, int i, void *symbol);
// pmpi_mpi_set_constants fills in the ABI's constants.
void pmpi_mpi_set_constants(struct pmpi_mpi_table *t, const struct pmpi_mpi_constants *k);

// pmpi_mpi_run makes the blocking call and returns MPI's error code. A receive fills in out, unless
// it is NULL.
int pmpi_mpi_run(const struct pmpi_mpi_table *t, const struct pmpi_mpi_call *c,
				 struct pmpi_mpi_status *out);
// pmpi_mpi_start makes the nonblocking call and returns MPI's error code. If that is not 0 the
// request is done and has the code.
int pmpi_mpi_start(const struct pmpi_mpi_table *t, const struct pmpi_mpi_call *c,
				   struct pmpi_mpi_request *r);
// pmpi_mpi_poll tests the requests that are not done, and returns how many are done now.
int pmpi_mpi_poll(const struct pmpi_mpi_table *t, const uintptr_t *requests, int n);
// pmpi_mpi_cancel asks MPI to give up a receive. The poll then tells whether MPI did.
int pmpi_mpi_cancel(const struct pmpi_mpi_table *t, struct pmpi_mpi_request *r);
// pmpi_mpi_improbe looks for a message, takes it unless message is NULL, and returns MPI's error
// code.
int pmpi_mpi_improbe(const struct pmpi_mpi_table *t, uintptr_t comm, int32_t source, int32_t tag,
					 int *found, uintptr_t *message, struct pmpi_mpi_status *out);

// The functions below return MPI's error code and write their results through their last pointers.
int pmpi_mpi_initialized(const struct pmpi_mpi_table *t, int *flag);
int pmpi_mpi_finalized(const struct pmpi_mpi_table *t, int *flag);
int pmpi_mpi_init(const struct pmpi_mpi_table *t, int required, int *provided);
int pmpi_mpi_query_thread(const struct pmpi_mpi_table *t, int *provided);
int pmpi_mpi_finalize(const struct pmpi_mpi_table *t);
int pmpi_mpi_abort(const struct pmpi_mpi_table *t, uintptr_t comm, int code);
int pmpi_mpi_version(const struct pmpi_mpi_table *t, int *major, int *minor);
int pmpi_mpi_error_class(const struct pmpi_mpi_table *t, int code, int *class_);
int pmpi_mpi_error_string(const struct pmpi_mpi_table *t, int code, char *text, int *len);
int pmpi_mpi_rank(const struct pmpi_mpi_table *t, uintptr_t comm, int *rank);
int pmpi_mpi_size(const struct pmpi_mpi_table *t, uintptr_t comm, int *size);
int pmpi_mpi_dup(const struct pmpi_mpi_table *t, uintptr_t comm, uintptr_t *out);
int pmpi_mpi_create_group(const struct pmpi_mpi_table *t, uintptr_t comm, int n,
						  const int32_t *ranks, int tag, uintptr_t *out);
int pmpi_mpi_create_from_group(const struct pmpi_mpi_table *t, uintptr_t comm, int n,
							   const int32_t *ranks, const char *tag, uintptr_t *out);
int pmpi_mpi_has_create_from_group(const struct pmpi_mpi_table *t);
int pmpi_mpi_split_shared(const struct pmpi_mpi_table *t, uintptr_t comm, uintptr_t *out);
int pmpi_mpi_free_comm(const struct pmpi_mpi_table *t, uintptr_t comm);

// The room for a port: MPI_MAX_PORT_NAME is at most 1024 in the known ABIs.
enum { PMPI_PORT = 4096 };

// Processes that are not in MPI_COMM_WORLD. argv has the command and its arguments, and NULL after
// them. folder, in which the processes start, may be NULL.
int pmpi_mpi_spawn(const struct pmpi_mpi_table *t, char **argv, int n, const char *folder,
				   uintptr_t comm, uintptr_t *out);
// pmpi_mpi_parent gives MPI_COMM_NULL to a process that was not spawned.
int pmpi_mpi_parent(const struct pmpi_mpi_table *t, uintptr_t *out);
// port has room for PMPI_PORT bytes.
int pmpi_mpi_open_port(const struct pmpi_mpi_table *t, char *port);
int pmpi_mpi_close_port(const struct pmpi_mpi_table *t, const char *port);
// pmpi_mpi_meet makes an intercommunicator with another job, which accepts at the port, or connects
// to it. Rank 0's port counts.
int pmpi_mpi_meet(const struct pmpi_mpi_table *t, const char *port, int accepts, uintptr_t comm,
				  uintptr_t *out);
int pmpi_mpi_merge(const struct pmpi_mpi_table *t, uintptr_t inter, int high, uintptr_t *out);
int pmpi_mpi_disconnect(const struct pmpi_mpi_table *t, uintptr_t comm);

// pmpi_mpi_own_errhandler makes pmpi_mpi_errors_return set an error handler of this library, which
// does nothing, instead of MPI_ERRORS_RETURN.
int pmpi_mpi_own_errhandler(struct pmpi_mpi_table *t);
int pmpi_mpi_errors_return(const struct pmpi_mpi_table *t, uintptr_t comm);
// pmpi_mpi_attribute reads a predefined attribute of type int. *flag is 0 if it is not set.
int pmpi_mpi_attribute(const struct pmpi_mpi_table *t, uintptr_t comm, int keyval, int *flag,
					   int *value);
// pmpi_mpi_bytes makes a committed datatype of n bytes, from blocks whose lengths fit into an int.
int pmpi_mpi_bytes(const struct pmpi_mpi_table *t, int64_t n, uintptr_t *out);
int pmpi_mpi_free_type(const struct pmpi_mpi_table *t, uintptr_t type);

// Files. pmpi_mpi_lacks_files returns the name of a function that this MPI lacks; NULL if it has
// all. The others must not be called if it lacks one.
const char *pmpi_mpi_lacks_files(const struct pmpi_mpi_table *t);
// hints has n keys, each followed by its value.
int pmpi_mpi_file_open(const struct pmpi_mpi_table *t, uintptr_t comm, const char *path, int mode,
					   char **hints, int n, uintptr_t *out);
// Both move at most 2^30 bytes and tell how many they have moved.
int pmpi_mpi_file_write(const struct pmpi_mpi_table *t, uintptr_t file, int64_t at, uintptr_t data,
						int64_t bytes, int64_t *moved);
int pmpi_mpi_file_read(const struct pmpi_mpi_table *t, uintptr_t file, int64_t at, uintptr_t data,
					   int64_t bytes, int64_t *moved);
int pmpi_mpi_file_sync(const struct pmpi_mpi_table *t, uintptr_t file);
int pmpi_mpi_file_close(const struct pmpi_mpi_table *t, uintptr_t file);

// The user ops: MIN and MAX that propagate NaN.
enum {
	PMPI_USER_MIN_FLOAT,
	PMPI_USER_MAX_FLOAT,
	PMPI_USER_MIN_DOUBLE,
	PMPI_USER_MAX_DOUBLE,
	PMPI_USER_OPS
};
int pmpi_mpi_create_op(const struct pmpi_mpi_table *t, int which, uintptr_t *out);
int pmpi_mpi_free_op(const struct pmpi_mpi_table *t, uintptr_t op);

// pmpi_mpi_set_finalize_hook sets the function that the attribute's callback calls, or NULL for
// none.
void pmpi_mpi_set_finalize_hook(void (*hook)(void));
int pmpi_mpi_has_finalize_hook(void);
// pmpi_mpi_on_finalize sets the attribute whose deletion calls the hook on comm (MPI_COMM_SELF).
int pmpi_mpi_on_finalize(const struct pmpi_mpi_table *t, uintptr_t comm);

// Calls of MPI_Get_library_version, MPI_Initialized (or another function that writes a flag), and
// MPI_Abi_get_version, through their symbols. They work before MPI_Init.
int pmpi_mpi_library_version(void *symbol, char *text, int *len);
int pmpi_mpi_flag(void *symbol, int *flag);
int pmpi_mpi_abi_version(void *symbol, int *major, int *minor);

// Calls of MPIX_Query_cuda_support, and of MPIX_GPU_query_support for CUDA.
int pmpi_mpi_query_cuda(void *symbol);
int pmpi_mpi_query_gpu(void *symbol, int *flag);
// pmpi_mpi_memory_kinds copies the info key mpi_memory_alloc_kinds of a communicator to value and
// returns 1. It returns 0 if the key is not set.
int pmpi_mpi_memory_kinds(void *comm_get_info, void *info_get_string, void *info_free,
						  uintptr_t comm, char *value, int size);

// pmpi_mpi_signals_on_stack gives SA_ONSTACK to every signal handler that lacks it, as a process
// with a Go runtime requires. It returns the number of handlers that it has changed.
int pmpi_mpi_signals_on_stack(void);

#endif

// The functions of libmpi, found at run time, and the constants of its ABI.
//
// Every handle is pointer-sized here. In the MPICH ABI handles are 4-byte integers. Such a handle
// has the same low half when it is passed in a register. When MPI writes one, it writes to a zeroed
// 8-byte variable, which x86-64 and aarch64 (both little-endian) read back unchanged.
#ifndef PMPI_MPI_TABLE_H
#define PMPI_MPI_TABLE_H

#include <stdint.h>

typedef uintptr_t handle;  // of a communicator, datatype, op, message, request ...
typedef intptr_t mpi_aint; // MPI_Aint
typedef int64_t mpi_count; // MPI_Count, 8 bytes in every known ABI; so is MPI_Offset

typedef int comm_copy_fn(handle comm, int keyval, void *extra, void *in, void *out, int *flag);
typedef int comm_delete_fn(handle comm, int keyval, void *value, void *extra);
typedef void error_fn(handle *comm, int *code, ...);
typedef void user_fn(void *in, void *inout, int *len, handle *type);

// clang-format off
#define COLLECTIVES(X)                                                                             \
	X(Barrier, (handle comm), (handle comm, handle *request))                                      \
	X(Bcast, (void *buf, int n, handle type, int root, handle comm),                               \
	  (void *buf, int n, handle type, int root, handle comm, handle *request))                     \
	X(Allreduce, (const void *send, void *recv, int n, handle type, handle op, handle comm),       \
	  (const void *send, void *recv, int n, handle type, handle op, handle comm, handle *request)) \
	X(Reduce, (const void *send, void *recv, int n, handle type, handle op, int root, handle comm), \
	  (const void *send, void *recv, int n, handle type, handle op, int root, handle comm,         \
	   handle *request))                                                                           \
	X(Allgather, (const void *send, int sn, handle st, void *recv, int rn, handle rt, handle comm), \
	  (const void *send, int sn, handle st, void *recv, int rn, handle rt, handle comm,            \
	   handle *request))                                                                           \
	X(Allgatherv,                                                                                  \
	  (const void *send, int sn, handle st, void *recv, const int *rn, const int *rd, handle rt,   \
	   handle comm),                                                                               \
	  (const void *send, int sn, handle st, void *recv, const int *rn, const int *rd, handle rt,   \
	   handle comm, handle *request))                                                              \
	X(Gather,                                                                                      \
	  (const void *send, int sn, handle st, void *recv, int rn, handle rt, int root, handle comm), \
	  (const void *send, int sn, handle st, void *recv, int rn, handle rt, int root, handle comm,  \
	   handle *request))                                                                           \
	X(Gatherv,                                                                                     \
	  (const void *send, int sn, handle st, void *recv, const int *rn, const int *rd, handle rt,   \
	   int root, handle comm),                                                                     \
	  (const void *send, int sn, handle st, void *recv, const int *rn, const int *rd, handle rt,   \
	   int root, handle comm, handle *request))                                                    \
	X(Scatter,                                                                                     \
	  (const void *send, int sn, handle st, void *recv, int rn, handle rt, int root, handle comm), \
	  (const void *send, int sn, handle st, void *recv, int rn, handle rt, int root, handle comm,  \
	   handle *request))                                                                           \
	X(Scatterv,                                                                                    \
	  (const void *send, const int *sn, const int *sd, handle st, void *recv, int rn, handle rt,   \
	   int root, handle comm),                                                                     \
	  (const void *send, const int *sn, const int *sd, handle st, void *recv, int rn, handle rt,   \
	   int root, handle comm, handle *request))                                                    \
	X(Reduce_scatter,                                                                              \
	  (const void *send, void *recv, const int *rn, handle type, handle op, handle comm),          \
	  (const void *send, void *recv, const int *rn, handle type, handle op, handle comm,           \
	   handle *request))                                                                           \
	X(Reduce_scatter_block,                                                                        \
	  (const void *send, void *recv, int rn, handle type, handle op, handle comm),                 \
	  (const void *send, void *recv, int rn, handle type, handle op, handle comm, handle *request)) \
	X(Alltoall, (const void *send, int sn, handle st, void *recv, int rn, handle rt, handle comm), \
	  (const void *send, int sn, handle st, void *recv, int rn, handle rt, handle comm,            \
	   handle *request))                                                                           \
	X(Alltoallv,                                                                                   \
	  (const void *send, const int *sn, const int *sd, handle st, void *recv, const int *rn,       \
	   const int *rd, handle rt, handle comm),                                                     \
	  (const void *send, const int *sn, const int *sd, handle st, void *recv, const int *rn,       \
	   const int *rd, handle rt, handle comm, handle *request))                                    \
	X(Scan, (const void *send, void *recv, int n, handle type, handle op, handle comm),            \
	  (const void *send, void *recv, int n, handle type, handle op, handle comm, handle *request)) \
	X(Exscan, (const void *send, void *recv, int n, handle type, handle op, handle comm),          \
	  (const void *send, void *recv, int n, handle type, handle op, handle comm, handle *request))

#define OTHERS(X)                                                                                 \
	X(Send, (const void *buf, int n, handle type, int dest, int tag, handle comm))                \
	X(Isend, (const void *buf, int n, handle type, int dest, int tag, handle comm, handle *request)) \
	X(Recv, (void *buf, int n, handle type, int source, int tag, handle comm, void *status))      \
	X(Irecv, (void *buf, int n, handle type, int source, int tag, handle comm, handle *request))  \
	X(Mrecv, (void *buf, int n, handle type, handle *message, void *status))                      \
	X(Imrecv, (void *buf, int n, handle type, handle *message, handle *request))                  \
	X(Improbe, (int source, int tag, handle comm, int *flag, handle *message, void *status))      \
	X(Iprobe, (int source, int tag, handle comm, int *flag, void *status))                        \
	X(Test, (handle *request, int *flag, void *status))                                           \
	X(Testsome, (int n, void *requests, int *count, int *indices, void *statuses))                \
	X(Cancel, (handle *request))                                                                  \
	X(Test_cancelled, (const void *status, int *flag))                                            \
	X(Get_elements_x, (const void *status, handle type, mpi_count *n))                            \
	X(Init_thread, (int *argc, void *argv, int required, int *provided))                          \
	X(Initialized, (int *flag))                                                                   \
	X(Finalized, (int *flag))                                                                     \
	X(Query_thread, (int *provided))                                                              \
	X(Finalize, (void))                                                                           \
	X(Abort, (handle comm, int code))                                                             \
	X(Get_version, (int *version, int *subversion))                                               \
	X(Error_class, (int code, int *class))                                                        \
	X(Error_string, (int code, char *text, int *len))                                             \
	X(Comm_rank, (handle comm, int *rank))                                                        \
	X(Comm_size, (handle comm, int *size))                                                        \
	X(Comm_group, (handle comm, handle *group))                                                   \
	X(Group_incl, (handle group, int n, const int *ranks, handle *newgroup))                      \
	X(Group_free, (handle *group))                                                                \
	X(Comm_create_group, (handle comm, handle group, int tag, handle *newcomm))                   \
	X(Comm_dup, (handle comm, handle *newcomm))                                                   \
	X(Comm_idup, (handle comm, handle *newcomm, handle *request))                                 \
	X(Comm_split_type, (handle comm, int type, int key, handle info, handle *newcomm))            \
	X(Comm_free, (handle *comm))                                                                  \
	X(Comm_disconnect, (handle *comm))                                                            \
	X(Comm_spawn, (const char *command, char **argv, int n, handle info, int root, handle comm,   \
	  handle *inter, int *codes))                                                                 \
	X(Comm_get_parent, (handle *inter))                                                           \
	X(Open_port, (handle info, char *port))                                                       \
	X(Close_port, (const char *port))                                                             \
	X(Comm_accept, (const char *port, handle info, int root, handle comm, handle *inter))         \
	X(Comm_connect, (const char *port, handle info, int root, handle comm, handle *inter))        \
	X(Intercomm_merge, (handle inter, int high, handle *intra))                                   \
	X(Info_create, (handle *info))                                                                \
	X(Info_set, (handle info, const char *key, const char *value))                                \
	X(Info_free, (handle *info))                                                                  \
	X(Comm_set_errhandler, (handle comm, handle errhandler))                                      \
	X(Comm_create_errhandler, (error_fn *fn, handle *errhandler))                                 \
	X(Comm_get_attr, (handle comm, int keyval, void *value, int *flag))                           \
	X(Comm_set_attr, (handle comm, int keyval, void *value))                                      \
	X(Comm_create_keyval, (comm_copy_fn *copy, comm_delete_fn *del, int *keyval, void *extra))    \
	X(Comm_free_keyval, (int *keyval))                                                            \
	X(Op_create, (user_fn *fn, int commute, handle *op))                                          \
	X(Op_free, (handle *op))                                                                      \
	X(Type_create_hindexed,                                                                       \
	  (int n, const int *lengths, const mpi_aint *displacements, handle old, handle *newtype))    \
	X(Type_commit, (handle *type))                                                                \
	X(Type_free, (handle *type))

// An MPI may be built without MPI-IO. Without one of these functions it opens no files.
#define OPTIONAL(X)                                                                               \
	X(File_open, (handle comm, const char *path, int mode, handle info, handle *file))            \
	X(File_write_at,                                                                              \
	  (handle file, mpi_count at, const void *buf, int n, handle type, void *status))             \
	X(File_read_at, (handle file, mpi_count at, void *buf, int n, handle type, void *status))     \
	X(File_sync, (handle file))                                                                   \
	X(File_close, (handle *file))

// What MPI-4 has. An older MPI may lack it.
#define NEWER(X)                                                                                  \
	X(Comm_create_from_group,                                                                     \
	  (handle group, const char *tag, handle info, handle errhandler, handle *newcomm))
// clang-format on

#define FIELDS(name, blocking, nonblocking)                                                        \
	int(*name) blocking;                                                                           \
	int(*I##name) nonblocking;
#define FIELD(name, args) int(*name) args;

// The function pointers are adjacent and in the order of the names that pmpi_mpi_function_name
// returns, so that a loop can fill them in.
struct pmpi_mpi_functions {
	COLLECTIVES(FIELDS)
	OTHERS(FIELD)
	OPTIONAL(FIELD)
	NEWER(FIELD)
};

// Room for MPI_Status of any MPI: 20, 24 or 32 bytes in the known ABIs.
typedef union {
	char bytes[64];
	int64_t align;
} raw_status;

struct pmpi_mpi_table {
	struct pmpi_mpi_functions f;
	struct pmpi_mpi_constants k;
};

#endif

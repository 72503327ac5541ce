// An MPI that takes CUDA memory, made of an MPI that does not. This library is linked with the real
// libmpi and wraps its functions; PADDLEMPI_MPI names it. It opens the guards of the fake driver
// for the length of each call, so that the real MPI can read and write the memory.
//
// MPI knows no streams, so every call first checks what the caller must ensure. No operation that
// is queued on a stream may still write the send buffer, or read or write the receive buffer. The
// check looks at the first byte of a buffer.
//
// With PMPI_INTERPOSED=closed it claims to take CUDA memory, but does not open the guards.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

typedef uintptr_t word; // an argument of any type: all types fit a register

static atomic_int device_calls, violations;
static _Atomic(const char *) violated;

static struct {
	int (*attribute)(void *value, int which, word pointer);
	int (*pending_writes)(word pointer, size_t bytes);
	int (*pending_reads)(word pointer, size_t bytes);
	void (*open_guard)(void);
	void (*close_guard)(void);
} fake;
static atomic_int found;

// A single copy reads the memory of another process, in which the guards are closed.
__attribute__((constructor)) static void without_single_copy(void) {
	setenv("OMPI_MCA_btl_sm_single_copy_mechanism", "none", 0);
	setenv("OMPI_MCA_btl_vader_single_copy_mechanism", "none", 0);
	setenv("MPIR_CVAR_CH4_CMA_ENABLE", "0", 0);
	setenv("UCX_TLS", "^cma", 0);
}

// find returns whether this process has loaded the fake driver, and finds its functions.
static int find(void) {
	const char *path = getenv("PADDLEMPI_CUDA");
	void *driver = path ? dlopen(path, RTLD_NOW | RTLD_NOLOAD) : NULL;
	if (!driver)
		return 0;
	fake.attribute = dlsym(driver, "cuPointerGetAttribute");
	fake.pending_writes = dlsym(driver, "fakecuda_pending_writes");
	fake.pending_reads = dlsym(driver, "fakecuda_pending_reads");
	fake.open_guard = dlsym(driver, "fakecuda_open_guard");
	fake.close_guard = dlsym(driver, "fakecuda_close_guard");
	return fake.close_guard != NULL;
}

static int on_device(word pointer) {
	enum { MEMORY_TYPE = 2, DEVICE = 2 };
	unsigned type = 0;
	return fake.attribute(&type, MEMORY_TYPE, pointer) == 0 && type == DEVICE;
}

// begin counts and checks a call. It returns whether it opened the guards.
static int begin(const char *name, word sent, word received) {
	if (!found && !(found = find()))
		return 0;
	int late = 0, device = 0;
	if (sent && on_device(sent)) {
		device = 1;
		late |= fake.pending_writes(sent, 1);
	}
	if (received && on_device(received)) {
		device = 1;
		late |= fake.pending_writes(received, 1) | fake.pending_reads(received, 1);
	}
	device_calls += device;
	if (late) {
		violations++;
		violated = name;
	}
	const char *mode = getenv("PMPI_INTERPOSED");
	if (!device_calls || (mode && !strcmp(mode, "closed")))
		return 0;
	fake.open_guard();
	return 1;
}

// The number of calls that were given device memory.
EXPORT int interposed_device_calls(void) {
	return device_calls;
}

// The number of calls that came too early. interposed_violation names the function of the last one.
EXPORT int interposed_violations(void) {
	return violations;
}

EXPORT const char *interposed_violation(void) {
	return violated;
}

EXPORT int MPIX_Query_cuda_support(void) {
	return 1;
}

// The function of MPICH for the same question.
EXPORT int MPIX_GPU_query_support(int type, int *supported) {
	*supported = type == 0; // MPIX_GPU_SUPPORT_CUDA
	return 0;
}

// WRAP(function, send buffer, receive buffer). The wrapper passes on more arguments than the
// function has, and the function ignores them.
#define PARAMETERS                                                                                 \
	word a, word b, word c, word d, word e, word f, word g, word h, word i, word j, word k, word l
#define WRAP(name, sent, received)                                                                 \
	int P##name(PARAMETERS);                                                                       \
	EXPORT int name(PARAMETERS) {                                                                  \
		int opened = begin(#name, sent, received);                                                 \
		int rc = P##name(a, b, c, d, e, f, g, h, i, j, k, l);                                      \
		if (opened)                                                                                \
			fake.close_guard();                                                                    \
		return rc;                                                                                 \
	}
#define BOTH(blocking, nonblocking, sent, received)                                                \
	WRAP(MPI_##blocking, sent, received)                                                           \
	WRAP(MPI_##nonblocking, sent, received)

BOTH(Barrier, Ibarrier, 0, 0)
BOTH(Bcast, Ibcast, a, 0)
BOTH(Allreduce, Iallreduce, a, b)
BOTH(Reduce, Ireduce, a, b)
BOTH(Reduce_scatter, Ireduce_scatter, a, b)
BOTH(Reduce_scatter_block, Ireduce_scatter_block, a, b)
BOTH(Scan, Iscan, a, b)
BOTH(Exscan, Iexscan, a, b)
BOTH(Allgather, Iallgather, a, d)
BOTH(Allgatherv, Iallgatherv, a, d)
BOTH(Gather, Igather, a, d)
BOTH(Gatherv, Igatherv, a, d)
BOTH(Scatter, Iscatter, a, d)
BOTH(Alltoall, Ialltoall, a, d)
BOTH(Scatterv, Iscatterv, a, e)
BOTH(Alltoallv, Ialltoallv, a, e)
BOTH(Alltoallw, Ialltoallw, a, e)
BOTH(Send, Isend, a, 0)
BOTH(Recv, Irecv, 0, a)
BOTH(Mrecv, Imrecv, 0, a)
WRAP(MPI_Sendrecv, a, f)

// Calls that may move the data of operations that were begun before.
BOTH(Probe, Iprobe, 0, 0)
BOTH(Mprobe, Improbe, 0, 0)
BOTH(Test, Wait, 0, 0)
BOTH(Testall, Waitall, 0, 0)
BOTH(Testany, Waitany, 0, 0)
BOTH(Testsome, Waitsome, 0, 0)
WRAP(MPI_Cancel, 0, 0)
WRAP(MPI_Request_free, 0, 0)
WRAP(MPI_Comm_dup, 0, 0)
WRAP(MPI_Comm_split, 0, 0)
WRAP(MPI_Comm_split_type, 0, 0)
WRAP(MPI_Comm_create_group, 0, 0)
WRAP(MPI_Comm_free, 0, 0)
WRAP(MPI_Finalize, 0, 0)

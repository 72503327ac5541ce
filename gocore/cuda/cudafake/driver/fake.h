// A CUDA driver without a GPU: the driver API of libcuda.so.1, as far as this
// project calls it, on host memory and threads. It is made to find mistakes, not
// to be fast:
//
//   - Device memory is mapped twice. The address that callers see is guarded
//     (PROT_NONE), so a host access crashes; the driver uses the other mapping.
//     The guards of a device are open while a kernel runs there: what other
//     threads touch in that moment goes unnoticed.
//   - A stream's operations run late, on threads, after random delays; streams
//     keep no order among each other but what events and the legacy stream ask for.
//   - Freed addresses are used again at once by allocations of the same size.
//   - IPC handles and IPC events work across the processes of one machine.
//   - Kernels are those of PTX text, run by C functions of the same names
//     (kernel_host.h).
//
// Set by the environment, read when the library is loaded (CUDA_VISIBLE_DEVICES: in cuInit):
//
//   PMPI_FAKECUDA_DEVICES   number of devices, 2
//   PMPI_FAKECUDA_MEMORY    bytes of each device, for this process alone; 16 GiB
//   PMPI_FAKECUDA_PINNED    bytes of pinned memory that a process gets; no limit
//   PMPI_FAKECUDA_PEER      0: no device can access another one
//   PMPI_FAKECUDA_IPC       0: handles are refused, as a container may do
//   PMPI_FAKECUDA_SEED      of the delays and of the order of streams; random
//   PMPI_FAKECUDA_DELAY     longest delay before an operation in microseconds, 300
//   PMPI_FAKECUDA_VERSION   what cuDriverGetVersion says, 12040
//   PMPI_FAKECUDA_FAIL      name:N:error,...: the Nth call (* each) of a function returns error
//
// For tests there are functions fakecuda_*, declared below.
#ifndef FAKECUDA_H
#define FAKECUDA_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))

typedef int CUresult;
typedef int CUdevice;
typedef uintptr_t CUdeviceptr;
typedef uintptr_t CUstream; // 0 and 1 legacy, 2 of the thread, else a struct stream

enum {
	CUDA_SUCCESS = 0,
	CUDA_ERROR_INVALID_VALUE = 1,
	CUDA_ERROR_OUT_OF_MEMORY = 2,
	CUDA_ERROR_NOT_INITIALIZED = 3,
	CUDA_ERROR_NO_DEVICE = 100,
	CUDA_ERROR_INVALID_DEVICE = 101,
	CUDA_ERROR_INVALID_CONTEXT = 201,
	CUDA_ERROR_MAP_FAILED = 205,
	CUDA_ERROR_PEER_ACCESS_UNSUPPORTED = 217,
	CUDA_ERROR_INVALID_PTX = 218,
	CUDA_ERROR_UNSUPPORTED_PTX_VERSION = 222,
	CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND = 302,
	CUDA_ERROR_OPERATING_SYSTEM = 304,
	CUDA_ERROR_INVALID_HANDLE = 400,
	CUDA_ERROR_NOT_FOUND = 500,
	CUDA_ERROR_NOT_READY = 600,
	CUDA_ERROR_ILLEGAL_ADDRESS = 700,
	CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED = 704,
	CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED = 712,
	CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED = 713,
	CUDA_ERROR_LAUNCH_FAILED = 719,
	CUDA_ERROR_NOT_SUPPORTED = 801,
	CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900,
};

enum { STREAM_LEGACY = 1, STREAM_PER_THREAD = 2 };
enum { STREAM_NON_BLOCKING = 1 };
enum { EVENT_DISABLE_TIMING = 2, EVENT_INTERPROCESS = 4 };

enum { MAX_DEVICES = 16 };

struct context { // the primary one of a device; its handle is its address
	int device;
	int physical; // before CUDA_VISIBLE_DEVICES
	int refs;
	CUresult error; // what a kernel left: every later call returns it
	unsigned peers; // devices that kernels may access, as bits
	size_t used;    // bytes allocated
	struct stream *legacy;
};

struct stream {
	struct context *ctx;
	bool blocking; // ordered with the legacy stream
	bool busy;     // a worker executes its head
	bool held;     // by fakecuda_hold
	bool capturing;
	bool destroyed;
	int priority;
	uint64_t queued, done; // numbers of its last and of its last executed operation
	struct op *head, **tail;
	struct stream *next;
};

// The page that the processes of an IPC event share: the number of its last
// record, and which records were reached.
struct shared {
	_Atomic uint64_t recorded;
	_Atomic uint64_t reached[511];
};

// What must have happened first: an operation of a stream, or a record of an IPC event.
struct point {
	struct stream *stream;
	struct shared *shared;
	uint64_t number;
};

struct event {
	struct context *ctx;
	unsigned flags;
	struct point last;     // its last record
	double time;           // of its last record that was reached, in ms
	struct shared *shared; // of an IPC event
	int fd, owner;         // of that; the process that made it
	uint64_t nonce;
	int recording; // how many records are queued
	bool destroyed;
	struct event *next;
};

enum op_kind { OP_ORDER, OP_COPY, OP_SET, OP_RECORD, OP_KERNEL, OP_FREE, OP_FAULT };

struct op {
	enum op_kind kind;
	uint64_t number;
	struct point *after;
	int n_after;
	CUdeviceptr dst, src; // as the caller named them
	size_t bytes;
	char *to, *from; // where the driver accesses them
	void *staged;    // copy of pageable memory
	int value;       // of a memset; error of a fault
	struct event *event;
	uint64_t record; // of an IPC event
	struct launch *launch;
	struct op *next;
};

enum memory_kind {
	MEMORY_PLAIN,
	MEMORY_POOL,
	MEMORY_OPENED,
	MEMORY_PINNED,
	MEMORY_REGISTERED,
	MEMORY_MANAGED
};

struct memory {
	enum memory_kind kind;
	char *base, *alias; // alias is NULL for host memory
	size_t size, mapped;
	struct context *ctx; // that allocated or opened it
	int device;          // that it lies on
	uint64_t id, nonce;
	int fd, owner; // owner: the process
	int opened;    // how many times by IPC
	struct memory *next;
};

// driver.c
extern pthread_mutex_t lock; // over everything
extern struct context contexts[MAX_DEVICES];
extern int n_devices;
struct call {
	const char *name;
	uint64_t n;
	struct call *next;
};
enum need { NOTHING, INIT, CONTEXT };
CUresult enter(struct call *call, enum need need);
// ENTER counts the call of the function that it stands in, and leaves that when it must fail.
#define ENTER(need)                                                                                \
	do {                                                                                           \
		static struct call call = {__func__, 0, NULL};                                             \
		CUresult refused = enter(&call, need);                                                     \
		if (refused)                                                                               \
			return refused;                                                                        \
	} while (0)
struct context *current(void);
long long setting(const char *name, long long otherwise);

// memory.c; the lock is held
struct memory *memory_at(CUdeviceptr p);
// Where the driver accesses n bytes at p, NULL where no device memory is allocated; host memory as
// it is.
char *memory_access(CUdeviceptr p, size_t n, bool *pageable);
struct memory *memory_map(enum memory_kind kind, size_t size, int fd, int device);
// What the context has opened of another process; NULL for nothing.
struct memory *memory_of_nonce(uint64_t nonce, const struct context *ctx);
void memory_release(struct memory *m);
void guard(unsigned devices, int delta);
int new_memfd(size_t size, uint64_t *nonce);

// stream.c; the lock is held
uint64_t random_below(uint64_t n);
struct stream *stream_of(CUstream handle);
struct op *op_new(enum op_kind kind);
void submit(struct stream *s, struct op *op);
void await(struct point p);
void await_context(struct context *ctx);
bool reached(struct point p);
struct event *event_new(unsigned flags);
struct event *event_of(struct event *handle); // NULL unless it exists

// launch.c
void run_kernel(struct launch *launch); // once, with the guards open

// For tests. A stream is named as in the driver's calls.
uint64_t fakecuda_calls(const char *name);      // how often a function was called
int fakecuda_fail(const char *rules);           // as PMPI_FAKECUDA_FAIL, from now on; "" for none
int fakecuda_hold(CUstream stream, int hold);   // keeps its operations from running
int fakecuda_capture(CUstream stream, int on);  // says that it is being captured
int fakecuda_fault(CUstream stream, int error); // queues a kernel that leaves this error
int fakecuda_pending(void);                     // number of operations that did not end
// Queued copies and memsets that write, or read, some of these bytes.
int fakecuda_pending_writes(CUdeviceptr p, size_t bytes);
int fakecuda_pending_reads(CUdeviceptr p, size_t bytes);
// Between the two the host may touch device memory; they nest.
void fakecuda_open_guard(void);
void fakecuda_close_guard(void);

#endif

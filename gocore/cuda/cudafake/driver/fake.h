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
typedef struct context *CUcontext;
typedef struct event *CUevent;
typedef uintptr_t CUstream; // 0 and 1 legacy, 2 of the thread, else a struct stream

// CUresult, as far as it is used: number, name, text.
#define RESULTS(X)                                                                                 \
	X(0, SUCCESS, "no error")                                                                      \
	X(1, ERROR_INVALID_VALUE, "invalid argument")                                                  \
	X(2, ERROR_OUT_OF_MEMORY, "out of memory")                                                     \
	X(3, ERROR_NOT_INITIALIZED, "initialization error")                                            \
	X(100, ERROR_NO_DEVICE, "no CUDA-capable device is detected")                                  \
	X(101, ERROR_INVALID_DEVICE, "invalid device ordinal")                                         \
	X(201, ERROR_INVALID_CONTEXT, "invalid device context")                                        \
	X(205, ERROR_MAP_FAILED, "mapping of buffer object failed")                                    \
	X(217, ERROR_PEER_ACCESS_UNSUPPORTED, "peer access is not supported between these devices")    \
	X(218, ERROR_INVALID_PTX, "a PTX JIT compilation failed")                                      \
	X(222, ERROR_UNSUPPORTED_PTX_VERSION, "the PTX was compiled with an unsupported toolchain")    \
	X(302, ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND, "shared object symbol not found")                 \
	X(304, ERROR_OPERATING_SYSTEM, "OS call failed or operation not supported on this OS")         \
	X(400, ERROR_INVALID_HANDLE, "invalid resource handle")                                        \
	X(500, ERROR_NOT_FOUND, "named symbol not found")                                              \
	X(600, ERROR_NOT_READY, "device not ready")                                                    \
	X(700, ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered")                      \
	X(704, ERROR_PEER_ACCESS_ALREADY_ENABLED, "peer access is already enabled")                    \
	X(712, ERROR_HOST_MEMORY_ALREADY_REGISTERED, "the memory is already mapped")                   \
	X(713, ERROR_HOST_MEMORY_NOT_REGISTERED, "no registered memory region")                        \
	X(719, ERROR_LAUNCH_FAILED, "unspecified launch failure")                                      \
	X(801, ERROR_NOT_SUPPORTED, "operation not supported")                                         \
	X(900, ERROR_STREAM_CAPTURE_UNSUPPORTED, "not permitted when stream is capturing")
#define RESULT(number, name, text) CUDA_##name = number,
enum { RESULTS(RESULT) };

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
	CUcontext ctx;
	bool blocking; // ordered with the legacy stream
	bool busy;     // a worker executes its head
	bool held;     // by fakecuda_hold
	bool capturing;
	bool destroyed;
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
	CUcontext ctx;
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
	CUevent event;
	struct memory *memory; // to free
	uint64_t record;       // of an IPC event
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
	CUcontext ctx; // that allocated or opened it
	int device;    // that it lies on
	uint64_t id, nonce;
	int fd;
	int opened; // how many times by IPC
	bool freed; // by cuMemFreeAsync, which its stream has not come to
	struct memory *next;
};

// Every function of the driver holds the lock, from its ENTER to its return. What waits lets go
// of it meanwhile.
extern pthread_mutex_t lock;

struct call {
	const char *name;
	uint64_t n;
	struct call *next;
};

// Counts a call and takes the lock, or says why the call fails at once.
enum need { NOTHING, INIT, CONTEXT };
CUresult enter(struct call *call, enum need need);
void leave(const int *unused);

#define ENTER(need)                                                                                \
	static struct call call_ = {__func__, 0, NULL};                                                \
	const CUresult refused_ = enter(&call_, need);                                                 \
	if (refused_)                                                                                  \
		return refused_;                                                                           \
	__attribute__((cleanup(leave), unused)) const int locked_ = 1

// driver.c
extern struct context contexts[MAX_DEVICES];
extern int n_devices;
CUcontext current(void); // the calling thread's
long long setting(const char *name, long long otherwise);

// memory.c
struct memory *memory_at(CUdeviceptr p);
// Where the driver accesses n bytes at p, NULL where no device memory is allocated; host memory as
// it is.
char *memory_access(CUdeviceptr p, size_t n, bool *pageable);
struct memory *memory_map(enum memory_kind kind, size_t size, int fd, uint64_t nonce, int device);
// What the context has opened of another process; NULL for nothing.
struct memory *memory_opened(uint64_t nonce, CUcontext ctx);
void memory_release(struct memory *m);
void guard(unsigned devices, int delta); // 1 opens those of the devices, -1 closes them
int new_memfd(size_t size, uint64_t *nonce);

// stream.c
struct stream *stream_of(CUstream handle);
struct op *op_new(enum op_kind kind);
void submit(struct stream *s, struct op *op);
void await(struct point p);
void await_context(CUcontext ctx); // what is queued now
CUevent event_new(unsigned flags);
CUevent event_of(CUevent handle); // NULL unless it exists

// launch.c
void run_kernel(struct launch *launch); // without the lock

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

// A CUDA driver without a GPU: the functions of libcuda.so.1 that this project calls, on host
// memory and threads. Its purpose is to find mistakes, not to be fast:
//
//   - Device memory is mapped twice. The address that callers get is guarded
//     (PROT_NONE), so an access by the host crashes. The driver uses the other
//     mapping. While a kernel runs, the guards of its device are open, and
//     accesses of other threads are not noticed.
//   - The operations of a stream run late, on threads, after random delays. Only
//     events and the legacy stream order operations of different streams.
//   - An allocation uses the address of a freed one of the same size at once.
//   - IPC handles and IPC events work between the processes of one machine.
//   - The kernels of a PTX text are run by C functions of the same names
//     (kernel_host.h).
//
// Settings in the environment. PMPI_FAKECUDA_DEVICES and CUDA_VISIBLE_DEVICES are read in cuInit,
// PMPI_FAKECUDA_SEED at the first random choice, PMPI_FAKECUDA_FAIL when the library is loaded, and
// the others whenever they matter.
//
//   PMPI_FAKECUDA_DEVICES   number of devices, 2
//   PMPI_FAKECUDA_MEMORY    bytes of each device, for this process alone; 16 GiB
//   PMPI_FAKECUDA_PINNED    bytes of pinned memory for a process; no limit
//   PMPI_FAKECUDA_PEER      0: no device can access another one
//   PMPI_FAKECUDA_IPC       0: handles are refused, as a container may do
//   PMPI_FAKECUDA_SEED      of the delays and of the order of streams; random
//   PMPI_FAKECUDA_DELAY     longest delay before an operation in microseconds, 300
//   PMPI_FAKECUDA_VERSION   result of cuDriverGetVersion, 12040
//   PMPI_FAKECUDA_FAIL      name:N:error,...: call N (*: every one) of a function returns error
//
// The functions fakecuda_*, declared below, are for tests.
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
typedef uintptr_t CUstream; // 0 and 1: legacy; 2: of the thread; else a struct stream

// The values of CUresult that are used: number, name, text.
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

struct context { // the primary context of a device; its handle is its address
	int device;
	int physical; // the number without CUDA_VISIBLE_DEVICES
	int refs;
	CUresult error; // the error of a kernel; every later call returns it
	unsigned peers; // devices whose memory kernels may access, as bits
	size_t used;    // bytes allocated
	struct stream *legacy;
};

struct stream {
	CUcontext ctx;
	bool blocking; // ordered with the legacy stream
	bool busy;     // a worker executes the first operation
	bool held;     // by fakecuda_hold
	bool capturing;
	bool destroyed;
	uint64_t queued, done; // numbers of the last queued and the last executed operation
	struct op *head, **tail;
	struct stream *next;
};

// The page that the processes of an IPC event share: the number of its last record, and the records
// that were reached.
struct shared {
	_Atomic uint64_t recorded;
	_Atomic uint64_t reached[511];
};

// What must happen first: an operation of a stream, or a record of an IPC event.
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
	int fd, owner;         // of an IPC event: the descriptor, and the process that made it
	uint64_t nonce;
	int recording; // number of records that are queued
	bool destroyed;
	struct event *next;
};

enum op_kind { OP_ORDER, OP_COPY, OP_SET, OP_RECORD, OP_KERNEL, OP_FREE, OP_FAULT };

struct op {
	enum op_kind kind;
	// What it does, without the lock; nothing if its context has a fault. And what is to be done
	// when it has run, with the lock. Both may be NULL.
	void (*run)(struct op *op);
	void (*over)(struct op *op);
	uint64_t number;
	struct point *after;
	int n_after;
	CUdeviceptr dst, src; // as in the call
	size_t bytes;
	char *to, *from; // where the driver accesses them
	void *staged;    // copy of pageable memory
	int value;       // of a memset; the error of a fault
	CUcontext ctx;   // of a fault
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
	CUcontext ctx; // the context that allocated or opened it
	int device;    // the device that has it
	uint64_t id, nonce;
	int fd;
	int opened; // how many times by IPC
	bool freed; // by cuMemFreeAsync, which its stream has not reached
	struct memory *next;
};

// Every function of the driver holds the lock from its ENTER to its return, and releases it while
// it waits.
extern pthread_mutex_t lock;

struct call {
	const char *name;
	uint64_t n;
	struct call *next;
};

// enter counts a call and takes the lock, or returns the error with which the call fails at once.
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
CUcontext current(void); // of the calling thread
long long setting(const char *name, long long otherwise);

// queue.c
extern struct stream *streams; // without destroyed ones that have ended
struct stream *stream_new(CUcontext ctx, bool blocking);
struct stream *stream_of(CUstream handle);
void forget_stream(struct stream *s);
struct op *op_new(enum op_kind kind);
void after(struct op *op, struct point p);
void submit(struct stream *s, struct op *op);
bool reached(struct point p);
struct point end_of(struct stream *s);
void await(struct point p);
void await_context(CUcontext ctx); // waits for what is queued now
void look_again(void);             // wakes whoever waits for a stream

// memory.c
struct memory *memory_at(CUdeviceptr p);
// Returns where the driver accesses n bytes at p, or NULL if p is in the device's address range and
// not allocated. Host memory is returned as it is.
char *memory_access(CUdeviceptr p, size_t n, bool *pageable);
struct memory *memory_map(enum memory_kind kind, size_t size, int fd, uint64_t nonce, int device);
// Returns the memory of another process that the context has opened, or NULL.
struct memory *memory_opened(uint64_t nonce, CUcontext ctx);
void memory_release(struct memory *m);
void guard(unsigned devices, int delta); // 1: opens the guards of the devices, -1: closes them
int new_memfd(size_t size, uint64_t *nonce);

// stream.c
CUevent event_new(unsigned flags);
CUevent event_of(CUevent handle); // NULL if it does not exist

// For tests. A stream is named as in the driver's calls.
uint64_t fakecuda_calls(const char *name); // number of calls of a function
int fakecuda_fail(const char *rules);      // replaces PMPI_FAKECUDA_FAIL from now on; "" for none
int fakecuda_hold(CUstream stream, int hold);   // keeps its operations from running
int fakecuda_capture(CUstream stream, int on);  // makes cuStreamIsCapturing say so
int fakecuda_fault(CUstream stream, int error); // queues a kernel that leaves this error
int fakecuda_pending(void);                     // number of operations that have not ended
// The number of queued copies and memsets that write, or read, some of these bytes.
int fakecuda_pending_writes(CUdeviceptr p, size_t bytes);
int fakecuda_pending_reads(CUdeviceptr p, size_t bytes);
// Between the two calls the host may access device memory. They nest.
void fakecuda_open_guard(void);
void fakecuda_close_guard(void);

#endif

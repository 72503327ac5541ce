// Package mpi is the only room that speaks to libmpi. It finds the library,
// knows the ABI (one file of constants each), and offers the calls the core
// needs through the Library interface, which mpifake implements with N ranks
// as goroutines.
//
// Every handle is pointer-sized, whatever the MPI: a 4-byte handle of the MPICH
// ABI is kept zero-extended. No C type leaves this package.
package mpi

import (
	"time"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/op"
)

// Handles as the MPI at hand represents them.
type (
	Comm     uintptr
	Datatype uintptr
	Op       uintptr
	Message  uintptr
)

// AnySource and AnyTag are our own wildcards; the library translates them.
const (
	AnySource int32 = -1
	AnyTag    int32 = -1
)

// Fn names an MPI function with a blocking and a nonblocking form
// (MPI_Bcast and MPI_Ibcast, ...).
type Fn int32

const (
	FnNone Fn = iota
	FnBarrier
	FnBcast     // buffer in RecvBuf, RecvCount, RecvType
	FnAllreduce // reductions count by RecvCount and RecvType on every rank, also those with RecvBuf nil
	FnReduce
	FnAllgather  // RecvCount, as FnGather's, is that of one rank; so is FnScatter's SendCount
	FnAllgatherv // RecvCounts, RecvDispls
	FnGather
	FnGatherv
	FnScatter
	FnScatterv           // SendCounts, SendDispls
	FnReduceScatter      // RecvCounts
	FnReduceScatterBlock // RecvCount
	FnAlltoall
	FnAlltoallv // SendCounts, SendDispls, RecvCounts, RecvDispls
	FnScan
	FnExscan
	FnSend  // SendBuf, SendCount, SendType, Peer, Tag
	FnRecv  // RecvBuf, RecvCount, RecvType, Peer (or AnySource), Tag (or AnyTag)
	FnMrecv // RecvBuf, RecvCount, RecvType, Message
	FnDup   // MPI_Comm_idup, nonblocking only: the new communicator is the slot's Made
)

// Call is one MPI call: plain data, shared with C as it stands. All pointers
// are to memory outside the Go heap and stay valid until the call (blocking) or
// its Slot (nonblocking) is done.
type Call struct {
	Fn        Fn
	InPlace   bool  // MPI_IN_PLACE instead of SendBuf (for FnScatter on the root: instead of RecvBuf)
	Peer      int32 // root of a rooted collective; destination or source of a message
	Tag       int32
	Comm      Comm
	SendBuf   unsafe.Pointer
	RecvBuf   unsafe.Pointer
	SendCount int64 // elements of SendType; at most MaxCount
	RecvCount int64
	SendType  Datatype
	RecvType  Datatype
	Op        Op
	Message   Message
	// C arrays of int32, one entry a rank, in elements of the type.
	SendCounts, SendDispls, RecvCounts, RecvDispls unsafe.Pointer
}

// MaxCount is the largest count one Call takes. Callers above it use Bytes
// (moves) or chunks (reductions).
const MaxCount = 1<<31 - 1

// Status says what a receive or a probe found.
type Status struct {
	Source int32
	Tag    int32
	Bytes  int64 // length of the message
}

// Slot holds one outstanding nonblocking call. It lives outside the Go heap.
// Fields other than Done are valid once Done is 1.
type Slot struct {
	Request uintptr
	Done    int32
	Err     int32 // MPI error code, 0 on success
	Source  int32
	Tag     int32
	Bytes   int64
	// Cancelled is 1 for a receive that Cancel gave up.
	Cancelled int32
	_         int32
	Made      Comm // what FnDup made
}

// Info describes the library in use.
type Info struct {
	Path        string `json:"path"`         // file that was loaded
	Why         string `json:"why"`          // the reason this one was chosen
	ABI         string `json:"abi"`          // "openmpi", "mpich" or "standard"
	Name        string `json:"name"`         // "Open MPI", "MPICH", "Intel MPI", "MVAPICH"
	Version     string `json:"version"`      // first line of MPI_Get_library_version
	Standard    string `json:"standard"`     // MPI_Get_version, "3.1"
	ThreadLevel string `json:"thread_level"` // "single", "funneled", "serialized", "multiple"
	Owner       string `json:"owner"`        // who initialised it: "paddlempi" or "other" (mpi4py, the application)
}

// Library is an initialised MPI. All methods are safe for concurrent use, as
// MPI_THREAD_MULTIPLE promises. Errors are *status.Error.
type Library interface {
	Info() Info
	// World returns MPI_COMM_WORLD. Only the composition root and topo's callers use it.
	World() Comm
	Rank(Comm) (int, error)
	Size(Comm) (int, error)

	// Run makes the blocking call. st may be nil.
	Run(c *Call, st *Status) error
	// Start makes the nonblocking call; s.Done becomes 1 by Poll when it ends.
	Start(c *Call, s *Slot) error
	// Poll tests the outstanding slots among those given, one C loop for all,
	// and returns how many became done by it. It implements work.Poller; a slot
	// is the address of a Slot. No two calls at once may hold the same slot.
	Poll(slots []uintptr) int
	// NewSlot and FreeSlot manage slots. A slot is freed only when Done.
	NewSlot() *Slot
	FreeSlot(*Slot)
	// Cancel asks that an outstanding FnRecv be given up. The slot still becomes
	// Done by Poll; Cancelled then tells whether the receive was given up
	// (nothing was received) or had already matched a message.
	Cancel(s *Slot) error
	// SlotError turns s.Err into an error naming the function, nil on success.
	SlotError(fn Fn, s *Slot) error

	// Improbe looks for a message without waiting. Peer may be AnySource, tag AnyTag.
	Improbe(c Comm, source, tag int32) (msg Message, st Status, found bool, err error)
	// Iprobe is Improbe without taking the message.
	Iprobe(c Comm, source, tag int32) (st Status, found bool, err error)

	// Byte is MPI_BYTE. Bytes returns a datatype of exactly n bytes, of which a
	// count of 1 moves n > MaxCount bytes; free releases it (after completion).
	Byte() Datatype
	Bytes(n int64) (t Datatype, free func(), err error)
	// TypeOf and OpOf are defined where MPI, or a user op of ours in C, can
	// reduce that dtype with that op: not for 16-bit floats and float8. Bool
	// reduces as bytes with logical meaning. MIN and MAX of floats propagate NaN.
	TypeOf(op.DType) (Datatype, bool)
	OpOf(op.ReduceOp, op.DType) (Op, bool)

	Dup(Comm) (Comm, error)
	// CreateGroup is MPI_Comm_create_group: collective over ranks (of parent, in
	// the order of the new communicator) only.
	CreateGroup(parent Comm, ranks []int32, tag int32) (Comm, error)
	SplitShared(Comm) (Comm, error)
	Free(Comm) error
	TagUB() int32

	// FreeAll releases the user ops and other objects of ours; called at destroy.
	FreeAll()
	// OnFinalize arranges that fn runs inside MPI_Finalize, whoever calls that,
	// before MPI shuts down (an attribute of MPI_COMM_SELF, MPI-4.1 section 11.2.4).
	OnFinalize(fn func()) error
	Finalized() bool
	Finalize() error
	Abort(code int)
}

// Options of Open.
type Options struct {
	Path      string        // explicit library (PADDLEMPI_MPI or init's mpi=); "" to discover
	SysPrefix string        // Python's sys.prefix: where the wheels put their libraries
	Timeout   time.Duration // of init
}

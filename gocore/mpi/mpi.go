// Package mpi is the only package that calls libmpi. It finds the library, knows the ABIs (one file
// of constants each), and offers the calls that the core needs as the interface Library. mpifake
// implements the same interface with N ranks as goroutines.
//
// Every handle is pointer-sized, whatever the MPI: a 4-byte handle of the MPICH ABI is
// zero-extended. No C type leaves this package.
package mpi

import (
	"time"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/transport"
)

// Handles, with the values of the MPI in use.
type (
	Comm     uintptr
	Datatype uintptr
	Op       uintptr
	Message  uintptr
)

// AnySource and AnyTag are the seam's wildcards. The library replaces them by MPI's.
const (
	AnySource = transport.AnySource
	AnyTag    = transport.AnyTag
)

// Fn names an MPI function that has a blocking and a nonblocking form (MPI_Bcast and MPI_Ibcast,
// ...).
type Fn int32

const (
	FnNone Fn = iota
	FnBarrier
	FnBcast     // the buffer is RecvBuf, RecvCount, RecvType
	FnAllreduce // reductions take RecvCount and RecvType on every rank, also if RecvBuf is nil
	FnReduce
	FnAllgather  // RecvCount of FnAllgather and FnGather, and SendCount of FnScatter, are for one rank
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
	FnDup   // MPI_Comm_idup, nonblocking only; the new communicator is Request.Made
)

// Call is one MPI call. It is plain data that Go and C share. All pointers are to memory outside
// the Go heap. They stay valid until a blocking call returns, or the request of a nonblocking one is
// done.
type Call struct {
	Fn        Fn
	InPlace   bool  // MPI_IN_PLACE instead of SendBuf (for FnScatter on the root: instead of RecvBuf)
	Peer      int32 // root of a rooted collective; destination or source of a message
	Tag       int32
	Comm      Comm
	SendBuf   unsafe.Pointer
	RecvBuf   unsafe.Pointer
	SendCount int64 // elements of SendType, at most MaxCount
	RecvCount int64
	SendType  Datatype
	RecvType  Datatype
	Op        Op
	Message   Message
	// C arrays of int32, one entry for each rank, in elements of the type.
	SendCounts, SendDispls, RecvCounts, RecvDispls unsafe.Pointer
}

// MaxCount is the largest count in one Call. For more, callers use Bytes (to move data) or several
// calls (to reduce).
const MaxCount = 1<<31 - 1

// Status says what a receive or a probe has found.
type Status = transport.Status

// Info describes the library in use.
type Info struct {
	Path        string `json:"path"`         // the file that was loaded
	Why         string `json:"why"`          // the reason why this one was chosen
	ABI         string `json:"abi"`          // "openmpi", "mpich" or "standard"
	Name        string `json:"name"`         // "Open MPI", "MPICH", "Intel MPI", "MVAPICH"
	Version     string `json:"version"`      // the first line of MPI_Get_library_version
	Standard    string `json:"standard"`     // of MPI_Get_version: "3.1"
	ThreadLevel string `json:"thread_level"` // "single", "funneled", "serialized", "multiple"
	Owner       string `json:"owner"`        // what initialised it: "paddlempi" or "other" (mpi4py, the application)
}

// Library is an initialised MPI. All methods are safe for concurrent use, because MPI runs with
// MPI_THREAD_MULTIPLE. Errors are *status.Error.
type Library interface {
	Info() Info
	// World returns MPI_COMM_WORLD. Init and the doctor (gocore/diagnose) use it. Groups use
	// communicators that were made for them.
	World() Comm
	Rank(Comm) (int, error)
	Size(Comm) (int, error)

	// Run makes the blocking call. st may be nil.
	Run(c *Call, st *Status) error
	// Start makes the nonblocking call. When the call has ended, Poll sets Done of the request to 1. The request's
	// Code is MPI's error code, and FnDup leaves the new communicator in Made.
	Start(c *Call) (*transport.Request, error)
	// Poll tests those of the requests that are not done, in one C loop, and returns how many it found
	// done. It implements work.Poller.
	Poll(requests []uintptr) int
	// Err names the function of the call. Only what is done may be released.
	transport.Requests
	// Cancel asks MPI to give up an FnRecv that is under way. Poll still sets Done. Cancelled then
	// says whether the receive was given up, so that nothing was received, or had already matched a
	// message.
	Cancel(r *transport.Request) error

	// Improbe looks for a message without waiting, and takes it. source may be AnySource, tag
	// AnyTag.
	Improbe(c Comm, source, tag int32) (msg Message, st Status, found bool, err error)
	// Iprobe does the same without taking the message.
	Iprobe(c Comm, source, tag int32) (st Status, found bool, err error)

	// Byte returns MPI_BYTE. Bytes returns a datatype of exactly n bytes, which may be more than
	// MaxCount. free releases the datatype. It is called after the calls that use the datatype have started.
	Byte() Datatype
	Bytes(n int64) (t Datatype, free func(), err error)
	// TypeOf and OpOf return false if neither MPI nor a user op of this package can reduce the
	// dtype with the reduce op; they do so for 16-bit floats and float8. A bool is reduced as a
	// byte, by logical operations. MIN and MAX of floats propagate NaN.
	TypeOf(op.DType) (Datatype, bool)
	OpOf(op.ReduceOp, op.DType) (Op, bool)

	Dup(Comm) (Comm, error)
	// CreateGroup is MPI_Comm_create_group. Only the ranks call it. They are ranks of parent, in
	// the order that they have in the new communicator.
	CreateGroup(parent Comm, ranks []int32, tag int32) (Comm, error)
	// CreateWithout makes a communicator of the given ranks of World after others have died, in the same way. The name is of this
	// one alone, also if it was tried before: MPI may still wait for those that have died since.
	CreateWithout(ranks []int32, name string) (Comm, error)
	SplitShared(Comm) (Comm, error)
	Free(Comm) error
	TagUB() int32

	// FreeAll releases the user ops. It is called when the world is destroyed.
	FreeAll()
	// OnFinalize makes MPI_Finalize call fn before MPI shuts down, whatever code calls
	// MPI_Finalize. It uses an attribute of MPI_COMM_SELF (MPI-4.1 section 11.2.4).
	OnFinalize(fn func()) error
	Finalized() bool
	Finalize() error
	Abort(code int)
}

// Options are the arguments of Open.
type Options struct {
	Path      string        // the library that the user names with init's mpi=, or "" to discover one
	Named     string        // how the user has named Path, if not with init's mpi=
	SysPrefix string        // Python's sys.prefix, under which wheels put their libraries
	Timeout   time.Duration // of init
	SelfStart *SelfStart    // how this process starts MPI without a launcher of MPI; nil: a launcher has started it
	RollCall  RollCall      // waits for the other ranks that a launcher has started; nil: MPI_Init does, without a limit
}

// RollCall is around MPI_Init, in which nothing ends the wait for a rank that does not come. Package rollcall has one.
type RollCall interface {
	// Gather returns when MPI_Init may be called, or the error for which it is not.
	Gather() error
	// Watch looks after the call of MPI_Init until stop is called.
	Watch() (stop func())
}

package gocore

import (
	"time"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/mpi"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// What capi needs of the rooms below, so that it imports this package alone.

// Result is what a receive or a probe found out.
type Result = work.Result

// SetFinalizeHook takes the C function that MPI_Finalize is to call; it must call
// RunFinalizeHook. See mpi.SetFinalizeHook.
func SetFinalizeHook(hook unsafe.Pointer) { mpi.SetFinalizeHook(hook) }

// RunFinalizeHook drains the engine while MPI is still there.
func RunFinalizeHook() { mpi.RunFinalizeHook() }

// NextCompletion waits up to limit (negative: for ever) for a work with notification to
// end and returns its number, 0 if none did.
func NextCompletion(limit time.Duration) uint64 { return work.NextCompletion(limit) }

// CompletionFD returns an eventfd that is readable while NextCompletion has something.
func CompletionFD() int { return work.CompletionFD() }

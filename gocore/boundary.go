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

// Completion is how an operation with notification ended.
type Completion = work.Completion

// NextCompletions waits up to limit (negative: for ever) for works with notification to end, fills in
// those that did and returns how many.
func NextCompletions(out []Completion, limit time.Duration) int {
	return work.NextCompletions(out, limit)
}

// CompletionFD returns an eventfd that is readable while NextCompletions has something.
func CompletionFD() int { return work.CompletionFD() }

// Release forgets the number of a work, which goes on if it is not over. It returns whether MPI
// is done with the work's memory. If not, NextReleased tells when it is.
func Release(id uint64) (free bool) { return work.Release(id) }

// NextReleased returns a work that was released before MPI was done with its memory, and with which it
// is by now; each once, 0 if there is none.
func NextReleased() uint64 { return work.NextReleased() }

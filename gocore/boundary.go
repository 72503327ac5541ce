package gocore

import (
	"time"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/mpi"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// What capi needs of the rooms below. So capi imports only this package, op and status.

// Result is what a receive or a probe returns.
type Result = work.Result

// SetFinalizeHook sets the C function that MPI_Finalize calls; it must call RunFinalizeHook. See
// mpi.SetFinalizeHook.
func SetFinalizeHook(hook unsafe.Pointer) { mpi.SetFinalizeHook(hook) }

// RunFinalizeHook calls BeforeFinalize, while MPI still works.
func RunFinalizeHook() { mpi.RunFinalizeHook() }

// Completion says how an operation with notification ended.
type Completion = work.Completion

// NextCompletions waits until works with notification have ended, up to limit (negative: for ever).
// It fills out and returns their number.
func NextCompletions(out []Completion, limit time.Duration) int {
	return work.NextCompletions(out, limit)
}

// Hurry says that no thread is going to wait for a work.
func Hurry(id uint64) {
	if h, err := work.Lookup(id); err == nil {
		h.Hurry()
	}
}

// TakeCompletion takes the completion of a work, which NextCompletions then never returns. It
// returns false if there is none that was not returned yet.
func TakeCompletion(id uint64) bool { return work.TakeCompletion(id) }

// CompletionFD returns an eventfd that is readable while NextCompletions would not wait.
func CompletionFD() int { return work.CompletionFD() }

// Release releases a work, which goes on if it is not over. It returns whether the work's memory
// may be freed. If not, NextReleased returns the work when it may.
func Release(id uint64) (free bool) { return work.Release(id) }

// MemoryFree returns whether the memory of a work may be freed, and does not release the work.
func MemoryFree(id uint64) bool { return work.MemoryFree(id) }

// NextReleased returns a work that was released before its memory could be freed, and whose memory
// may be freed now. It returns every work once, and 0 if there is none.
func NextReleased() uint64 { return work.NextReleased() }

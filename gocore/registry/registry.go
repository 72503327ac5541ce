// Package registry has what a process of this core has once: the MPI that it runs, its worlds and
// their groups, windows, prepared operations and open files by the numbers that callers know, its
// tables, and what has to end before the process does. The rooms above keep no state of their own.
package registry

import (
	"sync"
	"sync/atomic"

	"github.com/paddlempi/paddlempi/gocore/mpi"
	"github.com/paddlempi/paddlempi/gocore/trace"
)

var (
	// Starting is held by a call that starts or ends the core, or tries an MPI. It guards MPI, EndFile, Departing and Last.
	// A function that Closing calls has it too, unless other code finalizes MPI: the process then ends.
	Starting sync.Mutex

	// MPI is nil before an init that starts MPI. It stays after the world was destroyed, because MPI can be initialised
	// only once in a process.
	MPI mpi.Library

	// MPIInUse says that MPI cannot be finalized: an init has failed half way, and other ranks may still wait in it, or a
	// thread is inside a call of MPI that does not return.
	MPIInUse atomic.Bool

	// Deserted says that a process has died for which MPI would wait when it is finalized.
	Deserted atomic.Bool

	// EndFile is the file to which a line with the status of this process is appended when it ends; "": none.
	EndFile string

	// Closing has what ends before MPI is finalized or the process ends.
	Closing Closers

	// Files has the files that were opened through MPI, by their handles. They may outlive the world.
	Files ByNumber[*mpi.File]

	// Collectors has those that record timelines in this process, by their handles.
	Collectors ByNumber[*trace.Collector]
)

package registry

import "github.com/paddlempi/paddlempi/gocore/mpi"

// File is a file that was opened through MPI, with the MPI that has opened it. It may outlive the world.
type File struct {
	MPI  mpi.Library // nil: there is none
	File mpi.File
}

var files table[File]

// AddFile enters a file, and returns its handle.
func AddFile(f File) (handle int64) {
	handle = files.last.Add(1)
	files.put(handle, f)
	return handle
}

// FileOf returns the file with a handle.
func FileOf(handle int64) (f File, ok bool) { return files.get(handle) }

// ForgetFile forgets a file that is closed.
func ForgetFile(handle int64) {
	files.forget(func(other int64, _ File) bool { return other == handle })
}

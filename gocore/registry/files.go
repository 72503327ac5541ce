package registry

import "github.com/paddlempi/paddlempi/gocore/mpi"

// File is a file that was opened through MPI, with the MPI that has opened it. It may outlive the world.
type File struct {
	MPI  mpi.Library
	File *mpi.File
}

// Files has the open files by their handles.
var Files ByNumber[*File]

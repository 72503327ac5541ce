package mpi

/*
#include <stdlib.h>
#include "calls.h"
*/
import "C"

import (
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/status"
)

// File is an MPI_File, which was opened by one process for itself, on MPI_COMM_SELF, so none of the calls waits for another
// process. Offsets are bytes.
type File struct {
	mpi    *loaded
	handle C.uintptr_t
}

// Hint is a key of an MPI_Info for a file, with its value.
type Hint struct{ Key, Value string }

// FileMode says how a file is opened.
type FileMode int

const (
	FileReads  FileMode = iota
	FileWrites          // and reads
	FileIsMade          // and must not exist
)

// Files is a Library that can open files.
type Files interface {
	OpenFile(path string, mode FileMode, hints []Hint) (*File, error)
}

func (l *library) OpenFile(path string, mode FileMode, hints []Hint) (*File, error) {
	if lacks := C.pmpi_mpi_lacks_files(l.mpi.table); lacks != nil {
		return nil, status.New(status.Unsupported, "%s (%s) was built without MPI-IO: it lacks %s", l.mpi.info.Path, l.mpi.info.Version, C.GoString(lacks))
	}
	given := l.mpi.abi.Ints[iModeRdonly]
	switch mode {
	case FileWrites:
		given = l.mpi.abi.Ints[iModeRdwr]
	case FileIsMade:
		given = l.mpi.abi.Ints[iModeRdwr] | l.mpi.abi.Ints[iModeCreate] | l.mpi.abi.Ints[iModeExcl]
	}
	words := make([]*C.char, 0, 2*len(hints)+2)
	defer func() {
		for _, word := range words {
			C.free(unsafe.Pointer(word))
		}
	}()
	for _, hint := range hints {
		words = append(words, C.CString(hint.Key), C.CString(hint.Value))
	}
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	f := &File{mpi: l.mpi}
	err := l.mpi.check("MPI_File_open", C.pmpi_mpi_file_open(l.mpi.table, C.uintptr_t(l.mpi.handle(hCommSelf)), name, C.int(given),
		unsafe.SliceData(words), C.int(len(hints)), &f.handle))
	return f, err
}

// Write moves the first of some bytes to the file, and returns how many.
func (f *File) Write(at int64, data unsafe.Pointer, bytes int64) (int64, error) {
	var moved C.int64_t
	err := f.mpi.check("MPI_File_write_at", C.pmpi_mpi_file_write(f.mpi.table, f.handle, C.int64_t(at), C.uintptr_t(uintptr(data)), C.int64_t(bytes), &moved))
	return int64(moved), err
}

// Read moves the first of some bytes from the file, and returns how many: 0 at the end of the file.
func (f *File) Read(at int64, data unsafe.Pointer, bytes int64) (int64, error) {
	var moved C.int64_t
	err := f.mpi.check("MPI_File_read_at", C.pmpi_mpi_file_read(f.mpi.table, f.handle, C.int64_t(at), C.uintptr_t(uintptr(data)), C.int64_t(bytes), &moved))
	return int64(moved), err
}

// Sync returns when what this process has written is on the disk.
func (f *File) Sync() error {
	return f.mpi.check("MPI_File_sync", C.pmpi_mpi_file_sync(f.mpi.table, f.handle))
}

func (f *File) Close() error {
	return f.mpi.check("MPI_File_close", C.pmpi_mpi_file_close(f.mpi.table, f.handle))
}

var _ Files = (*library)(nil)

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

// File is an MPI_File.
type File uintptr

// Hint is a key of an MPI_Info for a file, with its value.
type Hint struct{ Key, Value string }

// FileMode says how a file is opened.
type FileMode int

const (
	FileReads  FileMode = iota
	FileWrites          // and reads
	FileIsMade          // and must not exist
)

// Files is a Library that can open files. Each is opened by one process for itself, on MPI_COMM_SELF, so none
// of the calls waits for another process. Offsets are bytes.
type Files interface {
	OpenFile(path string, mode FileMode, hints []Hint) (File, error)
	// WriteFile and ReadFile move the first of some bytes, and return how many. A read returns 0 at the end of the
	// file.
	WriteFile(f File, at int64, data unsafe.Pointer, bytes int64) (int64, error)
	ReadFile(f File, at int64, data unsafe.Pointer, bytes int64) (int64, error)
	// SyncFile returns when what this process has written is on the disk.
	SyncFile(File) error
	CloseFile(File) error
}

func (l *library) OpenFile(path string, mode FileMode, hints []Hint) (File, error) {
	if lacks := C.pmpi_mpi_lacks_files(l.table); lacks != nil {
		return 0, status.New(status.Unsupported, "%s (%s) was built without MPI-IO: it lacks %s", l.info.Path, l.info.Version, C.GoString(lacks))
	}
	given := l.abi.Ints[iModeRdonly]
	switch mode {
	case FileWrites:
		given = l.abi.Ints[iModeRdwr]
	case FileIsMade:
		given = l.abi.Ints[iModeRdwr] | l.abi.Ints[iModeCreate] | l.abi.Ints[iModeExcl]
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
	var file C.uintptr_t
	err := l.check("MPI_File_open", C.pmpi_mpi_file_open(l.table, C.uintptr_t(l.handle(hCommSelf)), name, C.int(given),
		unsafe.SliceData(words), C.int(len(hints)), &file))
	return File(file), err
}

func (l *library) WriteFile(f File, at int64, data unsafe.Pointer, bytes int64) (int64, error) {
	var moved C.int64_t
	err := l.check("MPI_File_write_at", C.pmpi_mpi_file_write(l.table, C.uintptr_t(f), C.int64_t(at), C.uintptr_t(uintptr(data)), C.int64_t(bytes), &moved))
	return int64(moved), err
}

func (l *library) ReadFile(f File, at int64, data unsafe.Pointer, bytes int64) (int64, error) {
	var moved C.int64_t
	err := l.check("MPI_File_read_at", C.pmpi_mpi_file_read(l.table, C.uintptr_t(f), C.int64_t(at), C.uintptr_t(uintptr(data)), C.int64_t(bytes), &moved))
	return int64(moved), err
}

func (l *library) SyncFile(f File) error {
	return l.check("MPI_File_sync", C.pmpi_mpi_file_sync(l.table, C.uintptr_t(f)))
}

func (l *library) CloseFile(f File) error {
	return l.check("MPI_File_close", C.pmpi_mpi_file_close(l.table, C.uintptr_t(f)))
}

var _ Files = (*library)(nil)

package heap

// #include "fork.h"
import "C"

import (
	"syscall"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/segment"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// mapRange maps a range of a file. A forked child gets a private copy of it. file stays open until unmap.
func mapRange(file *segment.File, offset, size int64) ([]byte, error) {
	mem, err := file.MapRange(offset, size)
	if err != nil {
		return nil, err
	}
	if C.ph_keep(unsafe.Pointer(&mem[0]), C.size_t(size), C.int(file.FD()), C.int64_t(offset)) != 0 {
		_ = syscall.Munmap(mem)
		return nil, status.New(status.NoMemory, "no memory to note a segment of a heap")
	}
	return mem, nil
}

// unmap undoes mapRange.
func unmap(mem []byte) {
	C.ph_forget(unsafe.Pointer(&mem[0]))
	_ = syscall.Munmap(mem)
}

package mpi

/*
#include "calls.h"
*/
import "C"

import (
	"fmt"
	"slices"
	"strings"
)

// CUDAQuery is a Library that can be asked whether it takes the addresses of device memory. Its
// answer is not reliable: after a yes the caller has to try.
type CUDAQuery interface {
	// QueryCUDA returns whether any of the ways to ask says yes, and all answers as text.
	QueryCUDA() (aware bool, says string)
}

// QueryCUDA asks in all ways that the library has: MPIX_Query_cuda_support (Open MPI, MPICH),
// MPIX_GPU_query_support (MPICH), and the info key mpi_memory_alloc_kinds of MPI_COMM_WORLD
// (MPI-4.1). The answers of Open MPI 5 and MPICH are about what they have chosen in MPI_Init.
func (l *library) QueryCUDA() (aware bool, says string) {
	var answers []string
	if f := l.mpi.file.Lookup("MPIX_Query_cuda_support"); f != nil {
		n := C.pmpi_mpi_query_cuda(f)
		aware = n == 1
		answers = append(answers, fmt.Sprintf("MPIX_Query_cuda_support says %d", n))
	}
	if f := l.mpi.file.Lookup("MPIX_GPU_query_support"); f != nil {
		var flag C.int
		rc := C.pmpi_mpi_query_gpu(f, &flag)
		aware = aware || rc == 0 && flag != 0
		answers = append(answers, fmt.Sprintf("MPIX_GPU_query_support says %d", flag))
	}
	if kinds, ok := l.mpi.memoryKinds(); ok {
		aware = aware || slices.ContainsFunc(strings.Split(kinds, ","), func(kind string) bool {
			kind = strings.TrimSpace(kind)
			return kind == "cuda" || kind == "cuda:device"
		})
		answers = append(answers, fmt.Sprintf("mpi_memory_alloc_kinds is %q", kinds))
	}
	if answers == nil {
		return false, "it has no way to be asked (MPIX_Query_cuda_support, MPIX_GPU_query_support, mpi_memory_alloc_kinds)"
	}
	return aware, strings.Join(answers, ", ")
}

// memoryKinds returns the value of the info key mpi_memory_alloc_kinds of MPI_COMM_WORLD.
func (l *loaded) memoryKinds() (string, bool) {
	get, text, free := l.file.Lookup("MPI_Comm_get_info"), l.file.Lookup("MPI_Info_get_string"), l.file.Lookup("MPI_Info_free")
	if get == nil || text == nil || free == nil {
		return "", false // MPI before version 4 has no such key
	}
	var value [512]C.char
	if C.pmpi_mpi_memory_kinds(get, text, free, C.uintptr_t(l.handle(hCommWorld)), &value[0], C.int(len(value))) == 0 {
		return "", false
	}
	return C.GoString(&value[0]), true
}

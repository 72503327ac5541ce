package mpi

/*
#include <stdlib.h>
#include <limits.h>
#include "calls.h"
*/
import "C"

import (
	"strconv"
	"strings"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/status"
)

var fnNames = [...]string{
	FnBarrier: "Barrier", FnBcast: "Bcast", FnAllreduce: "Allreduce", FnReduce: "Reduce",
	FnAllgather: "Allgather", FnAllgatherv: "Allgatherv", FnGather: "Gather", FnGatherv: "Gatherv",
	FnScatter: "Scatter", FnScatterv: "Scatterv", FnReduceScatter: "Reduce_scatter",
	FnReduceScatterBlock: "Reduce_scatter_block", FnAlltoall: "Alltoall", FnAlltoallv: "Alltoallv",
	FnScan: "Scan", FnExscan: "Exscan", FnSend: "Send", FnRecv: "Recv", FnMrecv: "Mrecv",
	FnDup: "Comm_dup",
}

func (f Fn) name() string {
	if f <= FnNone || int(f) >= len(fnNames) {
		return "Fn(" + strconv.Itoa(int(f)) + ")"
	}
	return fnNames[f]
}

// String returns the function's name in its blocking form: "MPI_Bcast".
func (f Fn) String() string { return "MPI_" + f.name() }

func (f Fn) nonblocking() string {
	if f == FnDup {
		return "MPI_Comm_idup"
	}
	return "MPI_I" + strings.ToLower(f.name())
}

// check turns the error code of an MPI function into an error, or nil for success.
func (l *loaded) check(function string, code C.int) error {
	if code == 0 {
		return nil
	}
	if code == C.INT_MIN {
		return status.New(status.Argument, "%s is no function that a Call can make", function)
	}
	var native C.int
	class := ErrUnknown
	if C.pmpi_mpi_error_class(l.table, code, &native) == 0 {
		class = l.abi.class(int32(native))
	}
	e := status.New(codeOf(class), "%s failed with %s: %s", function, class, l.errorText(code))
	e.MPIClass = int(class)
	return e
}

func codeOf(class Class) status.Code {
	switch class {
	case ErrTruncate:
		return status.Truncate
	case ErrProcFailed, ErrProcFailedPending, ErrProcAborted:
		return status.ProcFailed
	case ErrRevoked:
		return status.Revoked
	}
	return status.MPI
}

func (l *loaded) errorText(code C.int) string {
	text := (*C.char)(C.calloc(1, 4096)) // MPI_MAX_ERROR_STRING is 256 or 512
	defer C.free(unsafe.Pointer(text))
	var n C.int
	if C.pmpi_mpi_error_string(l.table, code, text, &n) != 0 {
		return "error code " + strconv.Itoa(int(code))
	}
	return strings.Join(strings.Fields(C.GoString(text)), " ")
}

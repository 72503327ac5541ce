package mpi

/*
#cgo CFLAGS: -std=c11 -O3
#cgo noescape pmpi_mpi_run
#cgo nocallback pmpi_mpi_run
#cgo noescape pmpi_mpi_start
#cgo nocallback pmpi_mpi_start
#cgo noescape pmpi_mpi_poll
#cgo nocallback pmpi_mpi_poll
#cgo noescape pmpi_mpi_cancel
#cgo nocallback pmpi_mpi_cancel
#cgo noescape pmpi_mpi_improbe
#cgo nocallback pmpi_mpi_improbe
#include "calls.h"
*/
import "C"

import (
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/status"
)

// Call, Status and Slot lie in memory as C has them: each of these is 0, or
// does not compile. (calls.c asserts the C side.)
const (
	_ = -(unsafe.Sizeof(Call{}) - unsafe.Sizeof(C.struct_pmpi_mpi_call{}))
	_ = -(unsafe.Offsetof(Call{}.InPlace) - 4)
	_ = -(unsafe.Offsetof(Call{}.Comm) - 16)
	_ = -(unsafe.Offsetof(Call{}.SendCount) - 40)
	_ = -(unsafe.Offsetof(Call{}.Message) - 80)
	_ = -(unsafe.Offsetof(Call{}.RecvDispls) - 112)
	_ = -(unsafe.Sizeof(Status{}) - unsafe.Sizeof(C.struct_pmpi_mpi_status{}))
	_ = -(unsafe.Offsetof(Status{}.Bytes) - 8)
	_ = -(unsafe.Sizeof(Slot{}) - unsafe.Sizeof(C.struct_pmpi_mpi_slot{}))
	_ = -(unsafe.Offsetof(Slot{}.Bytes) - 24)
	_ = -(int(FnMrecv) - int(C.PMPI_FN_MRECV))
	_ = -(int(FnReduceScatterBlock) - int(C.PMPI_FN_REDUCE_SCATTER_BLOCK))
)

// countsFit is false where C's int would cut a count.
func (c *Call) countsFit() bool {
	return uint64(c.SendCount|c.RecvCount) <= MaxCount
}

func (c *Call) countError() error {
	return status.New(status.Argument, "%s of %d and %d elements: one call of MPI takes 0 to %d",
		c.Fn, c.SendCount, c.RecvCount, MaxCount)
}

func (l *library) Run(c *Call, st *Status) error {
	if !c.countsFit() {
		return c.countError()
	}
	rc := C.pmpi_mpi_run(l.table, (*C.struct_pmpi_mpi_call)(unsafe.Pointer(c)), (*C.struct_pmpi_mpi_status)(unsafe.Pointer(st)))
	if rc != 0 {
		return l.check(c.Fn.String(), rc)
	}
	return nil
}

func (l *library) Start(c *Call, s *Slot) error {
	if !c.countsFit() {
		return c.countError()
	}
	rc := C.pmpi_mpi_start(l.table, (*C.struct_pmpi_mpi_call)(unsafe.Pointer(c)), (*C.struct_pmpi_mpi_slot)(unsafe.Pointer(s)))
	if rc != 0 {
		return l.check(c.Fn.nonblocking(), rc)
	}
	return nil
}

func (l *library) Poll(slots []uintptr) int {
	if len(slots) == 0 {
		return 0
	}
	return int(C.pmpi_mpi_poll(l.table, (*C.uintptr_t)(unsafe.Pointer(unsafe.SliceData(slots))), C.int(len(slots))))
}

func (l *library) Cancel(s *Slot) error {
	return l.check("MPI_Cancel", C.pmpi_mpi_cancel(l.table, (*C.struct_pmpi_mpi_slot)(unsafe.Pointer(s))))
}

func (l *library) Improbe(c Comm, source, tag int32) (Message, Status, bool, error) {
	var msg C.uintptr_t
	var st C.struct_pmpi_mpi_status
	var found C.int
	rc := C.pmpi_mpi_improbe(l.table, C.uintptr_t(c), C.int32_t(source), C.int32_t(tag), &found, &msg, &st)
	if rc != 0 {
		return 0, Status{}, false, l.check("MPI_Improbe", rc)
	}
	return Message(msg), Status{Source: int32(st.source), Tag: int32(st.tag), Bytes: int64(st.bytes)}, found != 0, nil
}

func (l *library) Iprobe(c Comm, source, tag int32) (Status, bool, error) {
	var st C.struct_pmpi_mpi_status
	var found C.int
	rc := C.pmpi_mpi_improbe(l.table, C.uintptr_t(c), C.int32_t(source), C.int32_t(tag), &found, nil, &st)
	if rc != 0 {
		return Status{}, false, l.check("MPI_Iprobe", rc)
	}
	return Status{Source: int32(st.source), Tag: int32(st.tag), Bytes: int64(st.bytes)}, found != 0, nil
}

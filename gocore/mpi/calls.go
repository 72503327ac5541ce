package mpi

/*
#cgo CFLAGS: -std=c11 -O3
#include "calls.h"
*/
import "C"

import (
	"sync"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/transport"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// countsFit tells whether both counts fit into C's int.
func (c *Call) countsFit() bool {
	return uint64(c.SendCount|c.RecvCount) <= MaxCount
}

func (c *Call) countError() error {
	return status.New(status.Argument, "%s of %d and %d elements: one call of MPI takes 0 to %d",
		c.Fn, c.SendCount, c.RecvCount, MaxCount)
}

// Run, Start and Poll do not allocate: they pass on the caller's memory. cgo's noescape and
// nocallback would gain nothing here, and they are not true for MPI: its progress may call back
// code of others (an op in Python, by mpi4py), which may call Go in this process.

func (l *library) Run(c *Call, st *Status) error {
	if !c.countsFit() {
		return c.countError()
	}
	rc := C.pmpi_mpi_run(l.mpi.table, (*C.struct_pmpi_mpi_call)(unsafe.Pointer(c)), (*C.struct_pmpi_mpi_status)(unsafe.Pointer(st)))
	if rc != 0 {
		return l.mpi.check(c.Fn.String(), rc)
	}
	return nil
}

func (l *library) Start(c *Call) (*transport.Request, error) {
	if !c.countsFit() {
		return nil, c.countError()
	}
	r := l.requests.take()
	rc := C.pmpi_mpi_start(l.mpi.table, (*C.struct_pmpi_mpi_call)(unsafe.Pointer(c)), (*C.struct_pmpi_mpi_request)(unsafe.Pointer(r)))
	r.Kind = int32(c.Fn)
	if rc != 0 {
		l.Release(r)
		return nil, l.mpi.check(c.Fn.nonblocking(), rc)
	}
	return r, nil
}

func (l *library) Poll(requests []uintptr) int {
	if len(requests) == 0 {
		return 0
	}
	return int(C.pmpi_mpi_poll(l.mpi.table, (*C.uintptr_t)(unsafe.Pointer(unsafe.SliceData(requests))), C.int(len(requests))))
}

func (l *library) Cancel(r *transport.Request) error {
	return l.mpi.check("MPI_Cancel", C.pmpi_mpi_cancel(l.mpi.table, (*C.struct_pmpi_mpi_request)(unsafe.Pointer(r))))
}

func (l *library) Poller() work.Poller { return l }

// Pace is work.Seldom: MPI does not tell.
func (l *library) Pace() work.Pace { return work.Seldom }

func (l *library) Err(r *transport.Request) error {
	if r.Code == 0 {
		return nil
	}
	return l.mpi.check(Fn(r.Kind).nonblocking(), C.int(r.Code))
}

func (l *library) Release(r *transport.Request) { l.requests.give(r) }

// probed is what a probe writes. It comes from a pool, because callers probe in loops.
type probed struct {
	status  Status
	message C.uintptr_t
	found   C.int
}

var probes = sync.Pool{New: func() any { return new(probed) }}

// probe is Improbe if take is set, else Iprobe.
func (l *library) probe(comm Comm, source, tag int32, take bool) (msg Message, st Status, found bool, err error) {
	p := probes.Get().(*probed)
	defer probes.Put(p)
	*p = probed{}
	function, message := "MPI_Iprobe", (*C.uintptr_t)(nil)
	if take {
		function, message = "MPI_Improbe", &p.message
	}
	rc := C.pmpi_mpi_improbe(l.mpi.table, C.uintptr_t(comm), C.int32_t(source), C.int32_t(tag), &p.found, message,
		(*C.struct_pmpi_mpi_status)(unsafe.Pointer(&p.status)))
	if rc != 0 {
		return 0, Status{}, false, l.mpi.check(function, rc)
	}
	return Message(p.message), p.status, p.found != 0, nil
}

func (l *library) Improbe(c Comm, source, tag int32) (Message, Status, bool, error) {
	return l.probe(c, source, tag, true)
}

func (l *library) Iprobe(c Comm, source, tag int32) (Status, bool, error) {
	_, st, found, err := l.probe(c, source, tag, false)
	return st, found, err
}

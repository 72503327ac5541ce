package mpi

/*
#include "calls.h"

static void set_hook(void *hook) {
	pmpi_mpi_set_finalize_hook((void (*)(void))hook);
}
*/
import "C"

import (
	"sync/atomic"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/status"
)

var atFinalize atomic.Pointer[func()]

// SetFinalizeHook takes the C function, void hook(void), that MPI_Finalize is to
// call by way of an attribute of MPI_COMM_SELF. It is there because a C callback
// reaches Go only through an exported function, and those live in one file of
// another package: that function calls RunFinalizeHook. Set it before OnFinalize.
// mpifake, which has no C, calls OnFinalize's fn itself.
func SetFinalizeHook(hook unsafe.Pointer) { C.set_hook(hook) }

// RunFinalizeHook runs what OnFinalize was given, once; nothing if it has been run.
func RunFinalizeHook() {
	if fn := atFinalize.Swap(nil); fn != nil {
		(*fn)()
	}
}

func (l *library) OnFinalize(fn func()) error {
	if C.pmpi_mpi_has_finalize_hook() == 0 {
		return status.New(status.Unsupported, "nothing to call in MPI_Finalize: mpi.SetFinalizeHook comes before OnFinalize")
	}
	if atFinalize.Swap(&fn) != nil {
		return nil // the attribute of an earlier init is still there
	}
	err := l.check("MPI_Comm_set_attr", C.pmpi_mpi_on_finalize(l.table, C.uintptr_t(l.handle(hCommSelf))))
	if err != nil {
		atFinalize.Store(nil)
	}
	return err
}

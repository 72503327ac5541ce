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

// SetFinalizeHook takes the C function, void hook(void), that MPI_Finalize has to call through an
// attribute of MPI_COMM_SELF. A C callback can call Go only through an exported function, and the
// exported functions are in one file of another package. hook is such a function, and it calls
// RunFinalizeHook. Call SetFinalizeHook before OnFinalize. mpifake has no C and calls the function
// of OnFinalize itself.
func SetFinalizeHook(hook unsafe.Pointer) { C.set_hook(hook) }

// RunFinalizeHook runs the function that OnFinalize was given. It runs the function once only.
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
		return nil // the attribute of an earlier init is still set
	}
	err := l.mpi.check("MPI_Comm_set_attr", C.pmpi_mpi_on_finalize(l.mpi.table, C.uintptr_t(l.mpi.handle(hCommSelf))))
	if err != nil {
		atFinalize.Store(nil)
	}
	return err
}

package main

/*
#include <signal.h>
#include <stddef.h>
#include <stdlib.h>

static int hook_runs;

static void hook(void) {
	hook_runs++;
}

static int hook_runs_now(void) {
	return hook_runs;
}

static void *hook_address(void) {
	return (void *)hook;
}

static int init(void *symbol) {
	return ((int (*)(int *, void *))symbol)(NULL, NULL);
}

static int init_thread(void *symbol, int level) {
	int provided;
	return ((int (*)(int *, void *, int, int *))symbol)(NULL, NULL, level, &provided);
}

// Returns the first signal whose handler would run on a goroutine's stack, or 0.
static int off_stack(void) {
	for (int sig = 1; sig < 65; sig++) {
		struct sigaction a;
		if (sigaction(sig, NULL, &a) == 0 && a.sa_handler != SIG_DFL && a.sa_handler != SIG_IGN &&
		    !(a.sa_flags & SA_ONSTACK))
			return sig;
	}
	return 0;
}
*/
import "C"

import (
	"fmt"
	"syscall"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/dl"
	"github.com/paddlempi/paddlempi/gocore/mpi"
)

// exit ends the process as a C program would, with its atexit handlers. os.Exit
// would skip them. In one of them MPICH 5 tells its launcher that the process ends.
// Otherwise the launcher kills the other ranks.
func exit(code int) { C.exit(C.int(code)) }

func useHook() { mpi.SetFinalizeHook(C.hook_address()) }

func hookRuns() int { return int(C.hook_runs_now()) }

func signals(w *world) { want(w, "signal whose handler lacks SA_ONSTACK", int(C.off_stack()), 0) }

// initialise initialises MPI as another owner in this process would.
func initialise(path string, level int) error {
	file, err := dl.Open(path, dl.Now|dl.Global)
	if err != nil {
		return err
	}
	rc := C.int(-1)
	if level < 0 {
		rc = C.init(file.Lookup("MPI_Init"))
	} else {
		rc = C.init_thread(file.Lookup("MPI_Init_thread"), C.int(level))
	}
	if rc != 0 {
		return fmt.Errorf("the other owner's MPI_Init: %d", rc)
	}
	return nil
}

// memory returns n zeroed elements outside the Go heap. They are never freed.
func memory[T any](n int) []T {
	var t T
	b, err := syscall.Mmap(-1, 0, max(n, 1)*int(unsafe.Sizeof(t)), syscall.PROT_READ|syscall.PROT_WRITE,
		syscall.MAP_PRIVATE|syscall.MAP_ANON)
	if err != nil {
		panic(err)
	}
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), n)
}

func at[T any](b []T) unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(b)) }

func filled[T any](values ...T) []T {
	b := memory[T](len(values))
	copy(b, values)
	return b
}

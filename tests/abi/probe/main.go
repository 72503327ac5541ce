// Command probe checks mpi.Library with a given MPI, as one rank of a job: every
// function in both forms, every reduction, messages, probes, communicators,
// errors, large types, the end. tests/abi/test_abi.py runs it under every mpirun
// with every library.
//
// Every rank prints a line for each check that failed. The last line of rank 0 is
// "passed" if all checks of rank 0, and those of the other ranks before
// MPI_Finalize, passed.
package main

import (
	"flag"
	"fmt"
	"slices"

	"github.com/paddlempi/paddlempi/gocore/mpi"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// world is an open library, this rank's place in the world, and the number of failed checks.
type world struct {
	mpi.Library
	comm       mpi.Comm
	rank, size int
	failures   int
}

func (w *world) failf(format string, args ...any) {
	w.failures++
	fmt.Printf("rank %d: %s\n", w.rank, fmt.Sprintf(format, args...))
}

// want reports got if it is not what was expected.
func want[T comparable](w *world, what string, got, expected T) {
	if got != expected {
		w.failf("%s: got %v, want %v", what, got, expected)
	}
}

func wantAll[T comparable](w *world, what string, got, expected []T) {
	if !slices.Equal(got, expected) {
		w.failf("%s: got %v, want %v", what, got, expected)
	}
}

func (w *world) ok(what string, err error) bool {
	if err != nil {
		w.failf("%s: %v", what, err)
	}
	return err == nil
}

func (w *world) code(what string, err error, expected status.Code) {
	if got := status.CodeOf(err); got != expected {
		w.failf("%s: got code %d (%v), want %d", what, got, err, expected)
	}
}

func main() {
	exit(run())
}

func run() int {
	path := flag.String("mpi", "", "the library")
	abi := flag.String("abi", "", "the ABI it is to be known as")
	name := flag.String("name", "", "the MPI it is to be known as")
	owner := flag.String("owner", "paddlempi", "other: the probe itself initialises MPI first")
	level := flag.Int("level", -1, "thread level of that, -1 for MPI_Init")
	large := flag.Bool("large", false, "move 2^31+3 bytes too")
	flag.Parse()

	if *owner == "other" {
		if err := initialise(*path, *level); err != nil {
			fmt.Println(err)
			return 1
		}
	}
	useHook()
	l, err := mpi.Open(mpi.Options{Path: *path})
	if err != nil {
		fmt.Println("open:", status.CodeOf(err), err)
		return 1
	}
	w := &world{Library: l, comm: l.World()}
	w.rank, err = l.Rank(w.comm)
	w.ok("rank", err)
	w.size, err = l.Size(w.comm)
	w.ok("size", err)

	info := l.Info()
	want(w, "ABI", info.ABI, *abi)
	want(w, "name", info.Name, *name)
	want(w, "owner", info.Owner, *owner)
	want(w, "thread level", info.ThreadLevel, "multiple")
	if info.Path == "" || info.Version == "" || info.Standard < "3.1" {
		w.failf("info: %+v", info)
	}
	if w.TagUB() < 32767 {
		w.failf("MPI_TAG_UB %d", w.TagUB())
	}

	checks := []func(*world){
		reductions, nans, collectives, messages, wildcards, probes, cancels,
		communicators, threads, bytesTypes, signals,
	}
	if *owner == "paddlempi" { // another owner keeps its own error handlers
		checks = append(checks, refusals)
	}
	if *large {
		checks = append(checks, largeMessage)
	}
	for _, check := range checks {
		check(w)
		w.ok("barrier", w.Run(&mpi.Call{Fn: mpi.FnBarrier, Comm: w.comm}, nil))
	}
	total := sumOfFailures(w)
	finish(w)
	if w.failures > 0 || total > 0 {
		return 1
	}
	if w.rank == 0 {
		fmt.Println("passed")
	}
	return 0
}

func sumOfFailures(w *world) int64 {
	b := memory[int64](1)
	b[0] = int64(w.failures)
	t, _ := w.TypeOf(op.Int64)
	o, _ := w.OpOf(op.Sum, op.Int64)
	w.ok("allreduce", w.Run(&mpi.Call{Fn: mpi.FnAllreduce, Comm: w.comm, InPlace: true, RecvBuf: at(b), RecvCount: 1, RecvType: t, Op: o}, nil))
	return b[0]
}

// finish ends MPI. It checks that the hook ran then, and that MPI cannot be opened again.
func finish(w *world) {
	ran := 0
	w.ok("OnFinalize", w.OnFinalize(func() { ran++ }))
	w.FreeAll()
	again, err := mpi.Open(mpi.Options{})
	if w.ok("open after FreeAll", err) {
		if _, ok := again.OpOf(op.Min, op.Float32); !ok {
			w.failf("open after FreeAll: no user ops")
		}
		again.FreeAll()
	}
	want(w, "finalized before", w.Finalized(), false)
	w.ok("MPI_Finalize", w.Finalize())
	want(w, "runs of the hook", ran+hookRuns(), 1)
	want(w, "finalized after", w.Finalized(), true)
	_, err = mpi.Open(mpi.Options{})
	w.code("open after MPI_Finalize", err, status.MPI)
}

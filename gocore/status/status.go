// Package status holds the errors of the core: a code that crosses the C ABI,
// the ranks that are concerned, and a message written for the person who reads it.
//
// Every error that leaves the core is a *status.Error, so that capi can hand
// its code, its ranks and its text to the caller without parsing anything.
package status

import (
	"errors"
	"fmt"
)

// Code is the number an error has in pmpi.h (PMPI_ERR_*). The values are part
// of the C ABI: they are never renumbered.
type Code int32

const (
	OK                 Code = 0
	Argument           Code = 1  // a value out of range, a wrong count, a read-only buffer: ValueError
	Type               Code = 2  // no tensor, a dtype the operation is not defined for: TypeError
	NotInitialized     Code = 3  // before init or after destroy
	AlreadyInitialized Code = 4  // init while initialised
	MPINotFound        Code = 5  // no usable libmpi; the message lists where it looked
	Launcher           Code = 6  // the launcher and the library belong to different MPIs
	ThreadLevel        Code = 7  // the MPI that is running was initialised below THREAD_MULTIPLE
	Timeout            Code = 8  // a deadline ran out; Ranks never came
	Interrupted        Code = 9  // a signal handler of the caller asked to stop
	Mismatch           Code = 10 // the ranks called different things; Ranks differ
	Refused            Code = 11 // Ranks refused their part of the collective
	PeerLeft           Code = 12 // Ranks ended normally while others wait for them
	GroupBroken        Code = 13 // an earlier timeout or interrupt left the group unusable
	GroupDestroyed     Code = 14 // the group was destroyed
	MPI                Code = 15 // an error of MPI; MPIClass holds its class
	Truncate           Code = 16 // a message and its buffer differ in length
	ProcFailed         Code = 17 // MPI reports a dead process
	Revoked            Code = 18 // the communicator was revoked
	Forked             Code = 19 // the process is a fork of the one that initialised
	Panic              Code = 20 // a defect of the core: it is poisoned from here on
	Unsupported        Code = 21 // absent on this machine or in this MPI (device memory, ...)
	NoMemory           Code = 22 // an allocation failed
	NotReady           Code = 23 // pmpi_wait's own limit ran out; the work goes on
	NotMember          Code = 24 // a collective on a group this rank does not belong to
	Cuda               Code = 25 // the CUDA driver refused
	Reentrant          Code = 26 // a signal handler called what its own thread waits in
)

// Error is the one error type that leaves the core.
type Error struct {
	Code     Code
	MPIClass int   // MPI error class, 0 unless Code is MPI, Truncate, ProcFailed or Revoked
	Ranks    []int // world ranks concerned: missing, differing, refusing, left
	Msg      string
}

func (e *Error) Error() string { return e.Msg }

// Is makes errors.Is(err, &Error{Code: c}) compare codes.
func (e *Error) Is(target error) bool {
	var t *Error
	return errors.As(target, &t) && t.Code == e.Code
}

// New makes an error of code c.
func New(c Code, format string, args ...any) *Error {
	return &Error{Code: c, Msg: fmt.Sprintf(format, args...)}
}

// WithRanks names the world ranks concerned and returns e.
func (e *Error) WithRanks(ranks ...int) *Error {
	e.Ranks = ranks
	return e
}

// CodeOf returns the code of err, Panic for an error that is not the core's
// own, and OK for nil.
func CodeOf(err error) Code {
	if err == nil {
		return OK
	}
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return Panic
}

// Package status holds the errors of the core: a code that crosses the C ABI, the ranks concerned,
// and a message for the user.
//
// Every error that leaves the core is a *status.Error, so that capi can pass on its code, ranks and
// text without parsing.
package status

import (
	"errors"
	"fmt"
	"strings"
)

// Code is the number of an error in pmpi.h (PMPI_ERR_*). The values are part of the C ABI and never
// renumbered.
type Code int32

const (
	OK                 Code = 0
	Argument           Code = 1  // a value out of range, a wrong count, a read-only buffer: ValueError
	Type               Code = 2  // no tensor, or a dtype that the operation is not defined for: TypeError
	NotInitialized     Code = 3  // before init or after destroy
	AlreadyInitialized Code = 4  // init while initialised
	MPINotFound        Code = 5  // no usable libmpi; the message lists where the core looked
	Launcher           Code = 6  // launcher and library belong to different MPIs
	ThreadLevel        Code = 7  // MPI was initialised below THREAD_MULTIPLE
	Timeout            Code = 8  // a deadline has passed; Ranks never came
	Interrupted        Code = 9  // a signal handler of the caller ended the wait
	Mismatch           Code = 10 // the ranks called different things; Ranks are those that differ
	Refused            Code = 11 // Ranks refused their part of the collective
	PeerLeft           Code = 12 // Ranks have left while others wait for them
	GroupBroken        Code = 13 // an earlier operation of the group ended half way
	GroupDestroyed     Code = 14 // the group was destroyed
	MPI                Code = 15 // an error of MPI; MPIClass holds its class
	Truncate           Code = 16 // a message and its buffer differ in length
	ProcFailed         Code = 17 // MPI reports a dead process
	Revoked            Code = 18 // the communicator was revoked
	Forked             Code = 19 // this process is a fork of the one that loaded the core
	Panic              Code = 20 // a defect of the core, which takes no more calls
	Unsupported        Code = 21 // not available on this machine or in this MPI, for instance device memory
	NoMemory           Code = 22 // an allocation failed
	NotReady           Code = 23 // the limit of a wait has passed; the work goes on
	NotMember          Code = 24 // this rank is not a member of the group
	Cuda               Code = 25 // the CUDA driver refused
	Reentrant          Code = 26 // a signal handler called an operation for which its own thread waits
	PeerDied           Code = 27 // Ranks have died: their processes ended without leaving
)

// Pages is the address of the documents, for errors that name one: a user has no docs/ beside the
// package. [project.urls] in pyproject.toml and paddlempi._pages have the same.
const Pages = "https://github.com/paddlempi/paddlempi/blob/main/docs"

// Error is the only type of error that leaves the core.
type Error struct {
	Code     Code
	MPIClass int   // MPI error class, 0 unless Code is MPI, Truncate, ProcFailed or Revoked
	Ranks    []int // world ranks concerned: those that are missing, differ, refused or left
	Msg      string
}

func (e *Error) Error() string { return e.Msg }

// ASCII returns the text of another process as it may be shown, on one line: with question marks for what is not printable
// ASCII.
func ASCII(text string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, text)
}

// Is makes errors.Is(err, &Error{Code: c}) compare codes.
func (e *Error) Is(target error) bool {
	var t *Error
	return errors.As(target, &t) && t.Code == e.Code
}

// New makes an error of code c.
func New(c Code, format string, args ...any) *Error {
	return &Error{Code: c, Msg: fmt.Sprintf(format, args...)}
}

// WithRanks sets the world ranks concerned and returns e.
func (e *Error) WithRanks(ranks ...int) *Error {
	e.Ranks = ranks
	return e
}

// CodeOf returns the code of err, OK for nil, and Panic for an error that is not an *Error.
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

// Brief formats a list of ranks, shortened if it is long.
func Brief(ranks []int) string {
	const show = 16
	if len(ranks) <= show {
		return fmt.Sprint(ranks)
	}
	return fmt.Sprintf("%v and %d more", ranks[:show], len(ranks)-show)
}

// Package threads has the threads of a rank that help with long copies and sums. The comment of pool.h says how a call
// hands work out to them, and why they see no memory of a call that has ended.
package threads

/*
#cgo CFLAGS: -std=c11 -O2
#include "pool.h"
static pt_spreader pt_spread_address(void) { return pt_spread; }
*/
import "C"

import (
	"strconv"
	"sync/atomic"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/dl"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// Variable is the environment variable that says how many threads of a rank work on a collective.
const Variable = "PADDLEMPI_THREADS"

// Most is the most that it can say.
const Most = C.PT_MOST

const (
	// Least is the length in bytes of a call from which on threads help. To wake one up takes as long as a copy of 64 KiB.
	Least = 256 << 10
	// perThread is how many bytes of a call there are for each thread, or more.
	perThread = 128 << 10
	// usual is the most threads of a rank that does not say how many: a few draw all that the memory of a node gives.
	usual = 8
)

// count is how many threads of this rank work on a collective, its caller included.
var count atomic.Int32

func init() { count.Store(1) }

// Setting reads Variable; 0: it is not set.
func Setting() (int, error) {
	text, _ := dl.Getenv(Variable)
	if text == "" {
		return 0, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > Most {
		return 0, status.New(status.Argument, "init: %s=%s is no number of threads from 1 to %d; 1: no thread helps", Variable, text, Most)
	}
	return n, nil
}

// Usual returns how many threads a rank has that does not say so: half of its CPUs. So many ranks share cpus CPUs, and so many a quota
// of CPUs. The other half is left to the program: its own threads still spin when it calls a collective.
func Usual(cpus, ranks int, quota float64, sharing int) int {
	half := min(float64(cpus)/float64(ranks), quota/float64(sharing)) / 2
	return max(1, int(min(half, usual)))
}

// CPUs returns on how many CPUs this rank may run, as its calling thread shows.
func CPUs() int { return int(C.pt_cpus()) }

// Use says how many threads of this rank work on a collective from now on. exact says that there are so many also if the rank has fewer CPUs.
func Use(n int, exact bool) {
	keep := C.int(1)
	if exact {
		keep = 0
	}
	C.pt_keep_to_cpus(keep)
	count.Store(int32(n))
}

// Count returns how many threads of this rank work on a collective.
func Count() int { return int(count.Load()) }

// For returns how many threads work on a call of so many bytes.
func For(bytes int64) int {
	if bytes < Least {
		return 1
	}
	return int(min(int64(count.Load()), bytes/perThread))
}

// Copy copies n bytes on as many threads as work on a collective. The two do not overlap.
func Copy(to, from unsafe.Pointer, n int64) {
	C.pt_copy(to, from, C.int64_t(n), C.int(count.Load()))
}

// Spreader is the address of the C function that runs a share of work on several threads: a pt_spreader of pool.h.
func Spreader() unsafe.Pointer { return unsafe.Pointer(C.pt_spread_address()) }

package control

import (
	"time"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/threads"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// setThreads says how many threads of this rank work on a long collective from now on, and returns how many did before. It is for
// measurements: a job says it by PADDLEMPI_THREADS.
func setThreads(r struct{ Count int }, _ work.Interrupt) (any, error) {
	if r.Count < 1 || r.Count > threads.Most {
		return nil, status.New(status.Argument, "threads: count=%d is no number of threads from 1 to %d", r.Count, threads.Most)
	}
	before := threads.Count()
	threads.Use(r.Count, true)
	return map[string]any{"before": before}, nil
}

// timeCopies copies memory so many times with these threads, and returns how long each copy took.
func timeCopies(r struct {
	memory
	To    uint64
	Times int
}, _ work.Interrupt) (any, error) {
	if r.Bytes < 1 || r.Times < 1 {
		return nil, status.New(status.Argument, "time_copies: bytes=%d, times=%d: both are above 0", r.Bytes, r.Times)
	}
	to := *(*unsafe.Pointer)(unsafe.Pointer(&r.To))
	took := make([]int64, r.Times)
	for i := range took {
		began := time.Now()
		threads.Copy(to, r.at(), r.Bytes)
		took[i] = time.Since(began).Nanoseconds()
	}
	return map[string]any{"ns": took}, nil
}

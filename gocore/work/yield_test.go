package work

import (
	"math/bits"
	"runtime"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Two threads on one CPU that wait for each other in turn get to know that they share it.
func TestAThreadKnowsThatItSharesItsCore(t *testing.T) {
	var one [16]uint64 // CPUs
	_, _, errno := syscall.Syscall(syscall.SYS_SCHED_GETAFFINITY, 0, unsafe.Sizeof(one), uintptr(unsafe.Pointer(&one)))
	require.Zero(t, errno)
	for i, found := 0, false; i < len(one); i++ { // the first that is allowed stays
		if found {
			one[i] = 0
		} else if one[i] != 0 {
			one[i], found = 1<<bits.TrailingZeros64(one[i]), true
		}
	}
	var turn atomic.Int64
	var known [2]atomic.Bool
	end := time.Now().Add(30 * time.Second)
	over := func() bool { return known[0].Load() && known[1].Load() || time.Now().After(end) }
	done := make(chan struct{})
	for me := range int64(2) {
		go func() {
			runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
			defer func() { done <- struct{}{} }()
			_, _, errno := syscall.Syscall(syscall.SYS_SCHED_SETAFFINITY, 0, unsafe.Sizeof(one), uintptr(unsafe.Pointer(&one)))
			assert.Zero(t, errno)
			for !over() {
				for looks := int64(1); turn.Load()%2 != me && !over(); looks++ {
					SpinYield(looks, 256)
				}
				if SharesCore() {
					known[me].Store(true)
				}
				turn.Add(1)
			}
		}()
	}
	<-done
	<-done
	assert.True(t, known[0].Load())
	assert.True(t, known[1].Load())
}

package link

import (
	"math"
	"syscall"
	"time"
	"unsafe"
)

// futex(2) on memory that processes share, so not its private form.
const (
	futexWait = 0
	futexWake = 1
)

// sleepOn sleeps for d at most, unless the word is no longer as seen, or until wake. It may return
// early.
func sleepOn(word *uint32, seen uint32, d time.Duration) {
	t := syscall.NsecToTimespec(max(d, 0).Nanoseconds())
	_, _, _ = syscall.Syscall6(syscall.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexWait, uintptr(seen), uintptr(unsafe.Pointer(&t)), 0, 0)
}

// wake ends the sleep of all threads that sleep on the word. The caller has changed it.
func wake(word *uint32) {
	_, _, _ = syscall.RawSyscall6(syscall.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexWake, math.MaxInt32, 0, 0, 0)
}

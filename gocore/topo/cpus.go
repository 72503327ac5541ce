package topo

import (
	"math/bits"
	"syscall"
	"unsafe"
)

// cpuWords is the length of an affinity mask. It holds 1024 CPUs, which is the kernel's limit for
// the plain form of the system call.
const cpuWords = 16

// affinity returns the CPUs on which this process may run (sched_getaffinity(2)), as a bit mask.
// The machine may have more, because a launcher usually binds a rank to one core.
func affinity() (mask [cpuWords]uint64) {
	_, _, errno := syscall.RawSyscall(syscall.SYS_SCHED_GETAFFINITY, uintptr(syscall.Getpid()), unsafe.Sizeof(mask), uintptr(unsafe.Pointer(&mask)))
	if errno != 0 {
		mask[0] = 1
	}
	return mask
}

func count(mask []uint64) (n int) {
	for _, w := range mask {
		n += bits.OnesCount64(w)
	}
	return n
}

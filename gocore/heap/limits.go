package heap

import (
	"math"
	"syscall"

	"github.com/paddlempi/paddlempi/gocore/cgroup"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// rlimits that a growing file meets. Beyond RLIMIT_FSIZE the kernel sends SIGXFSZ, beyond a cgroup's
// memory it kills the process. Neither is an error that could be returned, so both are looked at
// before memory is reserved.
const rlimitFSize = 1

// claim calls take, which takes size more bytes in a file that is end bytes long afterwards, or says why they cannot be
// had. Other processes that claim from the same cgroup meanwhile wait.
func claim(size, end int64, take func() error) error {
	var r syscall.Rlimit
	if err := syscall.Getrlimit(rlimitFSize, &r); err == nil && uint64(end) > r.Cur {
		return status.New(status.NoMemory, "a heap of %d bytes is more than the limit for files of this process (ulimit -f: %d bytes)", end, r.Cur)
	}
	defer cgroup.Lock(size)()
	if left, where := cgroup.MemoryLeft(); size > left {
		return status.New(status.NoMemory, "%d more bytes of shared memory are more than the %d that the cgroup %s has left", size, left, where)
	}
	return take()
}

// Left returns how many bytes a heap that holds `reserved` bytes may still grow by the limits of this
// process and its cgroups. limited is false if there is no limit.
func Left(reserved int64) (left int64, limited bool) {
	left, _ = cgroup.MemoryLeft()
	var r syscall.Rlimit
	if err := syscall.Getrlimit(rlimitFSize, &r); err == nil && r.Cur < math.MaxInt64 {
		left = min(left, max(0, int64(r.Cur)-reserved))
	}
	if err := syscall.Getrlimit(syscall.RLIMIT_AS, &r); err == nil && r.Cur < math.MaxInt64 {
		left = min(left, max(0, int64(r.Cur)-reserved))
	}
	return left, left < math.MaxInt64
}

package heap

import (
	"bufio"
	"math"
	"os"
	"path"
	"strconv"
	"strings"
	"syscall"

	"github.com/paddlempi/paddlempi/gocore/status"
)

// rlimits that a growing file meets. Beyond RLIMIT_FSIZE the kernel sends SIGXFSZ, beyond a cgroup's
// memory it kills the process. Neither is an error that could be returned, so both are looked at
// before memory is reserved.
const rlimitFSize = 1

// limits says why size more bytes, in a file that is end bytes long afterwards, cannot be had.
func limits(size, end int64) error {
	var r syscall.Rlimit
	if err := syscall.Getrlimit(rlimitFSize, &r); err == nil && uint64(end) > r.Cur {
		return status.New(status.NoMemory, "a heap of %d bytes is more than the limit for files of this process (ulimit -f: %d bytes)", end, r.Cur)
	}
	if left, where := cgroupLeft("/proc/self/cgroup", "/sys/fs/cgroup"); size > left {
		return status.New(status.NoMemory, "%d more bytes of shared memory are more than the %d that the cgroup %s has left", size, left, where)
	}
	return nil
}

// Left returns how many bytes a heap that holds `reserved` bytes may still grow by the limits of this
// process and its cgroups. limited is false if there is no limit.
func Left(reserved int64) (left int64, limited bool) {
	left, _ = cgroupLeft("/proc/self/cgroup", "/sys/fs/cgroup")
	var r syscall.Rlimit
	if err := syscall.Getrlimit(rlimitFSize, &r); err == nil && r.Cur < math.MaxInt64 {
		left = min(left, max(0, int64(r.Cur)-reserved))
	}
	if err := syscall.Getrlimit(syscall.RLIMIT_AS, &r); err == nil && r.Cur < math.MaxInt64 {
		left = min(left, max(0, int64(r.Cur)-reserved))
	}
	return left, left < math.MaxInt64
}

// cgroupLeft returns how many bytes the cgroups of this process may still take, and the cgroup that
// has the fewest. Version 2 and version 1 (memory controller) are known; a cgroup without a limit,
// and one that cannot be read, have no end.
func cgroupLeft(proc, root string) (left int64, where string) {
	left = math.MaxInt64
	file, err := os.Open(proc)
	if err != nil {
		return left, ""
	}
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		// hierarchy:controllers:path; version 2 has the hierarchy 0 and no controllers.
		parts := strings.SplitN(lines.Text(), ":", 3)
		if len(parts) != 3 {
			continue
		}
		folder, most, now := root, "memory.max", "memory.current"
		switch {
		case parts[0] == "0" && parts[1] == "":
		case strings.Contains(","+parts[1]+",", ",memory,"):
			folder, most, now = path.Join(root, "memory"), "memory.limit_in_bytes", "memory.usage_in_bytes"
		default:
			continue
		}
		// A limit of a cgroup above holds as well.
		for at := path.Clean("/" + parts[2]); ; at = path.Dir(at) {
			limit, ok := readBytes(path.Join(folder, at, most))
			used, ok2 := readBytes(path.Join(folder, at, now))
			if ok && ok2 && limit < unlimited && max(0, limit-used) < left {
				left, where = max(0, limit-used), at
			}
			if at == "/" {
				break
			}
		}
	}
	return left, where
}

// unlimited is less than what version 1 shows for "no limit": the last page of an int64.
const unlimited = 1 << 62

// readBytes reads a number of bytes. ok is false if there is none, or the word max.
func readBytes(name string) (n int64, ok bool) {
	text, err := os.ReadFile(name)
	if err != nil {
		return 0, false
	}
	n, err = strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	return n, err == nil
}

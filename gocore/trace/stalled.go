package trace

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/paddlempi/paddlempi/gocore/process"
)

// A process that is stalled lives, but does not go on. The kernel says so of its first thread, in which
// Python programs call what takes long.

// stallLook is the time between two looks at a process. One that gets no CPU for so long is stalled:
// the scheduler gives every process that is ready a turn long before.
const stallLook = 300 * time.Millisecond

// Stalled says why a process of this host does not go on, "" if it does or if that cannot be known. It
// takes up to stallLook.
func Stalled(pid int) string {
	first, _ := process.Read(processes, pid)
	switch {
	case first.State == 'T':
		return "is stopped by a signal"
	case first.State == 't':
		return "is stopped by a debugger"
	case frozen(pid):
		return "is in a cgroup that is frozen"
	case first.State != 'D' && first.State != 'R':
		return ""
	}
	ran := schedule(pid)
	time.Sleep(stallLook)
	switch last, _ := process.Read(processes, pid); {
	case last.State != first.State || ran == "" || schedule(pid) != ran:
		return ""
	case first.State == 'D':
		return "waits in the kernel, for a disk, a network file system or swapped memory"
	}
	return "is ready to run and gets no CPU"
}

// Where the kernel tells of processes and cgroups. Tests have folders of their own.
var processes, cgroups = process.Folder, "/sys/fs/cgroup"

func processFile(pid int, name string) string {
	return filepath.Join(processes, strconv.Itoa(pid), name)
}

// schedule returns how long the first thread of a process has run, and how often: it changes whenever
// the thread gets a CPU. It is "" if the kernel does not say.
func schedule(pid int) string {
	b, _ := os.ReadFile(processFile(pid, "schedstat"))
	fields := strings.Fields(string(b)) // nanoseconds on a CPU, nanoseconds in a queue, turns
	if len(fields) != 3 {
		return ""
	}
	return fields[0] + " " + fields[2]
}

// frozen tells whether the cgroup of a process is frozen (docker pause, systemctl freeze).
func frozen(pid int) bool {
	b, _ := os.ReadFile(processFile(pid, "cgroup"))
	for _, line := range strings.Split(string(b), "\n") {
		if path, ok := strings.CutPrefix(line, "0::"); ok {
			events, _ := os.ReadFile(filepath.Join(cgroups, path, "cgroup.events"))
			return strings.Contains(string(events), "frozen 1")
		}
	}
	return false
}

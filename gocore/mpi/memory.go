package mpi

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/paddlempi/paddlempi/gocore/status"
)

// An MPI takes memory when it starts, and some crash where there is too little. So it is looked at
// before. What they take was measured: it is not documented.

const mib = 1 << 20

// startsWith is how much address space an MPI needs to start, beyond that of its code: Intel's maps its
// heap for shared memory at once.
func startsWith(lib Info) int64 {
	if lib.Name == "Intel MPI" {
		return 2250 * mib
	}
	return 256 * mib
}

// sharesWith is how much of /dev/shm an MPI needs to start with so many ranks on a host, 0 if it does
// with less. Open MPI does: it then uses other ways.
func sharesWith(lib Info, ranks int64, ucx bool) int64 {
	switch {
	case lib.Name == "Intel MPI":
		return ranks*3*mib/2 + mib
	case (lib.Name == "MPICH" || lib.Name == "MVAPICH") && ucx:
		return max(28*mib, ranks*52*mib/10) // few ranks take more for a moment
	case lib.Name == "MPICH" || lib.Name == "MVAPICH":
		return ranks * 11 * mib / 10
	}
	return 0
}

// checkAddresses returns an error if this process may not map what the library needs to start.
func checkAddresses(lib Info) error {
	left, limit := addressSpace()
	if left >= startsWith(lib) {
		return nil
	}
	return status.New(status.NoMemory, "%s needs %d MiB of address space to start, and the limit of this process (ulimit -v: %d MiB) leaves %d MiB: "+
		"raise the limit (ulimit -v unlimited, or what the batch system calls virtual memory)", lib.Name, startsWith(lib)/mib, limit/mib, left/mib)
}

// addressSpace returns how many bytes this process may still map, and its limit.
func addressSpace() (left, limit int64) {
	var r syscall.Rlimit
	const none = int64(^uint64(0) >> 1)
	if err := syscall.Getrlimit(syscall.RLIMIT_AS, &r); err != nil || r.Cur > uint64(none) {
		return none, none
	}
	text, err := os.ReadFile("/proc/self/statm")
	fields := strings.Fields(string(text))
	if err != nil || len(fields) == 0 {
		return none, none
	}
	pages, err := strconv.ParseInt(fields[0], 10, 64)
	if err != nil {
		return none, none
	}
	return max(0, int64(r.Cur)-pages*int64(os.Getpagesize())), int64(r.Cur)
}

// checkShared returns an error if /dev/shm has not the room with which the library starts on the ranks of
// this host, which l knows. ucx says whether the library is linked with UCX, and room how much there is, if that is known.
func (s *system) checkShared(lib Info, l LauncherInfo, ucx bool, room func() (int64, bool)) error {
	if l.LocalSize < 2 {
		return nil
	}
	ucx = ucx && s.sharesByUCX()
	need := sharesWith(lib, int64(l.LocalSize), ucx)
	has, ok := room()
	if !ok || has >= need {
		return nil
	}
	more := ""
	if ucx {
		more = ", or set UCX_TLS=^posix"
	}
	return status.New(status.NoMemory, "%s needs %d MiB of /dev/shm for the %d ranks of this host, or it may crash when it starts, and there is room for %d MiB: "+
		"make it larger (docker run --shm-size=1g, or mount -o remount,size=1g /dev/shm)%s", lib.Name, (need+mib-1)/mib, l.LocalSize, has/mib, more)
}

// sharesByUCX tells whether UCX may take files in /dev/shm (UCX_TLS).
func (s *system) sharesByUCX() bool {
	value, set := s.env("UCX_TLS")
	list, without := strings.CutPrefix(value, "^")
	names := strings.Split(list, ",")
	takes := slices.ContainsFunc([]string{"posix", "mm", "sm", "shm"}, func(name string) bool { return slices.Contains(names, name) })
	switch {
	case !set || value == "":
		return true
	case without:
		return !takes
	}
	return takes || slices.Contains(names, "all")
}

// sharedMemory returns how many bytes /dev/shm has for the ranks of this host, of which some may have
// begun to start MPI: it counts neither files without a name nor those of MPICH. ok is false if that is
// unknown.
func sharedMemory() (room int64, ok bool) {
	const folder = "/dev/shm"
	var fs syscall.Statfs_t
	if err := syscall.Statfs(folder, &fs); err != nil || fs.Blocks == 0 { // 0: it has no limit
		return 0, false
	}
	room = int64(fs.Blocks) * fs.Bsize
	files, err := os.ReadDir(folder)
	if err != nil {
		return 0, false
	}
	for _, f := range files {
		var st syscall.Stat_t
		if err := syscall.Lstat(folder+"/"+f.Name(), &st); err == nil && !strings.HasPrefix(f.Name(), "mpich_shm_") {
			room -= st.Blocks * 512
		}
	}
	return max(0, room), true
}

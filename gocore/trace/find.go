package trace

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/paddlempi/paddlempi/gocore/process"
)

// How a Collector finds rings that are new. What a process has open is much to read, so it is read when the number of its descriptors has
// changed (Linux >= 6.2 tells it by the size of /proc/PID/fd), and now and then all the same. Whether a process is one of those that
// are asked for is found out once.

const (
	// The longer no ring is new, the rarer are the looks: after a time, one comes when another such part of it has passed.
	lookPart = 50
	lookMost = time.Second
	// A look takes at most one in so many parts of the time.
	lookShare = 100
	// After so long a process is looked at again, whatever the number of its descriptors is.
	lookAgain = 5 * time.Second
)

// candidate is a process that may have a ring.
type candidate struct {
	asked  bool  // it is one of those that are asked for
	open   int64 // how many descriptors it had
	looked time.Time
}

// finder looks for rings.
type finder struct {
	which      Which
	candidates map[int]*candidate
	looked     time.Time
	took       time.Duration
}

// due tells whether it is time for another look. since is when the last new ring was found, or the recording began.
func (f *finder) due(since time.Time) bool {
	pause := min(f.looked.Sub(since)/lookPart, lookMost)
	return time.Since(f.looked) >= max(pause, lookShare*f.took)
}

// look calls found with each process that may have a new ring, the descriptors that may be rings, and why they cannot be seen.
func (f *finder) look(found func(pid int, files []ringFile, err error)) {
	f.looked = time.Now()
	pids := f.which.PIDs
	if pids == nil {
		pids = allProcesses()
	}
	now := make(map[int]*candidate, len(pids))
	for _, pid := range pids {
		c := f.candidates[pid]
		if c == nil {
			c = &candidate{asked: f.asks(pid)}
		}
		now[pid] = c
		if !c.asked {
			continue
		}
		folder := fmt.Sprintf("%s/%d/fd", process.Folder, pid)
		var st syscall.Stat_t
		_ = syscall.Stat(folder, &st)
		if st.Size > 0 && st.Size == c.open && f.looked.Sub(c.looked) < lookAgain {
			continue
		}
		c.open, c.looked = st.Size, f.looked
		files, err := ringsOf(folder)
		if errors.Is(err, fs.ErrPermission) && f.which.PIDs == nil {
			c.asked = false
			continue
		}
		found(pid, files, err)
	}
	if f.candidates != nil { // the first look finds out more
		f.took = time.Since(f.looked)
	}
	f.candidates = now
}

// asks tells whether a process is one of those that are asked for. Threads of the kernel, which its thread 2 starts, are not.
func (f *finder) asks(pid int) bool {
	const kernel, deepest = 2, 100
	if f.which.PIDs != nil && f.which.Ancestor == 0 {
		return true
	}
	for range deepest {
		p, err := process.Read(processes, pid)
		if err != nil || p.Parent == kernel {
			return false
		}
		if f.which.Ancestor == 0 || p.Parent == f.which.Ancestor {
			return true
		}
		if pid = p.Parent; pid <= 1 {
			return false
		}
	}
	return false
}

// ringFile is a descriptor of a process that may be a ring.
type ringFile struct {
	fd    int
	inode uint64
}

// ringsOf returns those in /proc/PID/fd.
func ringsOf(folder string) (files []ringFile, err error) {
	list, err := os.ReadDir(folder)
	for _, item := range list {
		path := filepath.Join(folder, item.Name())
		if link, err := os.Readlink(path); err != nil || link != linkName {
			continue
		}
		fd, err := strconv.Atoi(item.Name())
		if err != nil {
			continue
		}
		var st syscall.Stat_t
		if syscall.Stat(path, &st) == nil {
			files = append(files, ringFile{fd, st.Ino})
		}
	}
	return files, err
}

// allProcesses returns the processes of this host.
func allProcesses() (pids []int) {
	f, err := os.Open(process.Folder)
	if err != nil {
		return nil
	}
	defer f.Close()
	names, _ := f.Readdirnames(-1)
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

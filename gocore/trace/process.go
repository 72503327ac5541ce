package trace

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/paddlempi/paddlempi/gocore/process"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// linkName is what /proc/PID/fd shows for the file of a ring.
const linkName = "/memfd:" + fileName + " (deleted)"

// ReadProcess reads the ring of a process of this host through /proc. The process does not take part:
// it may be stopped. It is an error if the process has no ring, or if this process may not look.
func ReadProcess(pid int) (*Snapshot, error) {
	folder := fmt.Sprintf("/proc/%d/fd", pid)
	list, err := os.ReadDir(folder)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, status.New(status.Argument, "there is no process %d", pid)
	case errors.Is(err, fs.ErrPermission):
		return nil, status.New(status.Unsupported, "the files of process %d belong to another user; run this as that user or as root", pid)
	case err != nil:
		return nil, status.New(status.Unsupported, "cannot look at the files of process %d: %v", pid, err)
	}
	own := innerPID(pid)
	var newest *Snapshot
	var why error
	for _, entry := range list {
		path := filepath.Join(folder, entry.Name())
		if link, err := os.Readlink(path); err != nil || link != linkName {
			continue
		}
		s, err := readPath(path)
		switch {
		case err != nil:
			why = status.New(status.CodeOf(err), "process %d: %v", pid, err)
		case s.PID != own: // of its parent, before it was forked, or of another rank of its node
		case newest == nil || s.Began > newest.Began:
			newest = s
		}
	}
	if newest == nil {
		if why == nil {
			why = status.New(status.Argument, "process %d has no trace: it has not called init_process_group", pid)
		}
		return nil, why
	}
	newest.State = State(pid)
	return newest, nil
}

func readPath(path string) (*Snapshot, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, status.New(status.Unsupported, "cannot open %s: %v", path, err)
	}
	defer f.Close()
	return Read(f)
}

// Processes returns the processes of this host that have a ring, and whose files this process may see.
func Processes() []int {
	var pids []int
	folders, _ := filepath.Glob("/proc/[0-9]*/fd")
	for _, folder := range folders {
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(folder)))
		if err != nil {
			continue
		}
		if s, err := ReadProcess(pid); err == nil && s != nil {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	return pids
}

// innerPID returns the number that a process has for itself, which differs if it is in a PID namespace
// of its own. It returns -1 if that cannot be found out.
func innerPID(pid int) int64 {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for _, line := range strings.Split(string(b), "\n") {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] == "NSpid:" {
			if inner, err := strconv.ParseInt(fields[len(fields)-1], 10, 64); err == nil {
				return inner
			}
		}
	}
	return -1
}

// State returns "running", "stopped" (by a signal or a debugger) or "ended" for a process of this host.
func State(pid int) string {
	switch p, err := process.Read(processes, pid); {
	case p.Stopped():
		return "stopped"
	case p.Ended(), err != nil:
		return "ended"
	}
	return "running"
}

// FileName returns the name of the file that Write writes.
func (s *Snapshot) FileName() string { return fmt.Sprintf("rank-%d.json", s.Rank) }

// Write writes s into a folder, which it makes if need be, and returns the path: FileName in the
// folder. A file of that name is replaced in one step.
func (s *Snapshot) Write(folder string) (string, error) {
	path := filepath.Join(folder, s.FileName())
	staged := filepath.Join(folder, fmt.Sprintf(".rank-%d.%d", s.Rank, os.Getpid()))
	b, err := json.Marshal(s)
	if err == nil {
		err = os.MkdirAll(folder, 0o777)
	}
	if err == nil {
		err = os.WriteFile(staged, append(b, '\n'), 0o666)
	}
	if err == nil {
		err = os.Rename(staged, path)
	}
	if err != nil {
		_ = os.Remove(staged)
		return "", status.New(status.Argument, "cannot write the trace of rank %d: %v", s.Rank, err)
	}
	return path, nil
}

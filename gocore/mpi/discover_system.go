package mpi

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/paddlempi/paddlempi/gocore/dl"
	"github.com/paddlempi/paddlempi/gocore/launcher"
	kernel "github.com/paddlempi/paddlempi/gocore/process"
)

// system is what discovery and the launcher check see of the machine. Tests pass a directory tree
// that they have made.
type system struct {
	root       string // prefix of every path that is read; "" except in tests
	pid        int
	env        func(name string) (string, bool)
	setDefault func(name, value string) bool // sets a variable unless it is set; returns whether it did
	unset      func(name string)
	mapped     func() ([]string, error)            // the files that this process has mapped as executable
	load       func(soname string) (string, error) // asks the dynamic loader and returns the file that it has loaded
}

func host() *system {
	return &system{
		pid:        os.Getpid(),
		env:        dl.Getenv,
		setDefault: dl.SetenvDefault,
		unset:      dl.Unsetenv,
		mapped:     dl.Files,
		load: func(soname string) (string, error) {
			quietUCX()
			l, err := dl.Open(soname, dl.Now|dl.Local)
			if err != nil {
				return "", err
			}
			return l.Path(), nil
		},
	}
}

// quietUCX keeps UCX from handling SIGSEGV, because Go turns this signal into nil-pointer panics.
// UCX reads the variable in a constructor.
func quietUCX() { dl.SetenvDefault("UCX_ERROR_SIGNALS", "") }

// get returns a variable, or "" if it is not set.
func (s *system) get(name string) string {
	v, _ := s.env(name)
	return v
}

// number returns a variable as a number, or false if it is not set or no number.
func (s *system) number(name string) (int, bool) {
	n, err := strconv.Atoi(strings.TrimSpace(s.get(name)))
	return n, err == nil
}

// file tells whether there is a file at path that is not a directory.
func (s *system) file(path string) bool {
	st, err := os.Stat(filepath.Join(s.root, path))
	return err == nil && !st.IsDir()
}

func (s *system) dir(path string) bool {
	st, err := os.Stat(filepath.Join(s.root, path))
	return err == nil && st.IsDir()
}

// library returns the library that a linker script at path names; wheels have a script as
// libmpi.so. Of any other file it returns the path.
func (s *system) library(path string) string {
	f, err := os.Open(filepath.Join(s.root, path))
	if err != nil {
		return path
	}
	defer f.Close()
	head := make([]byte, 512)
	n, _ := f.Read(head)
	head = head[:n]
	if bytes.HasPrefix(head, []byte("\x7fELF")) {
		return path
	}
	for _, word := range []string{"INPUT", "GROUP"} {
		_, rest, ok := strings.Cut(string(head), word)
		if !ok {
			continue
		}
		rest, _, ok = strings.Cut(strings.TrimLeft(rest, " \t\n"), ")")
		names := strings.Fields(strings.TrimPrefix(rest, "("))
		if !ok || len(names) == 0 {
			continue
		}
		if filepath.IsAbs(names[0]) {
			return names[0]
		}
		return filepath.Join(filepath.Dir(path), names[0])
	}
	return path
}

// process is a parent of this process, or a parent's parent, and so on.
type process struct {
	pid  int
	name string // of the executable, without directory
	path string // "" if this user may not read it, as for slurmstepd unless the user is root
}

// maxParents bounds the walk, so that strange data in /proc cannot make it endless.
const maxParents = 256

// parents returns the parents of this process that /proc shows, the nearest one first.
func (s *system) parents() []process {
	var out []process
	folder := filepath.Join(s.root, kernel.Folder)
	this, _ := kernel.Read(folder, s.pid)
	for pid := this.Parent; pid > 0 && len(out) < maxParents; {
		seen, err := kernel.Read(folder, pid)
		if err != nil {
			break
		}
		p := process{pid: pid, name: seen.Name}
		if exe, err := os.Readlink(filepath.Join(s.root, "/proc", strconv.Itoa(pid), "exe")); err == nil {
			p.path = strings.TrimSuffix(exe, " (deleted)")
			// Debian's slurmstepd is a link to slurmstepd-wlm. The kernel shows the name under
			// which it was started, and only that name is the launcher's.
			if file := filepath.Base(p.path); launcher.ByProcess(file) != nil || launcher.ByProcess(p.name) == nil {
				p.name = file
			}
		}
		out = append(out, p)
		pid = seen.Parent
	}
	return out
}

// cpus returns the number of CPUs that a process may run on, or 0 if that cannot be read.
func (s *system) cpus(pid int) int {
	b, err := os.ReadFile(filepath.Join(s.root, "/proc", strconv.Itoa(pid), "status"))
	if err != nil {
		return 0
	}
	_, rest, ok := strings.Cut(string(b), "\nCpus_allowed_list:")
	if !ok {
		return 0
	}
	list, _, _ := strings.Cut(rest, "\n")
	count := 0
	for _, part := range strings.Split(strings.TrimSpace(list), ",") {
		first, last, isRange := strings.Cut(part, "-")
		a, err := strconv.Atoi(first)
		if err != nil {
			return 0
		}
		b := a
		if isRange {
			if b, err = strconv.Atoi(last); err != nil || b < a {
				return 0
			}
		}
		count += b - a + 1
	}
	return count
}

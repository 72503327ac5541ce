package mpi

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/paddlempi/paddlempi/gocore/dl"
	"github.com/paddlempi/paddlempi/gocore/launcher"
)

// system is what discovery and the launcher check see of the machine. Tests give
// a tree of their own.
type system struct {
	root       string // "" but in tests: before every path that is read
	pid        int
	env        func(name string) (string, bool)
	setDefault func(name, value string) bool // sets a variable unless it is set
	unset      func(name string)
	mapped     func() ([]string, error)            // the files mapped executable into this process
	load       func(soname string) (string, error) // asks the dynamic loader; returns the file it took
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

// quietUCX keeps UCX from taking over SIGSEGV, of which Go makes its nil-pointer
// panics. UCX reads the variable in a constructor.
func quietUCX() { dl.SetenvDefault("UCX_ERROR_SIGNALS", "") }

// get returns a variable, "" where it is not set.
func (s *system) get(name string) string {
	v, _ := s.env(name)
	return v
}

// number returns a variable as a number; false where it is none.
func (s *system) number(name string) (int, bool) {
	n, err := strconv.Atoi(strings.TrimSpace(s.get(name)))
	return n, err == nil
}

// file tells whether there is a file (not a directory) at path.
func (s *system) file(path string) bool {
	st, err := os.Stat(filepath.Join(s.root, path))
	return err == nil && !st.IsDir()
}

func (s *system) dir(path string) bool {
	st, err := os.Stat(filepath.Join(s.root, path))
	return err == nil && st.IsDir()
}

// library follows a linker script, which is what wheels have for libmpi.so, to
// the library it names; any other file is returned as it is.
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

// process is one of our parents.
type process struct {
	pid  int
	name string // of the executable, without directory
	path string // "" where it may not be read, as slurmstepd's by others than root
}

// maxParents bounds the walk: the data is the kernel's, but not the loop's to trust.
const maxParents = 256

// parents returns the parents of this process, nearest first, as far as /proc
// shows them.
func (s *system) parents() []process {
	var out []process
	_, pid := s.stat(s.pid)
	for i := 0; pid > 0 && i < maxParents; i++ {
		name, parent := s.stat(pid)
		if name == "" {
			break
		}
		p := process{pid: pid, name: name}
		if exe, err := os.Readlink(filepath.Join(s.root, "/proc", strconv.Itoa(pid), "exe")); err == nil {
			p.path = strings.TrimSuffix(exe, " (deleted)")
			// Debian's slurmstepd is a link to slurmstepd-wlm: then the name that the
			// kernel shows, by which it was started, says more than the file's.
			if file := filepath.Base(p.path); launcher.ByProcess(file) != nil || launcher.ByProcess(name) == nil {
				p.name = file
			}
		}
		out = append(out, p)
		pid = parent
	}
	return out
}

// stat returns the name (cut by the kernel to 15 bytes) and the parent of a
// process, "" and 0 where there is none to be seen.
func (s *system) stat(pid int) (name string, parent int) {
	b, err := os.ReadFile(filepath.Join(s.root, "/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return "", 0
	}
	// pid (name) state parent ...: the name may hold spaces and parentheses.
	open, end := bytes.IndexByte(b, '('), bytes.LastIndexByte(b, ')')
	if open < 0 || end < open {
		return "", 0
	}
	fields := strings.Fields(string(b[end+1:]))
	if len(fields) > 1 {
		parent, _ = strconv.Atoi(fields[1])
	}
	return string(b[open+1 : end]), parent
}

// cpus counts the CPUs that a process may run on, 0 where that cannot be read.
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

package mpi

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/paddlempi/paddlempi/gocore/launcher"
)

// LauncherInfo says who started this process, as far as /proc and the variables
// of that launcher tell.
type LauncherInfo struct {
	Name      string `json:"name"`       // "prterun", "hydra_pmi_proxy", "slurmstepd" ...; "" where none is to be seen
	Kind      string `json:"kind"`       // "openmpi", "hydra", "slurm"; "" likewise
	Path      string `json:"path"`       // its executable; "" where it may not be read
	PID       int    `json:"pid"`        // 0 where none is to be seen
	Mpirun    bool   `json:"mpirun"`     // whether it is the mpirun that the user called, on this host
	MPI       string `json:"mpi"`        // "Open MPI", "MPICH or Intel MPI", "Slurm"
	Size      int    `json:"size"`       // how many processes it started, -1 where it does not say
	Rank      int    `json:"rank"`       // which one this is, -1 likewise
	LocalRank int    `json:"local_rank"` // -1 likewise; for display: topo asks MPI
	LocalSize int    `json:"local_size"` // -1 likewise
	Job       string `json:"job"`        // the same on all its processes, another for each job; "" where it does not say
	Host      string `json:"host"`       // a host that all its processes know by this name: the first one's, or the launcher's; "" likewise

	kind *launcher.Kind // nil where there is none
}

// Launcher returns the launcher of this process: the nearest parent that is one.
func Launcher() LauncherInfo { return host().launcher() }

// HiddenLauncher returns the same, or where no parent is one, what the variables alone tell: a
// container with a PID namespace of its own does not show its launcher. They may be inherited
// from a rank that this process is none of.
func HiddenLauncher() LauncherInfo { return host().hiddenLauncher() }

var noLauncher = LauncherInfo{Size: -1, Rank: -1, LocalRank: -1, LocalSize: -1}

func (s *system) launcher() LauncherInfo {
	for _, p := range s.parents() {
		if k := launcher.ByProcess(p.name); k != nil {
			l := s.numbered(k, p.pid)
			l.Name, l.Path, l.PID, l.Mpirun = p.name, p.path, p.pid, slices.Contains(k.Mpirun, p.name)
			return l
		}
	}
	return noLauncher
}

func (s *system) hiddenLauncher() LauncherInfo {
	if l := s.launcher(); l.Name != "" {
		return l
	}
	for _, k := range launcher.Kinds {
		if l := s.numbered(k, 0); l.Size > 0 && l.Rank >= 0 {
			return l
		}
	}
	return noLauncher
}

// numbered is what the variables of a launcher tell, whose process pid started this one.
func (s *system) numbered(k *launcher.Kind, pid int) LauncherInfo {
	l := noLauncher
	l.Kind, l.MPI, l.kind = k.Name, k.MPI, k
	if _, task := s.env(k.Task); k.Task != "" && !task {
		return l
	}
	l.Size, l.Rank = s.first(k.Size), s.first(k.Rank)
	l.LocalRank, l.LocalSize = s.first(k.LocalRank), s.first(k.LocalSize)
	if k.TasksPerNode != "" {
		l.LocalSize = s.tasksOfThisNode(k)
	}
	l.Job = s.job(k, pid)
	l.Host = s.head(k, l.Job)
	return l
}

// first returns the first of the variables that holds a number, -1 if none does.
func (s *system) first(names []string) int {
	for _, name := range names {
		if n, ok := s.number(name); ok {
			return n
		}
	}
	return -1
}

// tasksOfThisNode finds this node in a list as "2(x3),1". It is -1 where the launcher does not say.
func (s *system) tasksOfThisNode(k *launcher.Kind) int {
	node, ok := s.number(k.Node)
	if !ok {
		return -1
	}
	for _, part := range strings.Split(s.get(k.TasksPerNode), ",") {
		tasks, times, repeated := strings.Cut(part, "(x")
		n, err := strconv.Atoi(tasks)
		if err != nil {
			return -1
		}
		nodes := 1
		if repeated {
			if nodes, err = strconv.Atoi(strings.TrimSuffix(times, ")")); err != nil {
				return -1
			}
		}
		if node < nodes {
			return n
		}
		node -= nodes
	}
	return -1
}

// job is what names the job to all its processes.
func (s *system) job(k *launcher.Kind, pid int) string {
	var parts []string
	for _, name := range k.Job {
		if v := s.get(name); v != "" {
			parts = append(parts, v)
		}
	}
	if len(parts) == 0 && k.JobOption != "" {
		line, _ := os.ReadFile(filepath.Join(s.root, fmt.Sprintf("/proc/%d/cmdline", pid)))
		_, after, _ := bytes.Cut(line, []byte("\x00"+k.JobOption+"\x00"))
		argument, _, _ := bytes.Cut(after, []byte{0})
		return string(argument)
	}
	return strings.Join(parts, ".")
}

// head returns the host that all processes of the job know by the same name, "" where nothing tells.
func (s *system) head(k *launcher.Kind, job string) string {
	for _, h := range k.Head {
		text := job
		if h.Variable != "" {
			text = s.get(h.Variable)
		}
		if found := regexp.MustCompile(h.Pattern).FindStringSubmatch(text); found != nil {
			return strings.Join(found[1:], "")
		}
	}
	return ""
}

// String is "Open MPI's /path/bin/prterun", for messages.
func (l LauncherInfo) String() string {
	switch {
	case l.Name == "":
		return "no launcher"
	case l.Path == "":
		return l.MPI + "'s " + l.Name
	}
	if l.kind.Family == launcher.MPICH {
		return "the Hydra launcher " + l.Path
	}
	return l.MPI + "'s " + l.Path
}

// prefix is where the launcher is installed, "" where that is not known.
func (l LauncherInfo) prefix() string {
	if l.Path == "" {
		return ""
	}
	return filepath.Dir(filepath.Dir(l.Path))
}

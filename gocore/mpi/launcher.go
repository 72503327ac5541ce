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

// LauncherInfo describes the launcher of this process. The facts come from /proc and from the
// launcher's variables.
type LauncherInfo struct {
	Name      string `json:"name"`       // "prterun", "hydra_pmi_proxy", "slurmstepd" ...; "" if no parent is a launcher
	Kind      string `json:"kind"`       // "openmpi", "hydra", "slurm"; "" if there is no launcher
	Path      string `json:"path"`       // its executable; "" if it may not be read
	PID       int    `json:"pid"`        // 0 if no parent is a launcher
	Mpirun    bool   `json:"mpirun"`     // whether it is the mpirun that the user called, on this host
	MPI       string `json:"mpi"`        // "Open MPI", "MPICH or Intel MPI", "Slurm"
	Size      int    `json:"size"`       // the number of processes that it started; -1 if it does not say
	Rank      int    `json:"rank"`       // this process's number; -1 if it does not say
	LocalRank int    `json:"local_rank"` // for display only, topo asks MPI; -1 if it does not say
	LocalSize int    `json:"local_size"` // -1 if it does not say
	Job       string `json:"job"`        // the same on all its processes, another for each job; "" if it does not say
	Host      string `json:"host"`       // a host that all its processes know by this name; "" if it does not say

	kind *launcher.Kind // nil if there is no launcher
}

// Launcher returns the launcher of this process: its nearest parent that is a launcher.
func Launcher() LauncherInfo { return host().launcher() }

// HiddenLauncher is Launcher, but if no parent is a launcher it returns what the variables alone
// tell. A container with a PID namespace of its own hides its launcher. The variables may also be
// inherited from a rank, by a process that is no rank.
func HiddenLauncher() LauncherInfo { return host().hiddenLauncher() }

// Of returns what the launcher's variables tell of another process below it. The result has no rank if the process is not
// of the same job.
func (l LauncherInfo) Of(pid int) (LauncherInfo, error) { return host().placeOf(l, pid) }

func (s *system) placeOf(l LauncherInfo, pid int) (LauncherInfo, error) {
	text, err := os.ReadFile(filepath.Join(s.root, fmt.Sprintf("/proc/%d/environ", pid)))
	if err != nil || l.kind == nil {
		return noLauncher, err
	}
	variables := map[string]string{}
	for _, variable := range strings.Split(string(text), "\x00") {
		name, value, _ := strings.Cut(variable, "=")
		variables[name] = value
	}
	other := *s
	other.env = func(name string) (string, bool) {
		value, set := variables[name]
		return value, set
	}
	found := other.fromVariables(l.kind, l.PID)
	if found.Job != l.Job || found.Size != l.Size {
		return noLauncher, nil
	}
	return found, nil
}

// Spawned tells whether MPI_Comm_spawn has started this process, in a way that leaves it unknown which processes are ranks
// of the same job: MPICH tells those of two jobs the same.
func (l LauncherInfo) Spawned() bool { return host().spawned(l) }

func (s *system) spawned(l LauncherInfo) bool {
	_, spawned := s.env("PMI_SPAWNED")
	return spawned && l.kind != nil && l.kind.Family == launcher.MPICH
}

var noLauncher = LauncherInfo{Size: -1, Rank: -1, LocalRank: -1, LocalSize: -1}

func (s *system) launcher() LauncherInfo {
	for _, p := range s.parents() {
		if k := launcher.ByProcess(p.name); k != nil {
			l := s.fromVariables(k, p.pid)
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
		if l := s.fromVariables(k, 0); l.Size > 0 && l.Rank >= 0 {
			return l
		}
	}
	return noLauncher
}

// fromVariables returns what a launcher's variables tell. pid is the launcher's process.
func (s *system) fromVariables(k *launcher.Kind, pid int) LauncherInfo {
	l := noLauncher
	l.Kind, l.MPI, l.kind = k.Name, k.MPI, k
	if _, task := s.env(k.Task); k.Task != "" && !task {
		return l
	}
	l.Size, l.Rank = s.firstNumber(k.Size), s.firstNumber(k.Rank)
	l.LocalRank, l.LocalSize = s.firstNumber(k.LocalRank), s.firstNumber(k.LocalSize)
	if k.TasksPerNode != "" {
		l.LocalSize = s.tasksOfThisNode(k)
	}
	l.Job = s.job(k, pid)
	l.Host = s.headHost(k, l.Job)
	return l
}

// firstNumber returns the value of the first variable that holds a number, or -1.
func (s *system) firstNumber(names []string) int {
	for _, name := range names {
		if n, ok := s.number(name); ok {
			return n
		}
	}
	return -1
}

// tasksOfThisNode finds this node in a list like "2(x3),1". It returns -1 if the launcher does not
// say.
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

// job returns a text that is the same on all processes of the job, and differs from those of other
// jobs.
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

// headHost returns a host under a name that all processes of the job know, or "" if the launcher does
// not say.
func (s *system) headHost(k *launcher.Kind, job string) string {
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

// String returns "Open MPI's /path/bin/prterun", for messages.
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

// prefix returns the directory under which the launcher is installed, or "" if that is unknown.
func (l LauncherInfo) prefix() string {
	if l.Path == "" {
		return ""
	}
	return filepath.Dir(filepath.Dir(l.Path))
}

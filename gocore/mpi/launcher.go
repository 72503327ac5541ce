package mpi

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// LauncherInfo says who started this process, as far as /proc and the variables
// of that launcher tell.
type LauncherInfo struct {
	Name      string `json:"name"`       // "prterun", "hydra_pmi_proxy", "slurmstepd" ...; "" where there is none
	Path      string `json:"path"`       // its executable; "" where it may not be read
	MPI       string `json:"mpi"`        // "Open MPI", "MPICH or Intel MPI", "Slurm"
	Size      int    `json:"size"`       // how many processes it started, -1 where it does not say
	Rank      int    `json:"rank"`       // which one this is, -1 likewise
	LocalRank int    `json:"local_rank"` // -1 likewise; for display: topo asks MPI
	LocalSize int    `json:"local_size"` // -1 likewise
	Job       string `json:"job"`        // the same on all its processes, another for each job; "" where it does not say

	family family
	pid    int
}

// Launcher returns the launcher of this process: the nearest parent that is one.
func Launcher() LauncherInfo { return host().launcher() }

// kind is one kind of launcher, with the variables in which it numbers its
// processes. Those of another launcher further up are inherited and mean nothing:
// under sbatch and mpirun, SLURM_NTASKS and SLURM_PROCID are the daemons'.
type kind struct {
	mpi                              string
	family                           family
	size, rank, localRank, localSize []string // the first one set counts
	job                              []string // together, those that are set
}

var (
	prrte = kind{
		"Open MPI", openMPI,
		[]string{"OMPI_COMM_WORLD_SIZE"}, []string{"OMPI_COMM_WORLD_RANK", "PMIX_RANK"},
		[]string{"OMPI_COMM_WORLD_LOCAL_RANK"}, []string{"OMPI_COMM_WORLD_LOCAL_SIZE"},
		[]string{"PMIX_NAMESPACE"},
	}
	hydra = kind{
		"MPICH or Intel MPI", mpich,
		[]string{"PMI_SIZE"}, []string{"PMI_RANK"}, []string{"MPI_LOCALRANKID"}, []string{"MPI_LOCALNRANKS"},
		[]string{"I_MPI_HYDRA_UUID"},
	}
	slurm = kind{
		"Slurm", anyFamily,
		[]string{"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"}, []string{"SLURM_PROCID"}, []string{"SLURM_LOCALID"}, nil,
		[]string{"SLURM_JOB_ID", "SLURM_STEP_ID"},
	}
	// By the name of the process that is a parent of ours: on a remote node that
	// is the launcher's daemon.
	kinds = map[string]*kind{
		"prted": &prrte, "prterun": &prrte, "orted": &prrte, "orterun": &prrte,
		"hydra_pmi_proxy": &hydra,
		"slurmstepd":      &slurm,
	}
)

func (s *system) launcher() LauncherInfo {
	none := LauncherInfo{Size: -1, Rank: -1, LocalRank: -1, LocalSize: -1}
	for _, p := range s.parents() {
		k := kinds[p.name]
		if k == nil {
			continue
		}
		l := none
		l.Name, l.Path, l.MPI, l.family, l.pid = p.name, p.path, k.mpi, k.family, p.pid
		if _, step := s.env("SLURM_STEP_ID"); k == &slurm && !step {
			return l // a batch script: started once, whatever the job's size
		}
		l.Size, l.Rank = s.first(k.size), s.first(k.rank)
		l.LocalRank, l.LocalSize = s.first(k.localRank), s.first(k.localSize)
		if k == &slurm {
			l.LocalSize = s.slurmLocalSize()
		}
		l.Job = s.job(k, p.pid)
		return l
	}
	return none
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

// job is what names the job to all its processes. MPICH's Hydra says nothing in variables, but
// starts its proxies with the address of mpiexec.
func (s *system) job(k *kind, pid int) string {
	var parts []string
	for _, name := range k.job {
		if v := s.get(name); v != "" {
			parts = append(parts, v)
		}
	}
	if len(parts) == 0 && k == &hydra {
		line, _ := os.ReadFile(filepath.Join(s.root, fmt.Sprintf("/proc/%d/cmdline", pid)))
		_, after, _ := bytes.Cut(line, []byte("\x00--control-port\x00"))
		address, _, _ := bytes.Cut(after, []byte{0})
		return string(address)
	}
	return strings.Join(parts, ".")
}

// String is "Open MPI's /path/bin/prterun", for messages.
func (l LauncherInfo) String() string {
	switch {
	case l.Name == "":
		return "no launcher"
	case l.Path == "":
		return l.MPI + "'s " + l.Name
	}
	if l.family == mpich {
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

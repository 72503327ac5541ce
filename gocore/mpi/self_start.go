package mpi

import (
	"os"
	"strings"

	"github.com/paddlempi/paddlempi/gocore/launcher"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// SelfStart says that no launcher of an MPI has started this process. It starts MPI itself, as a rank of a
// job whose ranks know of each other already. Package pmi makes one.
type SelfStart struct {
	Rank, Size           int
	LocalRank, LocalSize int // among the ranks of this node
	// Init calls init, which is MPI_Init_thread of lib, and tells MPI of the other ranks meanwhile. If it
	// returns before init has, MPI cannot be used in this process any more.
	Init func(lib Info, init func() error) error
}

// started stands for the launcher of a process that starts MPI itself.
var started = &launcher.Kind{MPI: "MPICH or Intel MPI", Family: launcher.MPICH}

// place says where this process is in its job: what s says, or else its launcher.
func (s *system) place(start *SelfStart) LauncherInfo {
	if start == nil {
		return s.launcher()
	}
	l := noLauncher
	l.kind, l.PID = started, os.Getppid() // the CPUs of what has started the ranks of this node
	l.Rank, l.Size, l.LocalRank, l.LocalSize = start.Rank, start.Size, start.LocalRank, start.LocalSize
	return l
}

// installStartable says how to get an MPI that starts without its mpirun.
const installStartable = "install MPICH or Intel MPI beside Python (pip install mpich, or pip install impi-rt)"

// checkStartable returns an error if lib starts only under its own mpirun.
func checkStartable(lib Info) error {
	if lib.ABI != "openmpi" && lib.Name != "Open MPI" {
		return nil
	}
	version, _, _ := strings.Cut(lib.Version, ",")
	return status.New(status.Launcher, "no mpirun has started the ranks of this job, and the MPI that is to connect them, "+
		"%s (%s; it is %s), can be started by its mpirun only: %s, or start the job with Open MPI's mpirun",
		lib.Path, version, lib.Why, installStartable)
}

// noneStarts is the error if discovery has found no library that starts without mpirun.
func (s *system) noneStarts(o Options, looked []string) error {
	o.SelfStart = nil
	if found, _, err := s.discover(o); err == nil {
		return checkStartable(Info{Path: found.Path, Why: found.Why, Name: "Open MPI", Version: "Open MPI"})
	}
	return status.New(status.MPINotFound, "no MPI library was found that could connect the ranks of this job, which no mpirun has started: %s, "+
		"or name one with %s=/path/libmpi.so or init_process_group(mpi=...). Looked at:\n  %s", installStartable, EnvLibrary, strings.Join(looked, "\n  "))
}

// check returns an error if the world that MPI knows is not the job.
func (s *SelfStart) check(lib Info, rank, size int) error {
	if rank == s.Rank && size == s.Size {
		return nil
	}
	if lib.Owner != "paddlempi" {
		return status.New(status.Launcher, "rank %d of %d: MPI (%s) was initialised in this process before, by other code (mpi4py?), "+
			"as rank %d of a job of %d: call init_process_group before that code initialises MPI (mpi4py: before \"from mpi4py import MPI\"), "+
			"or start the job with mpirun", s.Rank, s.Size, lib.Path, rank, size)
	}
	return status.New(status.Launcher, "rank %d of %d: MPI (%s, %s) has started as rank %d of a job of %d. "+
		"It has not asked for the job by PMI-1, the protocol of MPICH's mpirun: it may have been built for another launcher. %s, or start the job with its mpirun",
		s.Rank, s.Size, lib.Path, lib.Version, rank, size, strings.ToUpper(installStartable[:1])+installStartable[1:])
}

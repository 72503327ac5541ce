package mpi

/*
#include "calls.h"
*/
import "C"

import (
	"sync"

	"github.com/paddlempi/paddlempi/gocore/dl"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// A process has one MPI for its whole life, because an MPI can be neither unloaded nor initialised
// twice. After a destroy, Open returns current again. If Open has failed after MPI_Init, later
// calls return the same error.
var (
	currentLock sync.Mutex
	current     *library
	failed      error
)

// Open finds, loads and initialises an MPI, or adopts the MPI that this process has initialised
// already. It is an error if o names another MPI than that, if the thread level is below multiple,
// or if the launcher belongs to another MPI.
func Open(o Options) (Library, error) {
	currentLock.Lock()
	defer currentLock.Unlock()
	if failed != nil {
		return nil, failed
	}
	if current != nil {
		return reopen(current, o)
	}
	found, err := find(o)
	if err != nil {
		return nil, err
	}
	l := &library{mpi: found}
	if l.Finalized() {
		return nil, finalizedError(l.mpi.info.Path)
	}
	if !l.mpi.initialized() {
		if err := l.beforeInit(o.SelfStart); err != nil {
			return nil, err
		}
		if o.RollCall != nil {
			if err := o.RollCall.Gather(); err != nil {
				return nil, err
			}
		}
	}
	if err := l.start(o); err != nil {
		return nil, l.giveUp(err)
	}
	if err := l.checkWorld(o.SelfStart); err != nil {
		return nil, l.giveUp(err)
	}
	current = l
	return l, nil
}

// beforeInit sets variables that MPI reads in MPI_Init, and returns an error if MPI would not start.
func (l *library) beforeInit(s *SelfStart) error {
	place := host().place(s)
	host().hint(l.mpi.info, place)
	if err := checkAddresses(l.mpi.info); err != nil {
		return err
	}
	if err := host().checkShared(l.mpi.info, place, l.mpi.file.Lookup("ucp_get_version") != nil, sharedMemory); err != nil {
		return err
	}
	if s != nil {
		return checkStartable(l.mpi.info)
	}
	return CheckBeforeInit(l.mpi.info, l.mpi.file.Lookup("PMIx_Init") != nil)
}

// checkWorld returns an error if MPI does not know of the other ranks of the job.
func (l *library) checkWorld(s *SelfStart) error {
	size, err := l.Size(l.World())
	if err != nil {
		return err
	}
	if s == nil {
		return CheckLauncher(l.mpi.info, size)
	}
	rank, err := l.Rank(l.World())
	if err != nil {
		return err
	}
	return s.check(l.mpi.info, rank, size)
}

// find loads the MPI that is initialised in this process already, or else the one that discovery
// chooses.
func find(o Options) (*loaded, error) {
	for _, path := range Loaded() {
		if !isInitialised(path) {
			continue
		}
		l, err := load(path, "initialised in this process already")
		if err != nil {
			return nil, err
		}
		return l, CheckExplicit(o, l.info)
	}
	if err := checkAddresses(Info{Name: "MPI"}); err != nil {
		return nil, err
	}
	found, _, err := Discover(o)
	if err != nil {
		return nil, err
	}
	return load(found.Path, found.Why)
}

// isInitialised tells whether the library at path, which this process has loaded, was initialised.
func isInitialised(path string) bool {
	file := dl.Loaded(path)
	if file == nil {
		return false
	}
	f := file.Lookup("MPI_Initialized")
	var flag C.int
	return f != nil && C.pmpi_mpi_flag(f, &flag) == 0 && flag != 0
}

// giveUp finalizes an MPI that this package has initialised and cannot use, so that the process can
// exit as its launcher expects. It returns err.
func (l *library) giveUp(err error) error {
	if l.stuck {
		failed = err
		return err
	}
	if l.mpi.info.Owner == "paddlempi" && l.mpi.initialized() {
		_ = l.Finalize() // err says more than an error of Finalize
		failed = err
	}
	return err
}

// reopen is Open for a process that has its MPI already.
func reopen(l *library, o Options) (Library, error) {
	if l.Finalized() {
		return nil, finalizedError(l.mpi.info.Path)
	}
	if err := CheckExplicit(o, l.mpi.info); err != nil {
		return nil, err
	}
	if o.SelfStart != nil {
		if err := l.checkWorld(o.SelfStart); err != nil {
			return nil, err
		}
	}
	if len(l.user) == 0 {
		if err := l.openOps(); err != nil {
			return nil, err
		}
	}
	return l, nil
}

func finalizedError(path string) error {
	return status.New(status.MPI, "MPI (%s) was finalized in this process, and cannot be initialised again: "+
		"call init_process_group before other code finalizes MPI", path)
}

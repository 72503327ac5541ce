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

// A process has one MPI for its whole life: it can be neither unloaded nor
// initialised twice. An Open after a destroy finds it here, and one after an
// Open that failed past MPI_Init the same error.
var (
	currentLock sync.Mutex
	current     *library
	failed      error
)

// Open finds, loads and initialises an MPI, or adopts the one that runs in this
// process, and returns it. An MPI that o names while another runs is an error, as
// are a thread level below multiple and a launcher of another MPI.
func Open(o Options) (Library, error) {
	currentLock.Lock()
	defer currentLock.Unlock()
	if failed != nil {
		return nil, failed
	}
	if current != nil {
		return reopen(current, o)
	}
	l, err := find(o)
	if err != nil {
		return nil, err
	}
	if l.Finalized() {
		return nil, finalizedError(l.info.Path)
	}
	if !l.initialized() {
		HintOversubscribed(l.info)
		if err := CheckBeforeInit(l.info, l.file.Lookup("PMIx_Init") != nil); err != nil {
			return nil, err
		}
	}
	if err := l.start(); err != nil {
		return nil, l.giveUp(err)
	}
	size, err := l.Size(l.World())
	if err == nil {
		err = CheckLauncher(l.info, size)
	}
	if err != nil {
		return nil, l.giveUp(err)
	}
	current = l
	return l, nil
}

// find loads the MPI that is initialised in this process already, else the one
// that discovery chooses.
func find(o Options) (*library, error) {
	for _, path := range Loaded() {
		if !runs(path) {
			continue
		}
		l, err := newLibrary(path, "initialised in this process already")
		if err != nil {
			return nil, err
		}
		return l, CheckExplicit(o, l.info)
	}
	found, _, err := Discover(o)
	if err != nil {
		return nil, err
	}
	return newLibrary(found.Path, found.Why)
}

func newLibrary(path, why string) (*library, error) {
	ld, err := load(path, why)
	if err != nil {
		return nil, err
	}
	t, err := ld.newTable()
	if err != nil {
		return nil, err
	}
	ld.info.Standard = standardOf(t)
	return &library{loaded: ld, table: t}, nil
}

// runs tells whether the library at path, which this process has mapped, was
// initialised.
func runs(path string) bool {
	file := dl.Loaded(path)
	if file == nil {
		return false
	}
	f := file.Lookup("MPI_Initialized")
	var flag C.int
	return f != nil && C.pmpi_mpi_flag(f, &flag) == 0 && flag != 0
}

// giveUp ends the MPI that was started in vain, so that the process can exit as
// its launcher expects, and returns err.
func (l *library) giveUp(err error) error {
	if l.info.Owner == "paddlempi" && l.initialized() {
		_ = l.Finalize() // err says more
		failed = err
	}
	return err
}

// reopen is Open where this process has its MPI already.
func reopen(l *library, o Options) (Library, error) {
	if l.Finalized() {
		return nil, finalizedError(l.info.Path)
	}
	if err := CheckExplicit(o, l.info); err != nil {
		return nil, err
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
		"call init_process_group before whoever finalizes MPI does", path)
}

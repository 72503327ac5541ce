package mpi

/*
#include <stdlib.h>
#include "calls.h"
*/
import "C"

import (
	"fmt"
	"strings"
	"sync"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/dl"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/transport"
)

// This file makes communicators with processes that are not in MPI_COMM_WORLD (MPI-4.1 chapter 11).

// joiner implements transport.Joiner.
type joiner struct {
	c   *Communicator
	lib *library
}

// Joiner implements transport.Joinable. A Library for tests has no such calls.
func (c *Communicator) Joiner() transport.Joiner {
	if lib, ok := c.lib.(*library); ok {
		return &joiner{c, lib}
	}
	return nil
}

// intelSetting is what Intel MPI was told before MPI_Init about processes that are not in MPI_COMM_WORLD.
type intelSetting struct{ spawn, fabrics string }

// noteIntelSetting reads the settings. Intel MPI reads them in MPI_Init only.
func noteIntelSetting() intelSetting {
	spawn, _ := dl.Getenv("I_MPI_SPAWN")
	fabrics, _ := dl.Getenv("I_MPI_FABRICS")
	return intelSetting{spawn, fabrics}
}

// on tells whether I_MPI_SPAWN switches spawn and join on.
func (s intelSetting) on() bool {
	switch strings.ToLower(s.spawn) {
	case "1", "on", "yes", "enable", "true":
		return true
	}
	return false
}

// overOldUCX refuses an MPICH over UCX before 4.2, whose processes end in these calls (measured with 4.0.2: pmodels/mpich, issue
// 6797; pull request 5467 has mended it).
func overOldUCX(version, device string) error {
	var major, minor int
	number := strings.TrimPrefix(version, "MPICH Version: ")
	if _, err := fmt.Sscanf(number, "%d.%d", &major, &minor); err != nil || device != "ch4:ucx" || major > 4 || major == 4 && minor >= 2 {
		return nil
	}
	return status.New(status.Unsupported, "MPICH %s over UCX (%s) can neither start processes nor join jobs: MPICH 4.2 can, and so can an "+
		"MPICH that was built for libfabric (ch4:ofi)", number, device)
}

// CanSpawn is about Intel MPI 2021.18, too: MPI_Comm_spawn is a segmentation fault without one of these settings (measured).
func (j *joiner) CanSpawn() error {
	l := j.lib
	if l.alone {
		return status.New(status.Unsupported, "it is mpirun that starts processes for MPI, and no mpirun has started this job: start it with %s", host().mpirunOf(l.mpi.info))
	}
	if l.mpi.info.Name == "Intel MPI" && !l.intel.on() && !strings.EqualFold(l.intel.fabrics, "ofi") {
		return status.New(status.Unsupported, "Intel MPI can start processes only if I_MPI_SPAWN=1 is set before it is initialised (mpirun -genv I_MPI_SPAWN 1 ...)")
	}
	return overOldUCX(l.mpi.info.Version, l.mpi.device)
}

// CanJoin is about Open MPI 5, where accept and connect between two mpiruns hang, and Intel MPI (both measured).
func (j *joiner) CanJoin() error {
	l := j.lib
	const which = "two jobs can be joined by MPICH, and by Intel MPI if I_MPI_SPAWN=1 is set before it is initialised"
	switch {
	case l.mpi.info.Name == "Open MPI":
		return status.New(status.Unsupported, "Open MPI does not join jobs that two mpiruns have started: it hangs; %s", which)
	case l.mpi.info.Name == "Intel MPI" && !l.intel.on():
		return status.New(status.Unsupported, "Intel MPI was initialised without I_MPI_SPAWN=1 (mpirun -genv I_MPI_SPAWN 1 ...); %s", which)
	}
	return overOldUCX(l.mpi.info.Version, l.mpi.device)
}

func (j *joiner) Spawn(c transport.Command) (transport.Comm, error) {
	if len(c.Argv) == 0 || c.N < 1 {
		return nil, status.New(status.Argument, "spawn of %d processes of the command %q", c.N, c.Argv)
	}
	argv := (*[1 << 20]*C.char)(C.calloc(C.size_t(len(c.Argv)+1), C.size_t(unsafe.Sizeof(uintptr(0)))))
	if argv == nil {
		return nil, status.New(status.NoMemory, "no memory for a command")
	}
	for i, word := range c.Argv {
		argv[i] = C.CString(word)
	}
	defer func() {
		for i := range c.Argv {
			C.free(unsafe.Pointer(argv[i]))
		}
		C.free(unsafe.Pointer(argv))
	}()
	var folder *C.char
	if c.Folder != "" {
		folder = C.CString(c.Folder)
		defer C.free(unsafe.Pointer(folder))
	}
	var inter C.uintptr_t
	err := j.lib.mpi.check("MPI_Comm_spawn", C.pmpi_mpi_spawn(j.lib.mpi.table, &argv[0], C.int(c.N), folder, C.uintptr_t(j.c.comm), &inter))
	if err != nil {
		return nil, err
	}
	return j.merged(inter, true)
}

// merged makes one communicator of both parties. The intercommunicator is freed.
func (j *joiner) merged(inter C.uintptr_t, first bool) (transport.Comm, error) {
	var both C.uintptr_t
	high := C.int(1) // the group that is not high comes first
	if first {
		high = 0
	}
	if err := j.lib.mpi.check("MPI_Intercomm_merge", C.pmpi_mpi_merge(j.lib.mpi.table, inter, high, &both)); err != nil {
		return nil, err
	}
	if err := j.lib.Free(Comm(inter)); err != nil {
		return nil, err
	}
	return NewCommunicator(j.lib, Comm(both))
}

// parents says that Parents was called: MPI goes on to return a handle that was freed.
var parents struct {
	sync.Mutex
	taken bool
}

// parent returns the intercommunicator to the processes that have spawned this one; 0 if there are none.
func (j *joiner) parent() (C.uintptr_t, error) {
	var h C.uintptr_t
	err := j.lib.mpi.check("MPI_Comm_get_parent", C.pmpi_mpi_parent(j.lib.mpi.table, &h))
	if err != nil || uintptr(h) == j.lib.mpi.handle(hCommNull) {
		return 0, err
	}
	return h, nil
}

func (j *joiner) Spawned() (bool, error) {
	parents.Lock()
	defer parents.Unlock()
	if parents.taken {
		return false, nil
	}
	inter, err := j.parent()
	return inter != 0, err
}

func (j *joiner) Parents() (transport.Comm, error) {
	parents.Lock()
	taken := parents.taken
	parents.taken = true
	parents.Unlock()
	inter, err := j.parent()
	switch {
	case err != nil:
		return nil, err
	case inter == 0 || taken:
		return nil, status.New(status.Argument, "this process was not spawned, or has joined its parents before")
	}
	return j.merged(inter, false)
}

func (j *joiner) Listen() (string, error) {
	port := (*C.char)(C.calloc(1, C.PMPI_PORT))
	defer C.free(unsafe.Pointer(port))
	err := j.lib.mpi.check("MPI_Open_port", C.pmpi_mpi_open_port(j.lib.mpi.table, port))
	return C.GoString(port), err
}

func (j *joiner) Unlisten(port string) {
	name := C.CString(port)
	defer C.free(unsafe.Pointer(name))
	C.pmpi_mpi_close_port(j.lib.mpi.table, name) // if this fails it stays open, and nobody knows its name
}

// Join uses MPI_Comm_accept and MPI_Comm_connect. MPI_Comm_join lets chance decide which party accepts in MPI, and under Intel MPI
// the one that does waits in MPI_Finalize until the other one is in MPI_Finalize, too (measured).
func (j *joiner) Join(port string, first bool) (transport.Comm, error) {
	name := C.CString(port)
	defer C.free(unsafe.Pointer(name))
	function, accepts := "MPI_Comm_connect", C.int(0)
	if first {
		function, accepts = "MPI_Comm_accept", 1
	}
	var inter C.uintptr_t
	if err := j.lib.mpi.check(function, C.pmpi_mpi_meet(j.lib.mpi.table, name, accepts, C.uintptr_t(j.c.comm), &inter)); err != nil {
		return nil, err
	}
	return j.merged(inter, first)
}

func (j *joiner) Disconnect() error {
	if j.lib.mpi.info.Name == "Open MPI" { // MPI_Comm_disconnect of a merged communicator hangs in 5.0.11 (measured)
		return j.c.Free()
	}
	return j.lib.mpi.check("MPI_Comm_disconnect", C.pmpi_mpi_disconnect(j.lib.mpi.table, C.uintptr_t(j.c.comm)))
}

// WaitsForDead is about Intel MPI: a party that has accepted waits in MPI_Finalize for a message of the other one (measured).
func (j *joiner) WaitsForDead() bool { return j.lib.mpi.info.Name == "Intel MPI" }

var (
	_ transport.Joinable = (*Communicator)(nil)
	_ transport.Joiner   = (*joiner)(nil)
)

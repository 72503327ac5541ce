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

// Dynamic is a Library that can do so. The calls have no deadline.
type Dynamic interface {
	CanSpawn() error
	CanJoin() error
	// Spawn returns the intercommunicator to the new processes.
	Spawn(comm Comm, c transport.Command) (Comm, error)
	// Parent returns that to the processes that have spawned this one; 0 if there are none.
	Parent() (Comm, error)
	OpenPort() (string, error)
	ClosePort(port string) error
	// Meet returns one to another job, which accepts at a port, or connects to it.
	Meet(port string, accepts bool, comm Comm) (Comm, error)
	// Merge makes an intercommunicator an intracommunicator. The group that is not high comes first.
	Merge(inter Comm, high bool) (Comm, error)
	Disconnect(Comm) error
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
func (l *library) CanSpawn() error {
	if l.alone {
		return status.New(status.Unsupported, "it is mpirun that starts processes for MPI, and no mpirun has started this job: start it with %s", host().mpirunOf(l.info))
	}
	if l.info.Name == "Intel MPI" && !l.intel.on() && !strings.EqualFold(l.intel.fabrics, "ofi") {
		return status.New(status.Unsupported, "Intel MPI can start processes only if I_MPI_SPAWN=1 is set before it is initialised (mpirun -genv I_MPI_SPAWN 1 ...)")
	}
	return overOldUCX(l.info.Version, l.device)
}

// CanJoin is about Open MPI 5, where accept and connect between two mpiruns hang, and Intel MPI (both measured).
func (l *library) CanJoin() error {
	const which = "two jobs can be joined by MPICH, and by Intel MPI if I_MPI_SPAWN=1 is set before it is initialised"
	switch {
	case l.info.Name == "Open MPI":
		return status.New(status.Unsupported, "Open MPI does not join jobs that two mpiruns have started: it hangs; %s", which)
	case l.info.Name == "Intel MPI" && !l.intel.on():
		return status.New(status.Unsupported, "Intel MPI was initialised without I_MPI_SPAWN=1 (mpirun -genv I_MPI_SPAWN 1 ...); %s", which)
	}
	return overOldUCX(l.info.Version, l.device)
}

func (l *library) Spawn(comm Comm, c transport.Command) (Comm, error) {
	if len(c.Argv) == 0 || c.N < 1 {
		return 0, status.New(status.Argument, "spawn of %d processes of the command %q", c.N, c.Argv)
	}
	argv := (*[1 << 20]*C.char)(C.calloc(C.size_t(len(c.Argv)+1), C.size_t(unsafe.Sizeof(uintptr(0)))))
	if argv == nil {
		return 0, status.New(status.NoMemory, "no memory for a command")
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
	var h C.uintptr_t
	err := l.check("MPI_Comm_spawn", C.pmpi_mpi_spawn(l.table, &argv[0], C.int(c.N), folder, C.uintptr_t(comm), &h))
	return Comm(h), err
}

func (l *library) Parent() (Comm, error) {
	var h C.uintptr_t
	err := l.check("MPI_Comm_get_parent", C.pmpi_mpi_parent(l.table, &h))
	if err != nil || uintptr(h) == l.handle(hCommNull) {
		return 0, err
	}
	return Comm(h), nil
}

func (l *library) OpenPort() (string, error) {
	port := (*C.char)(C.calloc(1, C.PMPI_PORT))
	defer C.free(unsafe.Pointer(port))
	err := l.check("MPI_Open_port", C.pmpi_mpi_open_port(l.table, port))
	return C.GoString(port), err
}

func (l *library) ClosePort(port string) error {
	name := C.CString(port)
	defer C.free(unsafe.Pointer(name))
	return l.check("MPI_Close_port", C.pmpi_mpi_close_port(l.table, name))
}

func (l *library) Meet(port string, accepts bool, comm Comm) (Comm, error) {
	name := C.CString(port)
	defer C.free(unsafe.Pointer(name))
	var h C.uintptr_t
	function, flag := "MPI_Comm_connect", C.int(0)
	if accepts {
		function, flag = "MPI_Comm_accept", 1
	}
	err := l.check(function, C.pmpi_mpi_meet(l.table, name, flag, C.uintptr_t(comm), &h))
	return Comm(h), err
}

func (l *library) Merge(inter Comm, high bool) (Comm, error) {
	var h C.uintptr_t
	flag := C.int(0)
	if high {
		flag = 1
	}
	err := l.check("MPI_Intercomm_merge", C.pmpi_mpi_merge(l.table, C.uintptr_t(inter), flag, &h))
	return Comm(h), err
}

func (l *library) Disconnect(c Comm) error {
	if l.info.Name == "Open MPI" { // MPI_Comm_disconnect of a merged communicator hangs in 5.0.11 (measured)
		return l.Free(c)
	}
	return l.check("MPI_Comm_disconnect", C.pmpi_mpi_disconnect(l.table, C.uintptr_t(c)))
}

// The seam.

// dynamic returns the library, or an error if it has no such calls.
func (c *Communicator) dynamic() (Dynamic, error) {
	if d, ok := c.lib.(Dynamic); ok {
		return d, nil
	}
	return nil, status.New(status.Unsupported, "%s has no dynamic processes", c.lib.Info().Name)
}

func (c *Communicator) CanSpawn() error {
	d, err := c.dynamic()
	if err == nil {
		err = d.CanSpawn()
	}
	return err
}

func (c *Communicator) CanJoin() error {
	d, err := c.dynamic()
	if err == nil {
		err = d.CanJoin()
	}
	return err
}

func (c *Communicator) Spawn(what transport.Command) (transport.Comm, error) {
	d, err := c.dynamic()
	if err != nil {
		return nil, err
	}
	inter, err := d.Spawn(c.comm, what)
	if err != nil {
		return nil, err
	}
	return c.merged(d, inter, true)
}

// merged makes one communicator of both parties. The intercommunicator is freed.
func (c *Communicator) merged(d Dynamic, inter Comm, first bool) (transport.Comm, error) {
	both, err := d.Merge(inter, !first)
	if err != nil {
		return nil, err
	}
	if err := c.lib.Free(inter); err != nil {
		return nil, err
	}
	return NewCommunicator(c.lib, both)
}

// parents says that Parents was called: MPI goes on to return a handle that was freed.
var parents struct {
	sync.Mutex
	taken bool
}

func (c *Communicator) Spawned() (bool, error) {
	d, err := c.dynamic()
	if err != nil {
		return false, nil
	}
	parents.Lock()
	defer parents.Unlock()
	if parents.taken {
		return false, nil
	}
	inter, err := d.Parent()
	return inter != 0, err
}

func (c *Communicator) Parents() (transport.Comm, error) {
	d, err := c.dynamic()
	if err != nil {
		return nil, err
	}
	parents.Lock()
	taken := parents.taken
	parents.taken = true
	parents.Unlock()
	inter, err := d.Parent()
	switch {
	case err != nil:
		return nil, err
	case inter == 0 || taken:
		return nil, status.New(status.Argument, "this process was not spawned, or has joined its parents before")
	}
	return c.merged(d, inter, false)
}

func (c *Communicator) Listen() (string, error) {
	d, err := c.dynamic()
	if err != nil {
		return "", err
	}
	return d.OpenPort()
}

func (c *Communicator) Unlisten(port string) {
	if d, err := c.dynamic(); err == nil {
		_ = d.ClosePort(port) // it stays open, and nobody knows its name
	}
}

// Join uses MPI_Comm_accept and MPI_Comm_connect. MPI_Comm_join lets chance decide which party accepts in MPI, and under Intel MPI
// the one that does waits in MPI_Finalize until the other one is in MPI_Finalize, too (measured).
func (c *Communicator) Join(port string, first bool) (transport.Comm, error) {
	d, err := c.dynamic()
	if err != nil {
		return nil, err
	}
	inter, err := d.Meet(port, first, c.comm)
	if err != nil {
		return nil, err
	}
	return c.merged(d, inter, first)
}

func (c *Communicator) Disconnect() error {
	if d, ok := c.lib.(Dynamic); ok {
		return d.Disconnect(c.comm)
	}
	return c.Free()
}

// WaitsForDead is about Intel MPI: a party that has accepted waits in MPI_Finalize for a message of the other one (measured).
func (c *Communicator) WaitsForDead() bool { return c.lib.Info().Name == "Intel MPI" }

var _ transport.Joiner = (*Communicator)(nil)

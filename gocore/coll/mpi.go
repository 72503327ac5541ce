package coll

import (
	"github.com/paddlempi/paddlempi/gocore/mpi"
	"github.com/paddlempi/paddlempi/gocore/transport"
)

// MPI is what the algorithms need that call MPI. Comm is 0 and Wire nil in a group of one rank, unless that is the world.
type MPI struct {
	Lib  mpi.Library
	Comm mpi.Comm
	Wire transport.Endpoint // the same communicator, for algorithms that need messages only
}

// On returns the library of base, and the communicator of comm, which may be nil.
func On(base, comm transport.Comm) MPI {
	lib, _ := mpi.Of(base)
	_, c := mpi.Of(comm)
	return MPI{lib, c, comm}
}

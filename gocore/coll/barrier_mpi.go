package coll

import "github.com/paddlempi/paddlempi/gocore/mpi"

// barrierMPI is MPI_Barrier. Members on one node have already synchronised when they arrived. But a
// barrier promises that no member leaves it before all have entered, and this must not depend on
// the arrival.
var barrierMPI = Algorithm{Name: "mpi", callsMPI: true, Memory: hostMemory | deviceMemory, build: func(a *Args, p *Program) error {
	c := p.Call()
	c.Fn, c.Comm = mpi.FnBarrier, a.Comm
	return nil
}}

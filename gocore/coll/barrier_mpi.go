package coll

import "github.com/paddlempi/paddlempi/gocore/mpi"

// barrierMPI is MPI_Barrier. Arriving has synchronised the members already where
// they share a node, but a barrier also promises that nobody leaves before all
// came in, whatever the arrival is made of.
var barrierMPI = Algorithm{Name: "mpi", Memory: hostMemory | deviceMemory, Build: func(a *Args, p *Program) error {
	c := p.Call()
	c.Fn, c.Comm = mpi.FnBarrier, a.Comm
	return nil
}}

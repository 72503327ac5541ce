package coll

import "github.com/paddlempi/paddlempi/gocore/mpi"

// broadcastMPI is MPI_Bcast of the buffer's bytes. Bytes moved by each rank: S.
var broadcastMPI = Algorithm{Name: "mpi", Memory: hostMemory, build: func(a *Args, p *Program) error {
	n, t, err := a.bytes(p, a.Recv[0].Count*a.elem())
	if err != nil {
		return err
	}
	c := p.Call()
	c.Fn, c.Comm, c.Peer = mpi.FnBcast, a.Comm, int32(a.Root)
	c.RecvBuf, c.RecvCount, c.RecvType = a.Recv[0].Data, n, t
	return nil
}}

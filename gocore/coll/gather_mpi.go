package coll

import "github.com/paddlempi/paddlempi/gocore/mpi"

// gatherMPI is MPI_Gather of bytes. Bytes moved: S out of each rank, nS into the root.
var gatherMPI = Algorithm{Name: "mpi", callsMPI: true, Memory: hostMemory, scratch: func(a *Args) int64 {
	return a.contiguousScratch(a.Recv) + a.withoutOverlapScratch(a.Send, a.Recv)
}, build: func(a *Args, p *Program) error {
	n, t, err := a.bytes(p, a.Send[0].Count*a.elem())
	if err != nil {
		return err
	}
	c := mpi.Call{Fn: mpi.FnGather, Comm: a.Comm, Peer: int32(a.Root), SendBuf: a.Send[0].Data, SendCount: n, SendType: t, RecvType: t}
	var spread func() error
	if a.Rank == a.Root {
		c.RecvCount = n
		if c.RecvBuf, spread, err = a.contiguous(p, a.Recv, false); err != nil {
			return err
		}
		if c.SendBuf, c.InPlace, err = a.sendOrInPlace(p, c.RecvBuf, int64(a.Rank)*a.Send[0].Count); err != nil {
			return err
		}
	}
	*p.Call() = c
	if spread != nil {
		p.Do(spread)
	}
	return nil
}}

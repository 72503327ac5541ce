package coll

import "github.com/paddlempi/paddlempi/gocore/mpi"

// scatterMPI is MPI_Scatter of bytes. Bytes moved: nS out of the root, S into each rank.
var scatterMPI = Algorithm{Name: "mpi", callsMPI: true, Memory: hostMemory, scratch: func(a *Args) int64 {
	return a.contiguousScratch(a.Send) + a.withoutOverlapScratch(a.Send, a.Recv)
}, build: func(a *Args, p *Program) error {
	n, t, err := a.bytes(p, a.Recv[0].Count*a.elem())
	if err != nil {
		return err
	}
	c := mpi.Call{Fn: mpi.FnScatter, Comm: a.Comm, Peer: int32(a.Root), RecvBuf: a.Recv[0].Data, RecvCount: n, RecvType: t, SendType: t}
	if a.Rank == a.Root {
		c.SendCount = n
		if c.SendBuf, _, err = a.contiguous(p, a.Send, true); err != nil {
			return err
		}
		if c.InPlace = c.RecvBuf == a.at(c.SendBuf, int64(a.Rank)*a.Recv[0].Count); !c.InPlace {
			parts, err := a.withoutOverlap(p, []Part{{Data: c.SendBuf, Count: totalCount(a.Send)}}, a.Recv)
			if err != nil {
				return err
			}
			c.SendBuf = parts[0].Data
		}
	}
	*p.Call() = c
	return nil
}}

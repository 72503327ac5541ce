package coll

import "github.com/paddlempi/paddlempi/gocore/mpi"

// scatterMPI is MPI_Scatter of bytes. Bytes moved: nS out of the root, S in.
var scatterMPI = Algorithm{Name: "mpi", Enabled: onHost, Scratch: func(a *Args) int64 {
	return a.joining(a.Send) + a.copying(a.Send, a.Recv)
}, Build: func(a *Args, p *Program) error {
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
			parts, err := a.apart(p, []Part{{Data: c.SendBuf, Count: counts(a.Send)}}, a.Recv)
			if err != nil {
				return err
			}
			c.SendBuf = parts[0].Data
		}
	}
	*p.Call() = c
	return nil
}}

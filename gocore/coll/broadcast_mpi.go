package coll

import (
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/mpi"
)

// broadcastMPI is MPI_Bcast of the buffer's bytes. Bytes moved by each rank: S.
var broadcastMPI = Algorithm{Name: "mpi", callsMPI: true, Memory: hostMemory, build: func(a *Args, p *Program) error {
	a.addBroadcast(p, a.Root, a.Recv[0].Data, a.Recv[0].Count*a.elem())
	return nil
}}

// broadcastBytes is the length of the pieces of a broadcast beyond MPI's counts. One element of a type of that length would
// do, but MPI_Ibcast of Intel MPI 2021.18 fails between hosts then ("Invalid communicator").
const broadcastBytes = 1 << 30

// addBroadcast appends a broadcast of n bytes from root.
func (a *Args) addBroadcast(p *Program, root int, data unsafe.Pointer, n int64) {
	piece := int64(broadcastBytes)
	if n <= mpi.MaxCount {
		piece = max(n, 1)
	}
	for from := int64(0); from == 0 || from < n; from += piece {
		c := p.Call()
		c.Fn, c.Comm, c.Peer = mpi.FnBcast, a.Comm, int32(root)
		c.RecvBuf, c.RecvCount, c.RecvType = unsafe.Add(data, from), min(piece, n-from), a.Lib.Byte()
	}
}

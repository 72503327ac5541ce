package coll

import (
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/mpi"
)

// barrierMPI is MPI_Barrier. Members on one node have already synchronised when they arrived. But a
// barrier promises that no member leaves it before all have entered, and this must not depend on
// the arrival.
var barrierMPI = Algorithm{Name: "mpi", callsMPI: true, Memory: hostMemory | deviceMemory, build: func(a *Args, p *Program) error {
	c := p.Call()
	c.Fn, c.Comm = mpi.FnBarrier, a.Comm
	return nil
}}

// broadcastMPI is MPI_Bcast of the buffer's bytes. Bytes moved by each rank: S.
var broadcastMPI = Algorithm{Name: "mpi", callsMPI: true, Memory: hostMemory, build: func(a *Args, p *Program) error {
	addBroadcast(a, p, a.Root, a.Recv[0])
	return nil
}}

// broadcastBytes is the length of the pieces of a broadcast beyond MPI's counts. One element of a type of that length would
// do, but MPI_Ibcast of Intel MPI 2021.18 fails between hosts then ("Invalid communicator").
const broadcastBytes = 1 << 30

// addBroadcast appends a broadcast of a part of root.
func addBroadcast(a *Args, p *Program, root int, part Part) {
	n, piece := part.Count*a.elem(), int64(broadcastBytes)
	if n <= mpi.MaxCount {
		piece = max(n, 1)
	}
	for from := int64(0); from == 0 || from < n; from += piece {
		c := p.Call()
		c.Fn, c.Comm, c.Peer = mpi.FnBcast, a.Comm, int32(root)
		c.RecvBuf, c.RecvCount, c.RecvType = unsafe.Add(part.Data, from), min(piece, n-from), a.Lib.Byte()
	}
}

// One call of MPI, for bytes. Shares have one length.
var (
	// MPI_Allgather. Bytes moved by each rank: (n-1)S in, and nS more for the copy if the results are separate tensors.
	allGatherMPI = movedByMPI(mpi.FnAllgather, evenShares)
	// MPI_Gather. Bytes moved: S out of each rank, nS into the root.
	gatherMPI = movedByMPI(mpi.FnGather, nil)
	// MPI_Scatter. Bytes moved: nS out of the root, S into each rank.
	scatterMPI = movedByMPI(mpi.FnScatter, nil)
	// MPI_Alltoall. Bytes moved by each rank: (1-1/n)S out and in. S is all that a rank sends.
	allToAllEvenMPI = movedByMPI(mpi.FnAlltoall, evenShares)
)

func movedByMPI(fn mpi.Fn, enabled func(*Sig) bool) Algorithm {
	return Algorithm{Name: "mpi", callsMPI: true, Memory: hostMemory, Enabled: enabled, scratch: movedScratch, build: func(a *Args, p *Program) error {
		n, t, err := describeBytes(a, p, a.Count*a.elem())
		if err != nil {
			return err
		}
		c := mpi.Call{Fn: fn, Comm: a.Comm, Peer: int32(a.Root), SendType: t, RecvType: t}
		var results []Part
		if a.WritesRecv() {
			if results, err = contiguous(a, p, a.Recv); err != nil {
				return err
			}
			c.RecvBuf, c.RecvCount = results[0].Data, n
		}
		if Gives(a) {
			c.SendCount = n
			if c.SendBuf, c.InPlace, err = sendOrInPlace(a, p, c.RecvBuf); err != nil {
				return err
			}
		}
		*p.Call() = c
		addCopies(a, p, a.Recv, results)
		return nil
	}}
}

func movedScratch(a *Args) int64 {
	return contiguousScratch(a, a.Send) + contiguousScratch(a, a.Recv) + apartScratch(a)
}

// sendOrInPlace returns what this rank sends, and whether its own share of that is already where it has to be in recv,
// where this rank's result goes. What overlaps other parts of the result is copied.
func sendOrInPlace(a *Args, p *Program, recv unsafe.Pointer) (unsafe.Pointer, bool, error) {
	send, err := inOneBlock(a, p, a.Send)
	if err != nil || !a.WritesRecv() {
		return send, false, err
	}
	inPlace := false
	switch t := a.Trait(); {
	case t.Send.PerRank() && t.Recv.PerRank(): // MPI_IN_PLACE would be for all shares
	case t.Send.PerRank():
		inPlace = a.at(send, int64(a.Rank)*a.Count) == recv
	default:
		inPlace = send == a.at(recv, int64(a.Rank)*a.Count)
	}
	if inPlace {
		return send, true, nil
	}
	copied, err := withoutOverlap(a, p, []Part{{Data: send, Count: totalCount(a.Send)}}, a.Recv)
	if err != nil {
		return nil, false, err
	}
	return copied[0].Data, false, nil
}

// allGatherUnevenMPI serves inputs of different lengths, which all ranks know (gatherParts). Bytes moved by each rank: what
// the others have, and the whole result once more by the copy into separate tensors.
var allGatherUnevenMPI = Algorithm{Name: "mpi_uneven", callsMPI: true, Memory: hostMemory, scratch: func(a *Args) int64 {
	return contiguousScratch(a, a.Recv) + int32sScratch(a, 2)
}, build: func(a *Args, p *Program) (err error) {
	results := a.Recv
	if totalCount(results)*a.elem() <= mpi.MaxCount { // longer ones are broadcast
		if results, err = contiguous(a, p, a.Recv); err != nil {
			return err
		}
	}
	parts := perRank(a, results)
	addCopies(a, p, parts[a.Rank:], a.Send)
	if err := gatherParts(a, p, parts); err != nil {
		return err
	}
	addCopies(a, p, a.Recv, results)
	return nil
}}

// gatherParts gives all ranks the part that each has in its place. The parts lie one after the other, but for those that are too long for
// MPI's displacements. It is MPI_Allgatherv, or one broadcast from each rank for these.
func gatherParts(a *Args, p *Program, parts []Part) error {
	if a.NoMPI {
		gatherByBounce(a, p, parts, a.elem())
		return nil
	}
	if totalCount(parts)*a.elem() > mpi.MaxCount {
		for r, part := range parts {
			if part.Count > 0 {
				addBroadcast(a, p, r, part)
			}
		}
		return nil
	}
	block, err := p.Alloc(int64(8 * a.Size))
	if err != nil {
		return err
	}
	numbers, from := unsafe.Slice((*int32)(block), 2*a.Size), int64(0)
	for r, part := range parts {
		numbers[r], numbers[a.Size+r] = int32(part.Count*a.elem()), int32(from)
		from += part.Count * a.elem()
	}
	c := p.Call()
	c.Fn, c.Comm, c.InPlace = mpi.FnAllgatherv, a.Comm, true
	c.RecvBuf, c.RecvType, c.RecvCounts, c.RecvDispls = parts[0].Data, a.Lib.Byte(), block, unsafe.Pointer(&numbers[a.Size])
	return nil
}

// allToAllUnevenMPI first exchanges the lengths, so that parts whose lengths do not match are an
// error on every rank, not garbage. Then it sends the parts between pairs of ranks. Bytes moved by
// each rank: 8n for the lengths, 8 for the verdict, and the parts.
var allToAllUnevenMPI = Algorithm{Name: "pairwise", callsMPI: true, Memory: hostMemory, polls: always, scratch: func(a *Args) int64 {
	return apartScratch(a) + lengthsScratch(a)
}, build: func(a *Args, p *Program) error {
	sources, err := withoutOverlap(a, p, a.Send, a.Recv)
	if err != nil {
		return err
	}
	sends, recvs := perRank(a, sources), perRank(a, a.Recv)
	if err := agreeOnLengths(a, p, sends, recvs); err != nil {
		return err
	}
	return exchange(a, p, sends, recvs)
}}

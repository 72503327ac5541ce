package coll

import (
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/mpi"
)

// allGatherMPI is MPI_Allgather of bytes. Bytes moved by each rank: (n-1)S in, and nS more for the
// copy if the results are separate tensors.
var allGatherMPI = Algorithm{Name: "mpi", callsMPI: true, Memory: hostMemory, Enabled: evenShares, scratch: func(a *Args) int64 {
	return a.contiguousScratch(a.Recv) + a.withoutOverlapScratch(a.Send, a.Recv)
}, build: func(a *Args, p *Program) error {
	dst, scatter, err := a.contiguous(p, a.Recv, false)
	if err != nil {
		return err
	}
	src, inPlace, err := a.sendOrInPlace(p, dst, int64(a.Rank)*a.Send[0].Count)
	if err != nil {
		return err
	}
	n, t, err := a.bytes(p, a.Send[0].Count*a.elem())
	if err != nil {
		return err
	}
	c := p.Call()
	c.Fn, c.Comm, c.InPlace = mpi.FnAllgather, a.Comm, inPlace
	c.SendBuf, c.SendCount, c.SendType = src, n, t
	c.RecvBuf, c.RecvCount, c.RecvType = dst, n, t
	if scatter != nil {
		p.Do(scatter)
	}
	return nil
}}

// sendOrInPlace returns this rank's input, and whether the input is already where the result has
// this rank's part: at element at of dst. If the input overlaps the parts of other ranks in dst, a
// copy of the input is returned.
func (a *Args) sendOrInPlace(p *Program, dst unsafe.Pointer, at int64) (unsafe.Pointer, bool, error) {
	if a.Send[0].Data == a.at(dst, at) {
		return a.Send[0].Data, true, nil
	}
	parts, err := a.withoutOverlap(p, a.Send, a.Recv)
	if err != nil {
		return nil, false, err
	}
	return parts[0].Data, false, nil
}

// allGatherUnevenMPI serves inputs of different lengths, which all ranks know. It is
// MPI_Allgatherv, or one broadcast from each rank if the result is too long for MPI's
// displacements. Bytes moved by each rank: what the others have, and the whole result once more by
// the copy into separate tensors.
var allGatherUnevenMPI = Algorithm{Name: "mpi_uneven", callsMPI: true, Memory: hostMemory, scratch: func(a *Args) int64 {
	return a.contiguousScratch(a.Recv) + a.withoutOverlapScratch(a.Send, a.Recv) + a.int32sScratch(2)
}, build: func(a *Args, p *Program) error {
	parts := a.perRank(a.Recv)
	if totalCount(parts)*a.elem() > mpi.MaxCount {
		dst := parts[a.Rank]
		p.Do(func() error {
			a.copyElements(dst.Data, a.Send[0].Data, dst.Count)
			return nil
		})
		for i := range parts {
			a.broadcastPart(p, i, parts[i].Data, parts[i].Count)
		}
		return nil
	}
	dst, scatter, err := a.contiguous(p, a.Recv, false)
	if err != nil {
		return err
	}
	sl := make([]slice, a.Size)
	var from int64
	for i := range sl {
		sl[i] = slice{from, parts[i].Count}
		from += parts[i].Count
	}
	cnt, dsp, err := a.int32s(p, sl)
	if err != nil {
		return err
	}
	src, inPlace, err := a.sendOrInPlace(p, dst, sl[a.Rank].from)
	if err != nil {
		return err
	}
	c := p.Call()
	c.Fn, c.Comm, c.InPlace = mpi.FnAllgatherv, a.Comm, inPlace
	c.SendBuf, c.SendCount, c.SendType = src, a.Send[0].Count*a.elem(), a.Lib.Byte()
	c.RecvBuf, c.RecvType, c.RecvCounts, c.RecvDispls = dst, a.Lib.Byte(), cnt, dsp
	if scatter != nil {
		p.Do(scatter)
	}
	return nil
}}

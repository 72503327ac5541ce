package coll

import (
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/mpi"
)

// allGatherMPI is MPI_Allgather of bytes. Bytes moved a rank: (n-1)S in, and nS
// more where the results are separate tensors.
var allGatherMPI = Algorithm{Name: "mpi", Enabled: evenlyOnHost, Scratch: func(a *Args) int64 {
	return a.joining(a.Recv) + a.copying(a.Send, a.Recv)
}, Build: func(a *Args, p *Program) error {
	dst, scatter, err := a.contiguous(p, a.Recv, false)
	if err != nil {
		return err
	}
	src, inPlace, err := a.ownPart(p, dst, int64(a.Rank)*a.Send[0].Count)
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

// ownPart returns this rank's contribution and whether it lies in its place already,
// element at of dst; if it lies across others' places, a copy.
func (a *Args) ownPart(p *Program, dst unsafe.Pointer, at int64) (unsafe.Pointer, bool, error) {
	if a.Send[0].Data == a.at(dst, at) {
		return a.Send[0].Data, true, nil
	}
	parts, err := a.apart(p, a.Send, a.Recv)
	if err != nil {
		return nil, false, err
	}
	return parts[0].Data, false, nil
}

// allGatherUnevenMPI serves contributions of different lengths, which all ranks
// know: MPI_Allgatherv, or a broadcast a rank past the reach of its displacements.
// Bytes moved a rank: what the others hold, and all of it once more by the copy.
var allGatherUnevenMPI = Algorithm{Name: "mpi_uneven", Enabled: onHost, Scratch: func(a *Args) int64 {
	return a.joining(a.Recv) + a.copying(a.Send, a.Recv) + a.listing(2)
}, Build: func(a *Args, p *Program) error {
	parts := a.each(a.Recv)
	if counts(parts)*a.elem() > mpi.MaxCount {
		own := parts[a.Rank]
		p.Do(func() error {
			a.copyElements(own.Data, a.Send[0].Data, own.Count)
			return nil
		})
		for i := range parts {
			if err := a.broadcastPart(p, i, parts[i].Data, parts[i].Count); err != nil {
				return err
			}
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
	src, inPlace, err := a.ownPart(p, dst, sl[a.Rank].from)
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

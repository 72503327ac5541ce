package coll

import (
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/mpi"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/reduce"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// reduceScatterMPI is MPI_Reduce_scatter_block, MPI_Reduce_scatter for parts of
// different lengths, or one MPI_Reduce a rank past the reach of their counts.
// Bytes moved a rank: (1-1/n) of the input out and in.
var reduceScatterMPI = Algorithm{Name: "mpi", Enabled: onHost, Scratch: func(a *Args) int64 {
	most := a.joining(a.Send) + a.scratch(a.Recv[0].Count) + a.listing(1)
	if a.Reduce == op.PremulSum {
		most += a.scratch(counts(a.each(a.Send)))
	}
	return most
}, Build: func(a *Args, p *Program) error {
	parts := a.each(a.Send)
	src, _, err := a.contiguous(p, a.Send, true)
	if err != nil {
		return err
	}
	total := counts(parts)
	if a.Reduce == op.PremulSum {
		scaled, err := a.alloc(p, max(1, total))
		if err != nil {
			return err
		}
		in := src
		p.Do(func() error { return reduce.ScaleTo(scaled, in, total, a.DType, a.Scale) })
		src = scaled
	}
	result := a.Recv[0]
	if a.overlap(Part{Data: src, Count: total}, result) { // its own part of the input, say
		if result.Data, err = a.alloc(p, result.Count); err != nil {
			return err
		}
	}
	if err := a.reduceParts(p, src, result, parts, total); err != nil {
		return err
	}
	a.average(p, result)
	if result.Data != a.Recv[0].Data {
		p.Do(func() error {
			a.copyElements(a.Recv[0].Data, result.Data, result.Count)
			return nil
		})
	}
	return nil
}}

func (a *Args) reduceParts(p *Program, src unsafe.Pointer, result Part, parts []Part, total int64) error {
	t, okT := a.Lib.TypeOf(a.DType)
	o, okO := a.Lib.OpOf(a.Reduce, a.DType)
	if !okT || !okO {
		return status.New(status.Unsupported, "%s: this MPI cannot reduce %s with %s", a.Code, a.DType, a.Reduce)
	}
	if total > mpi.MaxCount {
		one := *a
		var from int64
		for i, part := range parts {
			one.Root = i
			var recv unsafe.Pointer
			if i == a.Rank {
				recv = result.Data
			}
			if err := one.reducing(p, mpi.FnReduce, a.at(src, from), recv, part.Count); err != nil {
				return err
			}
			from += part.Count
		}
		return nil
	}
	c := mpi.Call{Fn: mpi.FnReduceScatterBlock, Comm: a.Comm, Op: o, SendBuf: src, SendType: t, SendCount: result.Count,
		RecvBuf: result.Data, RecvCount: result.Count, RecvType: t}
	for i := range parts {
		if parts[i].Count != parts[0].Count {
			block, err := p.Alloc(int64(4 * a.Size))
			if err != nil {
				return err
			}
			v := unsafe.Slice((*int32)(block), a.Size)
			for j := range parts {
				v[j] = int32(parts[j].Count)
			}
			c.Fn, c.RecvCounts = mpi.FnReduceScatter, block
			break
		}
	}
	*p.Call() = c
	return nil
}

// reduceScatterSlices16 sends every rank its part, which that rank adds in float32
// in rank order and rounds once. Bytes moved a rank: (1-1/n) of the input out and in.
var reduceScatterSlices16 = Algorithm{Name: "slices16", Enabled: reducedOnHost, Polls: always, Scratch: func(a *Args) int64 {
	return a.scratch(a.Recv[0].Count * int64(a.Size))
}, Build: func(a *Args, p *Program) error {
	sends := a.each(a.Send)
	own := a.Recv[0].Count
	scratch, err := a.alloc(p, max(1, own*int64(a.Size)))
	if err != nil {
		return err
	}
	recvs := make([]Part, a.Size)
	for i := range recvs {
		recvs[i] = Part{Data: a.at(scratch, int64(i)*own), Count: own}
	}
	if err := exchange(a, p, sends, recvs); err != nil {
		return err
	}
	p.Do(func() error { return a.sum16(a.Recv[0].Data, scratch, own, a.Size) })
	return nil
}}

package coll

import (
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/mpi"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/reduce"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// reduceScatterMPI is MPI_Reduce_scatter_block, or MPI_Reduce_scatter if the parts differ in
// length, or one MPI_Reduce for each rank if the counts are too large for MPI. Bytes moved by each
// rank: (1-1/n) of the input out and in.
var reduceScatterMPI = Algorithm{Name: "mpi", callsMPI: true, Memory: hostMemory, Enabled: byMPI, scratch: func(a *Args) int64 {
	most := a.contiguousScratch(a.Send) + a.scratch(a.Recv[0].Count) + a.int32sScratch(1)
	if a.Reduce == op.PremulSum {
		most += a.scratch(totalCount(a.perRank(a.Send)))
	}
	return most
}, build: func(a *Args, p *Program) error {
	parts := a.perRank(a.Send)
	src, _, err := a.contiguous(p, a.Send, true)
	if err != nil {
		return err
	}
	total := totalCount(parts)
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
	if a.overlap(Part{Data: src, Count: total}, result) { // for example, the result is this rank's part of the input
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
			if err := one.reduceCalls(p, mpi.FnReduce, a.at(src, from), recv, part.Count); err != nil {
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

// reduceScatterSlices16 sends every rank its part from each rank. That rank reduces the parts in
// rank order, floats in float32 with one rounding. Bytes moved by each rank: (1-1/n) of the input
// out and in.
var reduceScatterSlices16 = Algorithm{Name: "slices16", callsMPI: true, Memory: hostMemory, Enabled: reducedOutsideMPI, polls: always, scratch: func(a *Args) int64 {
	return a.scratch(a.Recv[0].Count * int64(a.Size))
}, build: func(a *Args, p *Program) error {
	sends := a.perRank(a.Send)
	n := a.Recv[0].Count
	scratch, err := a.alloc(p, max(1, n*int64(a.Size)))
	if err != nil {
		return err
	}
	recvs := make([]Part, a.Size)
	for i := range recvs {
		recvs[i] = Part{Data: a.at(scratch, int64(i)*n), Count: n}
	}
	if err := exchange(a, p, sends, recvs); err != nil {
		return err
	}
	p.Do(func() error { return a.reduceGathered(a.Recv[0].Data, scratch, n, a.Size) })
	return nil
}}

package coll

import (
	"slices"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/mpi"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/reduce"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// allReduceMPI is MPI_Allreduce. A large tensor goes in several calls. For PREMUL_SUM, which MPI
// does not have, this rank multiplies before the call; for AVG it divides after the call. Bytes
// moved by each rank: it depends on the MPI, 2S at best.
var allReduceMPI = Algorithm{Name: "mpi", callsMPI: true, Memory: hostMemory, Enabled: byMPI, scratch: inputScratch, build: func(a *Args, p *Program) error {
	return reduceToRecv(a, p, mpi.FnAllreduce)
}}

// reduceToRecv appends calls of fn that reduce this rank's input with those of the others, on a rank that gets a result.
func reduceToRecv(a *Args, p *Program, fn mpi.Fn) error {
	recv := a.Recv[0]
	send, err := input(a, p)
	if err != nil {
		return err
	}
	if err := reduceCalls(a, p, fn, send, recv.Data, recv.Count); err != nil {
		return err
	}
	average(a, p, recv)
	return nil
}

// reduceChunk is how many bytes are reduced in one call, because some MPIs allocate as much again
// as they are given, or more.
const reduceChunk = 256 << 20

// reduceCalls appends calls of fn over n elements. If send is nil the operation is in place.
func reduceCalls(a *Args, p *Program, fn mpi.Fn, send, recv unsafe.Pointer, n int64) error {
	t, o, err := reduction(a)
	if err != nil {
		return err
	}
	most := reduceChunk / a.elem()
	for done := int64(0); ; done += most {
		chunk := min(n-done, most)
		c := p.Call()
		c.Fn, c.Comm, c.Op, c.Peer = fn, a.Comm, o, int32(a.Root)
		c.SendCount, c.SendType, c.RecvCount, c.RecvType = chunk, t, chunk, t
		c.InPlace = send == nil
		if send != nil {
			c.SendBuf = a.at(send, done)
		}
		if recv != nil {
			c.RecvBuf = a.at(recv, done)
		}
		if done+chunk >= n {
			return nil
		}
	}
}

// reduction describes the reduction to MPI.
func reduction(a *Args) (mpi.Datatype, mpi.Op, error) {
	t, okT := a.Lib.TypeOf(a.DType)
	o, okO := a.Lib.OpOf(a.Reduce, a.DType)
	if !okT || !okO {
		return t, o, status.New(status.Unsupported, "%s: this MPI cannot reduce %s with %s", a.Code, a.DType, a.Reduce)
	}
	return t, o, nil
}

// input returns the address of this rank's input, or nil if it is in place. For PREMUL_SUM the
// input is first copied to the result and multiplied there, so that the caller's input does not
// change. An input that overlaps the result is copied, because MPI allows only separate buffers or
// MPI_IN_PLACE (MPI-4.1 section 6.2.3).
func input(a *Args, p *Program) (unsafe.Pointer, error) {
	if a.Reduce == op.PremulSum {
		addCopies(a, p, a.Recv, a.Send)
		p.Do(func() error { return scale(a, a.Recv[0]) })
		return nil, nil
	}
	in, err := inputApart(a, p)
	if err != nil || in.Data == a.Recv[0].Data {
		return nil, err
	}
	return in.Data, nil
}

// inputScratch returns the scratch memory of input.
func inputScratch(a *Args) int64 {
	if len(a.Send) > 0 && len(a.Recv) > 0 && a.overlap(a.Send[0], a.Recv[0]) {
		return a.scratch(a.Send[0].Count)
	}
	return 0
}

// scale multiplies by the factor of PREMUL_SUM.
func scale(a *Args, b Part) error { return reduce.Scale(b.Data, b.Count, a.DType, a.Scale) }

// scaled returns n elements at data, for PREMUL_SUM multiplied, which go to scratch memory then.
func scaled(a *Args, p *Program, data unsafe.Pointer, n int64) (unsafe.Pointer, error) {
	if a.Reduce != op.PremulSum {
		return data, nil
	}
	to, err := a.alloc(p, n)
	if err == nil {
		p.Do(func() error { return reduce.ScaleTo(to, data, n, a.DType, a.Scale) })
	}
	return to, err
}

// average appends the division that turns a sum into AVG.
func average(a *Args, p *Program, b Part) {
	if a.Reduce == op.Avg {
		p.Do(func() error { return reduce.Divide(b.Data, b.Count, a.DType, a.Size) })
	}
}

// reduceMPI is MPI_Reduce. The buffers of ranks other than the root do not change. Bytes moved by
// each rank: S.
var reduceMPI = Algorithm{Name: "mpi", callsMPI: true, Memory: hostMemory, Enabled: byMPI, scratch: func(a *Args) int64 {
	if a.Rank == a.Root {
		return inputScratch(a)
	}
	return a.scratch(a.Count)
}, build: func(a *Args, p *Program) error {
	if a.Rank == a.Root {
		return reduceToRecv(a, p, mpi.FnReduce)
	}
	src, err := scaled(a, p, a.Send[0].Data, a.Send[0].Count)
	if err != nil {
		return err
	}
	if src == nil { // MPI_IN_PLACE is for the root alone, and an empty buffer has no address
		src = unsafe.Pointer(&nothing)
	}
	return reduceCalls(a, p, mpi.FnReduce, src, nil, a.Send[0].Count)
}}

// nothing is the address of an empty buffer. It is in the program's data, not on the heap.
var nothing [64]byte

// scanMPI is MPI_Scan or MPI_Exscan. Rank 0 of the exclusive scan keeps its buffer as it is. Bytes
// moved by each rank: it depends on the MPI, log2(n) S at most.
var scanMPI = Algorithm{Name: "mpi", callsMPI: true, Memory: hostMemory, Enabled: byMPI, scratch: func(a *Args) int64 {
	if !a.WritesRecv() {
		return a.scratch(a.Count)
	}
	return inputScratch(a)
}, build: func(a *Args, p *Program) error {
	fn := mpi.FnScan
	if exclusive(a) {
		fn = mpi.FnExscan
	}
	if a.WritesRecv() {
		return reduceToRecv(a, p, fn)
	}
	// MPI leaves rank 0's result undefined. This library leaves rank 0's buffer untouched.
	copied, err := laidOut(a, p, []Part{a.Part()})
	if err != nil {
		return err
	}
	addCopies(a, p, copied, []Part{a.Part()})
	if a.Reduce == op.PremulSum {
		p.Do(func() error { return scale(a, copied[0]) })
	}
	return reduceCalls(a, p, fn, nil, copied[0].Data, copied[0].Count)
}}

// reduceScatterMPI is MPI_Reduce_scatter_block, or MPI_Reduce_scatter if the parts differ in
// length, or one MPI_Reduce for each rank if the counts are too large for MPI. Bytes moved by each
// rank: (1-1/n) of the input out and in.
var reduceScatterMPI = Algorithm{Name: "mpi", callsMPI: true, Memory: hostMemory, Enabled: byMPI, scratch: func(a *Args) int64 {
	most := contiguousScratch(a, a.Send) + a.scratch(a.Recv[0].Count) + int32sScratch(a, 1)
	if a.Reduce == op.PremulSum {
		most += a.scratch(totalCount(a.Send))
	}
	return most
}, build: func(a *Args, p *Program) error {
	src, err := inOneBlock(a, p, a.Send)
	if err != nil {
		return err
	}
	total := totalCount(a.Send)
	if src, err = scaled(a, p, src, total); err != nil {
		return err
	}
	result := a.Recv[0]
	if a.overlap(Part{Data: src, Count: total}, result) { // for example, the result is this rank's part of the input
		if result.Data, err = a.alloc(p, result.Count); err != nil {
			return err
		}
	}
	if err := reduceParts(a, p, src, result); err != nil {
		return err
	}
	average(a, p, result)
	addCopies(a, p, a.Recv, []Part{result})
	return nil
}}

// reduceParts appends the calls of reduceScatterMPI. src has the parts of all ranks, one after the other.
func reduceParts(a *Args, p *Program, src unsafe.Pointer, result Part) error {
	t, o, err := reduction(a)
	if err != nil {
		return err
	}
	parts := perRank(a, a.Send)
	if totalCount(parts) > mpi.MaxCount {
		one := *a
		for i, part := range laidFrom(a, src, parts) {
			one.Root = i
			var recv unsafe.Pointer
			if i == a.Rank {
				recv = result.Data
			}
			if err := reduceCalls(&one, p, mpi.FnReduce, part.Data, recv, part.Count); err != nil {
				return err
			}
		}
		return nil
	}
	c := mpi.Call{Fn: mpi.FnReduceScatterBlock, Comm: a.Comm, Op: o, SendBuf: src, SendType: t, SendCount: result.Count,
		RecvBuf: result.Data, RecvCount: result.Count, RecvType: t}
	if slices.ContainsFunc(parts, func(part Part) bool { return part.Count != parts[0].Count }) {
		block, err := p.Alloc(int64(4 * a.Size))
		if err != nil {
			return err
		}
		for i, part := range parts {
			unsafe.Slice((*int32)(block), a.Size)[i] = int32(part.Count)
		}
		c.Fn, c.RecvCounts = mpi.FnReduceScatter, block
	}
	*p.Call() = c
	return nil
}

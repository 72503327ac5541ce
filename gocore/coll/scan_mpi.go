package coll

import (
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/mpi"
	"github.com/paddlempi/paddlempi/gocore/op"
)

// scanMPI is MPI_Scan or MPI_Exscan. Rank 0 of the exclusive scan keeps its buffer as it is. Bytes
// moved by each rank: it depends on the MPI, log2(n) S at most.
var scanMPI = Algorithm{Name: "mpi", callsMPI: true, Memory: hostMemory, Enabled: byMPI, scratch: func(a *Args) int64 {
	if !a.WritesRecv() {
		return a.scratch(a.Count)
	}
	return a.inputScratch()
}, build: func(a *Args, p *Program) error {
	fn := mpi.FnScan
	if a.exclusive() {
		fn = mpi.FnExscan
	}
	recv := a.Recv[0]
	if !a.WritesRecv() {
		// MPI leaves rank 0's result undefined. This library leaves rank 0's buffer untouched.
		scratch, err := a.alloc(p, max(1, recv.Count))
		if err != nil {
			return err
		}
		src, dst := a.Part().Data, Part{Data: scratch, Count: recv.Count}
		p.Do(func() error {
			a.copyElements(scratch, src, recv.Count)
			if a.Reduce == op.PremulSum {
				return a.scale(dst)
			}
			return nil
		})
		return a.reduceCalls(p, fn, nil, scratch, recv.Count)
	}
	send, err := a.input(p)
	if err != nil {
		return err
	}
	return a.reduceCalls(p, fn, send, recv.Data, recv.Count)
}}

// exclusive tells whether the input of a rank is left out of its own result.
func (a *Args) exclusive() bool { return a.Trait().Gets == op.ExceptFirst }

// scanChunk is how many elements of each rank are gathered at once.
const scanChunk = 1 << 20

// scanGather16 is the scan of types that this package reduces itself: 16-bit floats, and sums of
// narrow integers. Every rank gathers the inputs of all ranks, chunk by chunk. It reduces the inputs
// that its result needs in rank order, floats in float32. Bytes moved by each rank: (n-1)S in.
var scanGather16 = Algorithm{Name: "gather16", callsMPI: true, Memory: hostMemory, Enabled: reducedOutsideMPI, scratch: func(a *Args) int64 {
	return a.scratch(min(a.Count, scanChunk) * int64(a.Size))
}, build: func(a *Args, p *Program) error {
	src, recv := a.Part().Data, a.Recv[0]
	ranks := a.Rank + 1
	if a.exclusive() {
		ranks = a.Rank
	}
	all, err := a.alloc(p, max(1, min(recv.Count, scanChunk)*int64(a.Size)))
	if err != nil {
		return err
	}
	for done := int64(0); done < recv.Count; done += scanChunk {
		n := min(recv.Count-done, scanChunk)
		var dst unsafe.Pointer = a.at(recv.Data, done)
		a.allGatherBytes(p, a.at(src, done), all, n)
		if ranks > 0 {
			p.Do(func() error { return a.reduceGathered(dst, all, n, ranks) })
		}
	}
	return nil
}}

package coll

import (
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/mpi"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/reduce"
)

// reduceMPI is MPI_Reduce. The buffers of ranks other than the root do not change. Bytes moved by
// each rank: S.
var reduceMPI = Algorithm{Name: "mpi", callsMPI: true, Memory: hostMemory, Enabled: byMPI, scratch: func(a *Args) int64 {
	if a.Rank == a.Root {
		return a.inputScratch()
	}
	return a.scratch(a.Count)
}, build: func(a *Args, p *Program) error {
	if a.Rank == a.Root {
		send, err := a.input(p)
		if err != nil {
			return err
		}
		if err := a.reduceCalls(p, mpi.FnReduce, send, a.Recv[0].Data, a.Recv[0].Count); err != nil {
			return err
		}
		a.average(p, a.Recv[0])
		return nil
	}
	src := a.Send[0]
	if a.Reduce == op.PremulSum {
		scaled, err := a.alloc(p, max(1, src.Count))
		if err != nil {
			return err
		}
		in := src.Data
		p.Do(func() error { return reduce.ScaleTo(scaled, in, src.Count, a.DType, a.Scale) })
		src.Data = scaled
	}
	if src.Data == nil { // MPI_IN_PLACE is for the root alone, and an empty buffer has no address
		src.Data = unsafe.Pointer(&nothing)
	}
	return a.reduceCalls(p, mpi.FnReduce, src.Data, nil, src.Count)
}}

// nothing is the address of an empty buffer. It is in the program's data, not on the heap.
var nothing [64]byte

// reduceSlices16 is allReduceSlices16, but the slices are gathered on the root alone. Bytes moved
// by each rank: (1-1/n)S out and in, the reduction, S/n out. The root gets (1-1/n)S at the end.
var reduceSlices16 = Algorithm{Name: "slices16", callsMPI: true, Memory: hostMemory, Enabled: reducedOutsideMPI, polls: always, scratch: func(a *Args) int64 {
	return a.sumSliceScratch(a.Count) + a.scratch(a.slices(a.Count)[a.Rank].count)
}, build: func(a *Args, p *Program) error {
	src := a.Part()
	sl := a.slices(src.Count)
	mine := sl[a.Rank]
	if a.Rank != a.Root {
		dst, err := a.alloc(p, max(1, mine.count))
		if err != nil {
			return err
		}
		if err := a.sumSlice(p, src.Data, dst, sl); err != nil {
			return err
		}
		t := messageBatch{a: a, p: p}
		t.send(a.Root, dst, mine.count)
		t.flush()
		return t.err
	}
	dst := a.Recv[0].Data
	if err := a.sumSlice(p, src.Data, a.at(dst, mine.from), sl); err != nil {
		return err
	}
	t := messageBatch{a: a, p: p}
	for i, s := range sl {
		if i != a.Rank {
			t.recv(i, a.at(dst, s.from), s.count)
		}
	}
	t.flush()
	return t.err
}}

package coll

import (
	"slices"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/mpi"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/reduce"
)

// The algorithms slices16 and gather16 reduce float16 and bfloat16 with one rounding. MPI cannot, because a
// user-defined MPI_Op would round at every hop. They also serve sums of narrow integers, which wrap (reducedOutsideMPI).

// allReduceSlices16: each rank sends slice i of its buffer to rank i. Rank i reduces the n slices in rank
// order, floats in float32 with one rounding. Then the slices are gathered on all ranks. Bytes
// moved by each rank: (1-1/n)S out and in, the reduction, (1-1/n)S out and in. All ranks get
// identical bits, and a repeated run gives the same bits again.
var allReduceSlices16 = slices16(func(a *Args) int64 {
	return sumScratch(a, ownSlice(a)) + int32sScratch(a, 2)
}, func(a *Args, p *Program) error {
	results := sliced(a, a.Recv[0])
	if err := sumParts(a, p, sliced(a, a.Part()), results[a.Rank].Data); err != nil {
		return err
	}
	return gatherParts(a, p, results)
})

// reduceSlices16 is allReduceSlices16, but the slices are gathered on the root alone. Bytes moved
// by each rank: (1-1/n)S out and in, the reduction, S/n out. The root gets (1-1/n)S at the end.
var reduceSlices16 = slices16(func(a *Args) int64 {
	return sumScratch(a, ownSlice(a)) + a.scratch(ownSlice(a))
}, func(a *Args, p *Program) error {
	t := messageBatch{a: a, p: p}
	if a.Rank != a.Root {
		mine := Part{Count: ownSlice(a)}
		var err error
		if mine.Data, err = a.alloc(p, mine.Count); err != nil {
			return err
		}
		if err := sumParts(a, p, sliced(a, a.Part()), mine.Data); err != nil {
			return err
		}
		t.add(mpi.FnSend, a.Root, mine)
		return t.flush()
	}
	results := sliced(a, a.Recv[0])
	if err := sumParts(a, p, sliced(a, a.Part()), results[a.Rank].Data); err != nil {
		return err
	}
	for i, part := range results {
		if i != a.Rank {
			t.add(mpi.FnRecv, i, part)
		}
	}
	return t.flush()
})

// reduceScatterSlices16 sends every rank its part from each rank. That rank reduces the parts in
// rank order, floats in float32 with one rounding. Bytes moved by each rank: (1-1/n) of the input
// out and in.
var reduceScatterSlices16 = slices16(func(a *Args) int64 {
	return sumScratch(a, a.Recv[0].Count)
}, func(a *Args, p *Program) error {
	return sumParts(a, p, perRank(a, a.Send), a.Recv[0].Data)
})

func slices16(scratch func(*Args) int64, build func(*Args, *Program) error) Algorithm {
	return Algorithm{Name: "slices16", callsMPI: true, Memory: hostMemory, Enabled: reducedOutsideMPI, polls: always, scratch: scratch, build: build}
}

// ownSlice returns the elements of this rank's slice.
func ownSlice(a *Args) int64 { return cutAlike(a.Count, a.Size)[a.Rank].count }

// sumScratch returns the scratch memory of sumParts for a part of n elements.
func sumScratch(a *Args, n int64) int64 { return a.scratch(n * int64(a.Size)) }

// sumParts sends all ranks their parts, collects those for this rank, and leaves the reduction in dst, which may be
// among what is sent.
func sumParts(a *Args, p *Program, sends []Part, dst unsafe.Pointer) error {
	mine := sends[a.Rank].Count
	recvs, err := laidOut(a, p, slices.Repeat([]Part{{Count: mine}}, a.Size))
	if err != nil {
		return err
	}
	if err := exchange(a, p, sends, recvs); err != nil {
		return err
	}
	addSum(a, p, dst, recvs[0].Data, mine, a.Size)
	return nil
}

// addSum appends the reduction of the inputs of ranks 0 to ranks-1 into dst. gathered holds the inputs of
// all ranks, n elements each, one after another.
func addSum(a *Args, p *Program, dst, gathered unsafe.Pointer, n int64, ranks int) {
	p.Do(func() error {
		srcs := make([]unsafe.Pointer, ranks)
		for i := range srcs {
			srcs[i] = a.at(gathered, int64(i)*n)
		}
		fold := reduce.NewFold(a.DType, a.Reduce, ranks, a.Scale)
		fold.Run(dst, srcs, n)
		return nil
	})
}

// gather16Limit is the size in bytes, over all ranks' inputs, up to which one all-gather and a sum
// on every rank are faster than two exchanges of slices.
const gather16Limit = 64 << 10

// allReduceGather16 is for small buffers. After an all-gather every rank reduces the n inputs in rank order, floats in
// float32 with one rounding. Bytes moved by each rank: (n-1)S in.
var allReduceGather16 = Algorithm{Name: "gather16", callsMPI: true, Memory: hostMemory, Enabled: func(s *Sig) bool {
	return reducedOutsideMPI(s) && s.Count*int64(s.DType.Size())*int64(s.Size) <= gather16Limit
}, scratch: gatheredScratch, build: func(a *Args, p *Program) error {
	return gatherAndSum(a, p, a.Size)
}}

// scanChunk is how many elements of each rank are gathered at once.
const scanChunk = 1 << 20

// exclusive tells whether the input of a rank is left out of its own result.
func exclusive(a *Args) bool { return a.Trait().Gets == op.ExceptFirst }

// scanGather16: every rank gathers the inputs of all ranks, chunk by chunk. It reduces the inputs
// that its result needs in rank order, floats in float32. Bytes moved by each rank: (n-1)S in.
var scanGather16 = Algorithm{Name: "gather16", callsMPI: true, Memory: hostMemory, Enabled: reducedOutsideMPI, scratch: gatheredScratch, build: func(a *Args, p *Program) error {
	ranks := a.Rank + 1
	if exclusive(a) {
		ranks = a.Rank
	}
	return gatherAndSum(a, p, ranks)
}}

func gatheredScratch(a *Args) int64 { return sumScratch(a, min(a.Count, scanChunk)) }

// gatherAndSum appends, chunk by chunk, an all-gather of the inputs and the reduction of those of ranks 0 to ranks-1; of none
// if ranks is 0.
func gatherAndSum(a *Args, p *Program, ranks int) error {
	all, err := a.alloc(p, min(a.Count, scanChunk)*int64(a.Size))
	if err != nil {
		return err
	}
	for done := int64(0); done < a.Count; done += scanChunk {
		n := min(a.Count-done, scanChunk)
		c := p.Call() // n is so small that the bytes are within an int
		c.Fn, c.Comm = mpi.FnAllgather, a.Comm
		c.SendBuf, c.SendCount, c.SendType = a.at(a.Part().Data, done), n*a.elem(), a.Lib.Byte()
		c.RecvBuf, c.RecvCount, c.RecvType = all, n*a.elem(), a.Lib.Byte()
		if ranks > 0 {
			addSum(a, p, a.at(a.Recv[0].Data, done), all, n, ranks)
		}
	}
	return nil
}

package coll

import (
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/mpi"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/reduce"
)

// allReduceSlices16 reduces float16 and bfloat16 with one rounding. MPI cannot, because a
// user-defined MPI_Op would round at every hop. The algorithm also serves sums of narrow integers,
// which wrap.
//
// Steps: each rank sends slice i of its buffer to rank i. Rank i reduces the n slices in rank
// order, floats in float32 with one rounding. Then the slices are gathered on all ranks. Bytes
// moved by each rank: (1-1/n)S out and in, the reduction, (1-1/n)S out and in. All ranks get
// identical bits, and a repeated run gives the same bits again.
var allReduceSlices16 = Algorithm{Name: "slices16", callsMPI: true, Memory: hostMemory, Enabled: reducedOutsideMPI, polls: always, scratch: func(a *Args) int64 {
	return a.sumSliceScratch(a.Count) + a.int32sScratch(2)
}, build: func(a *Args, p *Program) error {
	src, dst := a.Recv[0], a.Recv[0]
	if len(a.Send) > 0 {
		src = a.Send[0]
	}
	sl := a.slices(dst.Count)
	if err := a.sumSlice(p, src.Data, a.at(dst.Data, sl[a.Rank].from), sl); err != nil {
		return err
	}
	return a.gatherSlices(p, dst.Data, sl)
}}

// slice is the part of a buffer that one rank reduces.
type slice struct{ from, count int64 }

// sliceAlign is the number of elements of which slices are multiples: one cache line of 2-byte
// elements.
const sliceAlign = 32

func (a *Args) slices(n int64) []slice { return a.cut(n, a.Size) }

// cut cuts count elements in n slices of one length, but the last ones may be shorter or empty.
func (a *Args) cut(count int64, n int) []slice {
	length := (count + int64(n) - 1) / int64(n)
	return cutSlices(count, n, (length+sliceAlign-1)/sliceAlign*sliceAlign)
}

func cutSlices(count int64, n int, length int64) []slice {
	s := make([]slice, n)
	for i := range s {
		from := min(int64(i)*length, count)
		s[i] = slice{from, min(length, count-from)}
	}
	return s
}

// sumSliceScratch returns the scratch memory of sumSlice.
func (a *Args) sumSliceScratch(n int64) int64 {
	return a.scratch(a.slices(n)[a.Rank].count * int64(a.Size))
}

// sumSlice collects this rank's slice from all ranks and leaves the reduction in dst, which may be
// part of src.
func (a *Args) sumSlice(p *Program, src, dst unsafe.Pointer, sl []slice) error {
	n := sl[a.Rank].count
	scratch, err := a.alloc(p, max(1, n*int64(a.Size)))
	if err != nil {
		return err
	}
	sends, recvs := make([]Part, a.Size), make([]Part, a.Size)
	for i := range sl {
		sends[i] = Part{Data: a.at(src, sl[i].from), Count: sl[i].count}
		recvs[i] = Part{Data: a.at(scratch, int64(i)*n), Count: n}
	}
	if err := exchange(a, p, sends, recvs); err != nil {
		return err
	}
	p.Do(func() error { return a.reduceGathered(dst, scratch, n, a.Size) })
	return nil
}

// reduceGathered reduces the inputs of ranks 0 to ranks-1 into dst. gathered holds the inputs of
// all ranks, n elements each, one after another.
func (a *Args) reduceGathered(dst, gathered unsafe.Pointer, n int64, ranks int) error {
	if !reduce.Is16(a.DType) {
		a.copyElements(dst, gathered, n)
		for i := 1; i < ranks; i++ {
			if err := reduce.Combine(dst, a.at(gathered, int64(i)*n), n, a.DType, a.Reduce); err != nil {
				return err
			}
		}
		if a.Reduce == op.Avg {
			return reduce.Divide(dst, n, a.DType, ranks)
		}
		return nil
	}
	srcs := make([]unsafe.Pointer, ranks)
	for i := range srcs {
		srcs[i] = a.at(gathered, int64(i)*n)
	}
	var scales []float64
	if a.Reduce == op.PremulSum {
		scales = make([]float64, ranks)
		for i := range scales {
			scales[i] = a.Scale
		}
	}
	return reduce.Reduce16(dst, srcs, n, a.DType, a.Reduce, scales)
}

// gatherSlices gives all slices to all ranks. Each rank has its slice in buf, in its place.
func (a *Args) gatherSlices(p *Program, buf unsafe.Pointer, sl []slice) error {
	if a.NoMPI {
		a.gatherByBounce(p, sl[0].count*a.elem(), func(r int) (unsafe.Pointer, int64) {
			return a.at(buf, sl[r].from), sl[r].count * a.elem()
		})
		return nil
	}
	last := sl[len(sl)-1]
	if total := (last.from + last.count) * a.elem(); total > mpi.MaxCount {
		for i, s := range sl {
			a.broadcastPart(p, i, a.at(buf, s.from), s.count)
		}
		return nil
	}
	counts, displs, err := a.int32s(p, sl)
	if err != nil {
		return err
	}
	c := p.Call()
	c.Fn, c.Comm, c.InPlace = mpi.FnAllgatherv, a.Comm, true
	c.RecvBuf, c.RecvType, c.RecvCounts, c.RecvDispls = buf, a.Lib.Byte(), counts, displs
	return nil
}

// int32s writes slices as the counts and displacements in bytes that MPI takes.
func (a *Args) int32s(p *Program, sl []slice) (counts, displs unsafe.Pointer, err error) {
	block, err := p.Alloc(int64(len(sl)) * 8)
	if err != nil {
		return nil, nil, err
	}
	v := unsafe.Slice((*int32)(block), 2*len(sl))
	for i, s := range sl {
		v[i], v[len(sl)+i] = int32(s.count*a.elem()), int32(s.from*a.elem())
	}
	return block, unsafe.Add(block, 4*len(sl)), nil
}

// broadcastPart appends a broadcast from root.
func (a *Args) broadcastPart(p *Program, root int, data unsafe.Pointer, elements int64) {
	if elements > 0 {
		a.addBroadcast(p, root, data, elements*a.elem())
	}
}

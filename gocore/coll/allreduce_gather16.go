package coll

import (
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/mpi"
)

// gather16Limit is the size in bytes, over all ranks' inputs, up to which one all-gather and a sum
// on every rank are faster than two exchanges of slices.
const gather16Limit = 64 << 10

// allReduceGather16 is for small buffers that are reduced outside of MPI (reducedOutsideMPI). After
// an all-gather every rank reduces the n inputs in rank order, floats in float32 with one rounding.
// Bytes moved by each rank: (n-1)S in.
var allReduceGather16 = Algorithm{Name: "gather16", callsMPI: true, Memory: hostMemory, Enabled: func(s *Sig) bool {
	return reducedOutsideMPI(s) && s.Count*int64(s.DType.Size())*int64(s.Size) <= gather16Limit
}, scratch: func(a *Args) int64 {
	return a.scratch(a.Count * int64(a.Size))
}, build: func(a *Args, p *Program) error {
	src, dst := a.Recv[0], a.Recv[0]
	if len(a.Send) > 0 {
		src = a.Send[0]
	}
	all, err := a.alloc(p, max(1, dst.Count*int64(a.Size)))
	if err != nil {
		return err
	}
	a.allGatherBytes(p, src.Data, all, dst.Count)
	p.Do(func() error { return a.reduceGathered(dst.Data, all, dst.Count, a.Size) })
	return nil
}}

// allGatherBytes appends an all-gather of n elements from each rank. Their bytes must be within an
// int.
func (a *Args) allGatherBytes(p *Program, src, dst unsafe.Pointer, n int64) {
	c := p.Call()
	c.Fn, c.Comm = mpi.FnAllgather, a.Comm
	c.SendBuf, c.SendCount, c.SendType = src, n*a.elem(), a.Lib.Byte()
	c.RecvBuf, c.RecvCount, c.RecvType = dst, n*a.elem(), a.Lib.Byte()
}

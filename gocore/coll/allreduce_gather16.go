package coll

import (
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/mpi"
)

// gather16Limit is the size in bytes of all contributions up to which one
// all-gather and a sum on every rank beat two exchanges of slices.
const gather16Limit = 64 << 10

// allReduceGather16 is for small buffers of what is reduced here (reducedHere): an
// all-gather, then every rank adds the n contributions in rank order, floats in float32
// with one rounding.
// Bytes moved a rank: (n-1)S in.
var allReduceGather16 = Algorithm{Name: "gather16", Enabled: func(s *Sig) bool {
	return reducedOnHost(s) && s.Count*int64(s.DType.Size())*int64(s.Size) <= gather16Limit
}, Scratch: func(a *Args) int64 {
	return a.scratch(a.Count * int64(a.Size))
}, Build: func(a *Args, p *Program) error {
	src, dst := a.Recv[0], a.Recv[0]
	if len(a.Send) > 0 {
		src = a.Send[0]
	}
	all, err := a.alloc(p, max(1, dst.Count*int64(a.Size)))
	if err != nil {
		return err
	}
	a.allGatherBytes(p, src.Data, all, dst.Count)
	p.Do(func() error { return a.sum16(dst.Data, all, dst.Count, a.Size) })
	return nil
}}

// allGatherBytes appends an all-gather of n elements a rank, all within an int.
func (a *Args) allGatherBytes(p *Program, src, dst unsafe.Pointer, n int64) {
	c := p.Call()
	c.Fn, c.Comm = mpi.FnAllgather, a.Comm
	c.SendBuf, c.SendCount, c.SendType = src, n*a.elem(), a.Lib.Byte()
	c.RecvBuf, c.RecvCount, c.RecvType = dst, n*a.elem(), a.Lib.Byte()
}

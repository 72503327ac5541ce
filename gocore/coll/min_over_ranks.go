package coll

import (
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/mpi"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// minOverRanks appends an MPI_Allreduce with MIN. Every rank contributes word, or the greatest
// int32 if ok is set. The returned pointer has the result when the call is done. words is room for
// two words, outside the Go heap.
func (a *Args) minOverRanks(p *Program, words []int32, ok bool, word int32) *int32 {
	words[0] = word
	if ok {
		words[0] = 1<<31 - 1
	}
	if a.NoMPI {
		a.leastByBounce(p, words)
		return &words[1]
	}
	t, _ := a.Lib.TypeOf(op.Int32)
	o, _ := a.Lib.OpOf(op.Min, op.Int32)
	c := p.Call()
	c.Fn, c.Comm, c.Op = mpi.FnAllreduce, a.Comm, o
	c.SendBuf, c.SendCount, c.SendType = unsafe.Pointer(&words[0]), 1, t
	c.RecvBuf, c.RecvCount, c.RecvType = unsafe.Pointer(&words[1]), 1, t
	return &words[1]
}

// peerDeviceError is the error on the other ranks when the device of one rank has failed.
func (a *Args) peerDeviceError(rank int32) error {
	return status.New(status.Cuda, "%s: rank %d of the group could not do its part on its device; its own error says why, and no result is valid", a.Code, rank).WithRanks(int(rank))
}

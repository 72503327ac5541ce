package coll

import (
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/mpi"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// allToAllEvenMPI is MPI_Alltoall of bytes, when every part of every rank has the
// same length. Bytes moved a rank: (1-1/n)S out and in.
var allToAllEvenMPI = Algorithm{Name: "mpi", Enabled: evenlyOnHost, Scratch: func(a *Args) int64 {
	return a.copying(a.Send, a.Recv) + a.joining(a.Send) + a.joining(a.Recv)
}, Build: func(a *Args, p *Program) error {
	sends, err := a.apart(p, a.Send, a.Recv)
	if err != nil {
		return err
	}
	src, _, err := a.contiguous(p, sends, true)
	if err != nil {
		return err
	}
	dst, spread, err := a.contiguous(p, a.Recv, false)
	if err != nil {
		return err
	}
	n, t, err := a.bytes(p, a.Count*a.elem())
	if err != nil {
		return err
	}
	c := p.Call()
	c.Fn, c.Comm = mpi.FnAlltoall, a.Comm
	c.SendBuf, c.SendCount, c.SendType = src, n, t
	c.RecvBuf, c.RecvCount, c.RecvType = dst, n, t
	if spread != nil {
		p.Do(spread)
	}
	return nil
}}

// allToAllUnevenMPI exchanges the lengths, so that parts that do not match are an
// error on every rank instead of garbage, and then the parts between pairs of ranks.
// Bytes moved a rank: 8n for the lengths, 8 for the verdict, the parts.
var allToAllUnevenMPI = Algorithm{Name: "pairwise", Enabled: onHost, Polls: always, Scratch: func(a *Args) int64 {
	return a.copying(a.Send, a.Recv) + a.lengthsScratch()
}, Build: func(a *Args, p *Program) error {
	apart, err := a.apart(p, a.Send, a.Recv)
	if err != nil {
		return err
	}
	sends, recvs := a.each(apart), a.each(a.Recv)
	if err := agreeOnLengths(a, p, sends, recvs); err != nil {
		return err
	}
	return exchange(a, p, sends, recvs)
}}

// lengthsScratch is the scratch memory of agreeOnLengths.
func (a *Args) lengthsScratch() int64 { return pad(int64(8 * (2*a.Size + 2))) }

// agreeOnLengths tells every rank what the others send it, and fails on all of them
// where that is not what one expects.
func agreeOnLengths(a *Args, p *Program, sends, recvs []Part) error {
	block, err := p.Alloc(int64(8 * (2*a.Size + 2)))
	if err != nil {
		return err
	}
	words := unsafe.Slice((*int64)(block), 2*a.Size+2)
	mine, theirs, verdict := words[:a.Size], words[a.Size:2*a.Size], words[2*a.Size:]
	for i := range sends {
		mine[i] = sends[i].Count
	}
	t, _ := a.Lib.TypeOf(op.Int64)
	o, _ := a.Lib.OpOf(op.Max, op.Int64)
	c := p.Call()
	c.Fn, c.Comm = mpi.FnAlltoall, a.Comm
	c.SendBuf, c.SendCount, c.SendType = unsafe.Pointer(&mine[0]), 1, t
	c.RecvBuf, c.RecvCount, c.RecvType = unsafe.Pointer(&theirs[0]), 1, t
	p.Do(func() error {
		verdict[0] = 0
		for i := range recvs {
			if theirs[i] != recvs[i].Count {
				verdict[0] = int64(i+1)<<32 | int64(a.Rank)
			}
		}
		return nil
	})
	c = p.Call()
	c.Fn, c.Comm, c.Op = mpi.FnAllreduce, a.Comm, o
	c.SendBuf, c.SendCount, c.SendType = unsafe.Pointer(&verdict[0]), 1, t
	c.RecvBuf, c.RecvCount, c.RecvType = unsafe.Pointer(&verdict[1]), 1, t
	p.Do(func() error {
		v := verdict[1]
		if v == 0 {
			return nil
		}
		from, to := int(v>>32)-1, int(v&0xffffffff)
		if to == a.Rank {
			return status.New(status.Mismatch, "all_to_all: rank %d of the group sends %d elements to rank %d, which expects %d; make output_split_sizes[%d] here match input_split_sizes[%d] there; nothing was sent",
				from, theirs[from], to, recvs[from].Count, from, to).WithRanks(from, to)
		}
		return status.New(status.Mismatch, "all_to_all: what rank %d of the group sends to rank %d is not as long as that rank expects; nothing was sent",
			from, to).WithRanks(from, to)
	})
	return nil
}

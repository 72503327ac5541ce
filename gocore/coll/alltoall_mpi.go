package coll

import (
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/mpi"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// allToAllEvenMPI is MPI_Alltoall of bytes. All parts of all ranks have the same length. Bytes
// moved by each rank: (1-1/n)S out and in. S is all that a rank sends.
var allToAllEvenMPI = Algorithm{Name: "mpi", callsMPI: true, Memory: hostMemory, Enabled: evenShares, scratch: func(a *Args) int64 {
	return a.withoutOverlapScratch(a.Send, a.Recv) + a.contiguousScratch(a.Send) + a.contiguousScratch(a.Recv)
}, build: func(a *Args, p *Program) error {
	sends, err := a.withoutOverlap(p, a.Send, a.Recv)
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

// allToAllUnevenMPI first exchanges the lengths, so that parts whose lengths do not match are an
// error on every rank, not garbage. Then it sends the parts between pairs of ranks. Bytes moved by
// each rank: 8n for the lengths, 8 for the verdict, and the parts.
var allToAllUnevenMPI = Algorithm{Name: "pairwise", callsMPI: true, Memory: hostMemory, polls: always, scratch: func(a *Args) int64 {
	return a.withoutOverlapScratch(a.Send, a.Recv) + a.lengthsScratch()
}, build: func(a *Args, p *Program) error {
	sources, err := a.withoutOverlap(p, a.Send, a.Recv)
	if err != nil {
		return err
	}
	sends, recvs := a.perRank(sources), a.perRank(a.Recv)
	if err := agreeOnLengths(a, p, sends, recvs); err != nil {
		return err
	}
	return exchange(a, p, sends, recvs)
}}

// lengthsScratch returns the scratch memory of agreeOnLengths, and what exchange takes of the same kind without MPI.
func (a *Args) lengthsScratch() int64 {
	if a.NoMPI {
		return 2 * a.pairsScratch()
	}
	return pad(int64(8 * (2*a.Size + 2)))
}

// agreeOnLengths tells every rank how much the others send it. If a rank expects another length,
// all ranks fail.
func agreeOnLengths(a *Args, p *Program, sends, recvs []Part) error {
	if a.NoMPI {
		_, err := a.addPairs(p, sends, recvs)
		return err
	}
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
		if from < 0 || from >= a.Size || to >= a.Size {
			return status.New(status.MPI, "%s: MPI's result of the comparison of lengths names rank %d of %d: a rank is damaged", a.Code, from, a.Size)
		}
		return a.lengthsDiffer(from, to, theirs[from], recvs[from].Count)
	})
	return nil
}

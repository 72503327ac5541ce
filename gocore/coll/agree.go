package coll

import (
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/mpi"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// This file has what the ranks agree on while a collective is under way.

// minOverRanks appends an MPI_Allreduce with MIN. Every rank contributes word, or the greatest
// int32 if ok is set. The returned pointer has the result when the call is done. words is room for
// two words, outside the Go heap.
func minOverRanks(a *Args, p *Program, words []int32, ok bool, word int32) *int32 {
	words[0] = word
	if ok {
		words[0] = 1<<31 - 1
	}
	if a.NoMPI {
		leastByBounce(a, p, words)
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
func peerDeviceError(a *Args, rank int32) error {
	return status.New(status.Cuda, "%s: rank %d of the group could not do its part on its device; its own error says why, and no result is valid", a.Code, rank).WithRanks(int(rank))
}

// In an all_to_all of different lengths, no rank knows what the others send. So they compare, before a byte moves.

// lengthsScratch returns the scratch memory of agreeOnLengths, and what exchange takes of the same kind without MPI.
func lengthsScratch(a *Args) int64 {
	if a.NoMPI {
		return 2 * pairsScratch(a)
	}
	return pad(int64(8 * (2*a.Size + 2)))
}

// agreeOnLengths tells every rank how much the others send it. If a rank expects another length,
// all ranks fail.
func agreeOnLengths(a *Args, p *Program, sends, recvs []Part) error {
	if a.NoMPI {
		_, err := addPairs(a, p, sends, recvs)
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
		return lengthsDiffer(a, from, to, theirs[from], recvs[from].Count)
	})
	return nil
}

// mostBytes is more than any memory: no call moves so much between all its ranks.
const mostBytes = 1 << 48

// compareLengths returns an error, the same on all ranks, if a rank expects another length than is sent to it. The lengths may be anything,
// because they come from other processes.
func compareLengths(a *Args, sent, expected func(from, to int) int64) error {
	left := mostBytes / a.elem()
	for from := range a.Size {
		for to := range a.Size {
			n := sent(from, to)
			if n < 0 || n > left {
				return a.notAsAgreed(from)
			}
			left -= n
		}
	}
	for from := a.Size - 1; from >= 0; from-- {
		for to := a.Size - 1; to >= 0; to-- {
			if gives, wants := sent(from, to), expected(from, to); gives != wants {
				return lengthsDiffer(a, from, to, gives, wants)
			}
		}
	}
	return nil
}

// lengthsDiffer is the error that a rank gives another one more or less than that one expects.
func lengthsDiffer(a *Args, from, to int, sent, expected int64) error {
	if to == a.Rank {
		return status.New(status.Mismatch, "all_to_all: rank %d of the group sends %d elements to rank %d, which expects %d; make output_split_sizes[%d] here match input_split_sizes[%d] there; nothing was sent",
			from, sent, to, expected, from, to).WithRanks(from, to)
	}
	return status.New(status.Mismatch, "all_to_all: rank %d of the group sends rank %d another length than that rank expects; nothing was sent",
		from, to).WithRanks(from, to)
}

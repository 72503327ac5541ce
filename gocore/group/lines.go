package group

import (
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/arrive"
	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/mpi"
	"github.com/paddlempi/paddlempi/gocore/op"
)

// makeLines makes the lines that members share, which are the ranks of comm on this rank's node. It
// is collective over comm, whose ranks may be on several nodes. A rank that is alone on its node
// gets no lines. If some rank of comm cannot map its node's lines, all ranks get none, and how is
// byMessage.
func (e *Env) makeLines(comm mpi.Comm, members []int) (_ *arrive.Lines, how way, _ error) {
	n, me := len(members), indexOf(members, e.Topo.Rank)
	file, how, err := e.shareFile(comm, members, "paddlempi-arrive", arrive.LinesSize(n))
	if err != nil || how == byMessage {
		return nil, how, err
	}
	ok := []int64{1}
	var lines *arrive.Lines
	if file != nil {
		if lines, err = arrive.NewLines(file, n, me); err != nil {
			ok[0] = 0
		}
		file.Close()
	}
	if err := e.reduceAll(comm, ok, op.Min); err != nil {
		return nil, how, err
	}
	if ok[0] == 0 {
		if lines != nil {
			_ = lines.Close()
		}
		return nil, byMessage, nil
	}
	if lines != nil && e.crowded {
		lines.YieldEvery(16)
	}
	return lines, how, nil
}

// onWords runs a blocking collective on int64 words. The first n words are this rank's
// contribution. The result is written to words.
func (e *Env) onWords(fn mpi.Fn, comm mpi.Comm, words []int64, n int, r op.ReduceOp) error {
	block, err := mem.Alloc(int64(8 * (n + len(words))))
	if err != nil {
		return err
	}
	defer mem.Free(block)
	c := unsafe.Slice((*int64)(block), n+len(words))
	copy(c, words[:n])
	t, _ := e.Lib.TypeOf(op.Int64)
	o, _ := e.Lib.OpOf(r, op.Int64)
	if err := e.Lib.Run(&mpi.Call{Fn: fn, Comm: comm, Op: o, SendBuf: block, SendCount: int64(n), SendType: t,
		RecvBuf: unsafe.Pointer(&c[n]), RecvCount: int64(n), RecvType: t}, nil); err != nil {
		return err
	}
	copy(words, c[n:])
	return nil
}

func indexOf(list []int, v int) int {
	for i := range list {
		if list[i] == v {
			return i
		}
	}
	return -1
}

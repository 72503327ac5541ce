package group

import (
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/arrive"
	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/mpi"
	"github.com/paddlempi/paddlempi/gocore/op"
)

// makeLines makes lines that the members given share, all on this rank's node. It
// is collective over comm, whose ranks may be on several nodes; each node gets
// lines of its own, a rank alone on its node none. It returns nil where some process
// could not map them, on every rank of comm alike: containers may share a host and
// no /proc.
func (e *Env) makeLines(comm mpi.Comm, members []int) (*arrive.Lines, error) {
	me, alone := indexOf(members, e.Topo.Rank), len(members) == 1
	var lines *arrive.Lines
	address := []int64{-1, -1}
	if me == 0 && !alone {
		var err error
		if lines, err = arrive.NewLines(len(members), 0); err == nil {
			address = []int64{int64(lines.Pid()), int64(lines.Fd())}
		}
	}
	size, err := e.Lib.Size(comm)
	if err != nil {
		return nil, err
	}
	// Everyone says: my node's first member, and the address if that is me.
	all := make([]int64, 3*size)
	copy(all, []int64{int64(members[0]), address[0], address[1]})
	if err := e.onWords(mpi.FnAllgather, comm, all, 3, 0); err != nil {
		return nil, err
	}
	if me != 0 {
		for i := 0; i < size; i++ {
			if entry := all[3*i : 3*i+3]; entry[0] == int64(members[0]) && entry[2] >= 0 {
				lines, _ = arrive.AttachLines(int(entry[1]), int(entry[2]), len(members), me)
			}
		}
	}
	// The agreement is also the moment at which the maker may close the file.
	ok := []int64{1}
	if lines == nil && !alone {
		ok[0] = 0
	}
	if err := e.reduceAll(comm, ok, op.Min); err != nil {
		return nil, err
	}
	if lines == nil {
		return nil, nil
	}
	if ok[0] == 0 {
		_ = lines.Close()
		return nil, nil
	}
	lines.CloseFile()
	if e.crowded {
		lines.YieldEvery(16)
	}
	return lines, nil
}

// onWords runs a blocking collective on int64 words: the first n are this rank's
// contribution, the result takes their place.
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

package mpifake

import (
	"slices"

	"github.com/paddlempi/paddlempi/gocore/mpi"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// Datatype handles of the fake: typeBase plus the number of the dtype.
const (
	typeByte mpi.Datatype = 0x80
	typeBase mpi.Datatype = 0x100
	opBase   mpi.Op       = 0x500
)

func (l *library) Byte() mpi.Datatype { return typeByte }

func (l *library) Bytes(n int64) (mpi.Datatype, func(), error) {
	if n <= 0 {
		return 0, nil, failure(classCount, "a datatype of %d bytes", n)
	}
	l.w.mu.Lock()
	defer l.w.mu.Unlock()
	t := mpi.Datatype(l.handle())
	l.types[t] = n
	return t, func() {
		l.w.mu.Lock()
		defer l.w.mu.Unlock()
		delete(l.types, t)
	}, nil
}

func (l *library) TypeOf(d op.DType) (mpi.Datatype, bool) {
	if folds[d] == nil {
		return 0, false
	}
	return typeBase + mpi.Datatype(d), true
}

// OpOf returns the sum for AVG and PREMUL_SUM, as the real library does. The caller scales.
func (l *library) OpOf(r op.ReduceOp, d op.DType) (mpi.Op, bool) {
	if r == op.Avg || r == op.PremulSum {
		if !op.Defined(r, d) {
			return 0, false
		}
		r = op.Sum
	}
	if folds[d] == nil || !folds[d](r, nil, nil) {
		return 0, false
	}
	return opBase + mpi.Op(r), true
}

// size returns the length of one element in bytes.
func (l *library) size(t mpi.Datatype) (int64, *status.Error) {
	if t == typeByte {
		return 1, nil
	}
	if n, ok := l.types[t]; ok {
		return n, nil
	}
	if d := op.DType(t - typeBase); folds[d] != nil {
		return int64(d.Size()), nil
	}
	return 0, failure(classType, "rank %d has no datatype %#x: never made, freed, or another rank's", l.rank, uintptr(t))
}

func reducing(f mpi.Fn) bool {
	switch f {
	case mpi.FnAllreduce, mpi.FnReduce, mpi.FnReduceScatter, mpi.FnReduceScatterBlock, mpi.FnScan, mpi.FnExscan:
		return true
	}
	return false
}

// reduce folds the inputs in rank order, so that the result has the same bits in every run.
func (m *meeting) reduce() *status.Error {
	inputs := make([][]byte, len(m.reqs))
	outputs := make([][]byte, len(m.reqs))
	first := &m.reqs[0].call
	kind, _ := m.reqs[0].reduced()
	for i, q := range m.reqs {
		if t, _ := q.reduced(); t != kind {
			return failure(classType, "%s on %s: datatype %#x on rank 0, %#x on rank %d", name(m.fn), q.comm, uintptr(kind), uintptr(t), i)
		}
		in, err := q.input()
		if err != nil {
			return err
		}
		if len(in) != len(inputs[0]) && i > 0 {
			return failure(classTruncate, "%s on %s: %d bytes on rank 0, %d on rank %d", name(m.fn), q.comm, len(inputs[0]), len(in), i)
		}
		inputs[i] = slices.Clone(in)
		out, err := q.output()
		if err != nil {
			return err
		}
		if !q.call.InPlace && overlap(in, out) {
			return failure(classBuffer, "%s on rank %d of %s: the buffers overlap", name(m.fn), i, q.comm)
		}
		outputs[i] = out
	}
	fold := folds[op.DType(kind-typeBase)]
	how := op.ReduceOp(first.Op - opBase)
	if fold == nil || !fold(how, nil, nil) {
		return failure(classOp, "%s on %s: op %#x is not defined for datatype %#x", name(m.fn), m.reqs[0].comm, uintptr(first.Op), uintptr(kind))
	}
	acc := slices.Clone(inputs[0])
	at := 0
	for i, in := range inputs {
		if m.fn == mpi.FnExscan && i > 0 {
			copy(outputs[i], acc)
		}
		if i > 0 {
			fold(how, acc, in)
		}
		if m.fn == mpi.FnScan {
			copy(outputs[i], acc)
		}
	}
	switch m.fn {
	case mpi.FnAllreduce:
		for _, out := range outputs {
			copy(out, acc)
		}
	case mpi.FnReduce:
		copy(outputs[first.Peer], acc)
	case mpi.FnReduceScatter, mpi.FnReduceScatterBlock:
		for _, out := range outputs {
			at += copy(out, acc[at:])
		}
	}
	return nil
}

// reduced returns the datatype of a reduction and the number of its input's elements. MPI has one
// count and one datatype for both sides: those of the receive side, on every rank.
func (q *request) reduced() (mpi.Datatype, int64) {
	c := &q.call
	switch {
	case c.Fn == mpi.FnReduceScatter:
		var sum int64
		for i := range q.comm.ranks {
			sum += int64(entry(c.RecvCounts, i))
		}
		return c.RecvType, sum
	case c.Fn == mpi.FnReduceScatterBlock:
		return c.RecvType, c.RecvCount * int64(len(q.comm.ranks))
	}
	return c.RecvType, c.RecvCount
}

func (q *request) input() ([]byte, *status.Error) {
	t, n := q.reduced()
	if q.call.InPlace {
		return q.lib.buffer(q.call.RecvBuf, n, t)
	}
	return q.lib.buffer(q.call.SendBuf, n, t)
}

// output returns the memory in which q wants its result, or nil if it gets none.
func (q *request) output() ([]byte, *status.Error) {
	t, n := q.reduced()
	switch q.call.Fn {
	case mpi.FnReduce:
		if q.rank != int(q.call.Peer) {
			return nil, nil
		}
	case mpi.FnExscan:
		if q.rank == 0 {
			return nil, nil
		}
	case mpi.FnReduceScatter:
		n = int64(entry(q.call.RecvCounts, q.rank))
	case mpi.FnReduceScatterBlock:
		n = q.call.RecvCount
	}
	return q.lib.buffer(q.call.RecvBuf, n, t)
}

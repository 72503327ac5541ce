package mpifake

import (
	"slices"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/mpi"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// meeting is one collective of a communicator, from the first rank that calls it to the last.
type meeting struct {
	fn   mpi.Fn
	reqs []*request // by rank; of a CreateGroup in order of arrival
	came int
	err  *status.Error // set once the calls do not match; later ranks get it, too

	ranks []int32 // of a CreateGroup
	tag   int32
}

func (m *meeting) end(err *status.Error) {
	for _, q := range m.reqs {
		if q != nil {
			q.finish(err)
		}
	}
}

func (m *meeting) missing() []int {
	var out []int
	for r, q := range m.reqs {
		if q == nil {
			out = append(out, r)
		}
	}
	return out
}

// join adds q to the next meeting of q's rank. If q is the last call that the meeting waits for, join
// also carries the collective out.
func (c *comm) join(q *request) {
	k := c.seq[q.rank]
	c.seq[q.rank]++
	m := c.meetings[k]
	if m == nil {
		m = &meeting{fn: q.call.Fn, reqs: make([]*request, len(c.ranks))}
		c.meetings[k] = m
	}
	if m.err == nil {
		if m.err = m.misfit(q); m.err != nil {
			m.end(m.err)
		}
	}
	m.reqs[q.rank] = q
	m.came++
	if m.came == len(c.ranks) {
		delete(c.meetings, k)
		if m.err == nil {
			m.err = m.hold()
		}
		m.end(m.err)
	} else if m.err != nil {
		q.finish(m.err)
	}
}

// misfit compares q with the earlier calls of the meeting.
func (m *meeting) misfit(q *request) *status.Error {
	for _, p := range m.reqs {
		if p == nil {
			continue
		}
		a, b := &p.call, &q.call
		switch {
		case a.Fn != b.Fn:
			return failure(classOther, "%s: rank %d calls %s, rank %d calls %s", q.comm, p.rank, name(a.Fn), q.rank, name(b.Fn))
		case p.blocking != q.blocking:
			return failure(classOther, "%s: %s is blocking on rank %d (%t) and on rank %d (%t): these never match",
				q.comm, name(a.Fn), p.rank, p.blocking, q.rank, q.blocking)
		case rooted(a.Fn) && a.Peer != b.Peer:
			return failure(classRoot, "%s: %s with root %d on rank %d, root %d on rank %d", q.comm, name(a.Fn), a.Peer, p.rank, b.Peer, q.rank)
		case reducing(a.Fn) && a.Op != b.Op:
			return failure(classOp, "%s: %s with op %#x on rank %d, %#x on rank %d", q.comm, name(a.Fn), uintptr(a.Op), p.rank, uintptr(b.Op), q.rank)
		}
		return nil
	}
	if rooted(q.call.Fn) && (q.call.Peer < 0 || int(q.call.Peer) >= len(q.comm.ranks)) {
		return failure(classRoot, "%s on %s: root %d", name(q.call.Fn), q.comm, q.call.Peer)
	}
	return nil
}

func rooted(f mpi.Fn) bool {
	switch f {
	case mpi.FnBcast, mpi.FnReduce, mpi.FnGather, mpi.FnGatherv, mpi.FnScatter, mpi.FnScatterv:
		return true
	}
	return false
}

// hold carries out the collective.
func (m *meeting) hold() *status.Error {
	switch {
	case m.fn == mpi.FnDup || m.fn == fnSplitShared:
		m.split()
		return nil
	case m.fn == mpi.FnBarrier:
		return nil
	case reducing(m.fn):
		return m.reduce()
	}
	return m.move()
}

// move copies the block that each rank has for each other rank. It reads all blocks before it
// writes any, so that the in-place forms need no special case.
func (m *meeting) move() *status.Error {
	type transfer struct{ from, to []byte }
	var all []transfer
	for _, s := range m.reqs {
		for _, r := range m.reqs {
			from, gives, err := s.outgoing(r.rank)
			if err != nil {
				return err
			}
			to, takes, err := r.incoming(s.rank)
			if err != nil {
				return err
			}
			if gives != takes || len(from) != len(to) {
				return failure(classTruncate, "%s on %s: rank %d sends %d bytes to rank %d, which expects %d",
					name(m.fn), s.comm, s.rank, len(from), r.rank, len(to))
			}
			if overlap(from, to) && s != r {
				return failure(classBuffer, "%s on %s: ranks %d and %d use one buffer", name(m.fn), s.comm, s.rank, r.rank)
			}
			if overlap(from, to) {
				return failure(classBuffer, "%s on rank %d of %s: the buffers overlap", name(m.fn), s.rank, s.comm)
			}
			if gives {
				all = append(all, transfer{slices.Clone(from), to})
			}
		}
	}
	for _, t := range all {
		copy(t.to, t.from)
	}
	return nil
}

// outgoing returns the block that q has for rank to. ok is false if there is none, as on the other
// ranks of a broadcast, and for the rank itself in place.
func (q *request) outgoing(to int) (b []byte, ok bool, err *status.Error) {
	c, root := &q.call, int(q.call.Peer)
	switch c.Fn {
	case mpi.FnBcast:
		if q.rank != root || to == root {
			return nil, false, nil
		}
		b, err = q.lib.buffer(c.RecvBuf, c.RecvCount, c.RecvType)
	case mpi.FnAllgather, mpi.FnAllgatherv:
		if c.InPlace && to == q.rank {
			return nil, false, nil
		}
		if c.InPlace {
			b, err = q.recvBlock(q.rank)
		} else {
			b, err = q.lib.buffer(c.SendBuf, c.SendCount, c.SendType)
		}
	case mpi.FnGather, mpi.FnGatherv:
		if to != root || (c.InPlace && q.rank == root) {
			return nil, false, nil
		}
		b, err = q.lib.buffer(c.SendBuf, c.SendCount, c.SendType)
	case mpi.FnScatter, mpi.FnScatterv:
		if q.rank != root || (c.InPlace && to == root) {
			return nil, false, nil
		}
		b, err = q.sendBlock(to)
	default: // the alltoalls
		if c.InPlace {
			if to == q.rank {
				return nil, false, nil
			}
			b, err = q.recvBlock(to)
		} else {
			b, err = q.sendBlock(to)
		}
	}
	return b, err == nil, err
}

// incoming returns the memory into which q wants the block of rank from.
func (q *request) incoming(from int) (b []byte, ok bool, err *status.Error) {
	c, root := &q.call, int(q.call.Peer)
	self := from == q.rank
	switch c.Fn {
	case mpi.FnBcast:
		if from != root || q.rank == root {
			return nil, false, nil
		}
		b, err = q.lib.buffer(c.RecvBuf, c.RecvCount, c.RecvType)
	case mpi.FnGather, mpi.FnGatherv:
		if q.rank != root || (c.InPlace && self) {
			return nil, false, nil
		}
		b, err = q.recvBlock(from)
	case mpi.FnScatter, mpi.FnScatterv:
		if from != root || (c.InPlace && q.rank == root) {
			return nil, false, nil
		}
		b, err = q.lib.buffer(c.RecvBuf, c.RecvCount, c.RecvType)
	default: // the allgathers and alltoalls
		if c.InPlace && self {
			return nil, false, nil
		}
		b, err = q.recvBlock(from)
	}
	return b, err == nil, err
}

func (q *request) sendBlock(i int) ([]byte, *status.Error) {
	c := &q.call
	return q.lib.block(c.SendBuf, c.SendCount, c.SendType, c.SendCounts, c.SendDispls, i, vector(c.Fn))
}

func (q *request) recvBlock(i int) ([]byte, *status.Error) {
	c := &q.call
	return q.lib.block(c.RecvBuf, c.RecvCount, c.RecvType, c.RecvCounts, c.RecvDispls, i, vector(c.Fn))
}

func vector(f mpi.Fn) bool {
	return f == mpi.FnAllgatherv || f == mpi.FnGatherv || f == mpi.FnScatterv || f == mpi.FnAlltoallv
}

// block returns the i-th block of a buffer. Blocks have count elements each, or are as the counts
// and displacements of the v forms say.
func (l *library) block(p unsafe.Pointer, count int64, t mpi.Datatype, counts, displs unsafe.Pointer, i int, v bool) ([]byte, *status.Error) {
	size, err := l.size(t)
	if err != nil {
		return nil, err
	}
	at := count * int64(i)
	if v {
		if counts == nil || displs == nil {
			return nil, failure(classCount, "a v form without counts or displacements on rank %d", l.rank)
		}
		count, at = int64(entry(counts, i)), int64(entry(displs, i))
	}
	if count == 0 {
		return nil, nil
	}
	if p == nil {
		return nil, failure(classBuffer, "a nil buffer with a count of %d on rank %d", count, l.rank)
	}
	return l.buffer(unsafe.Add(p, at*size), count, t)
}

func entry(a unsafe.Pointer, i int) int32 {
	return *(*int32)(unsafe.Add(a, 4*i))
}

// buffer returns the memory of an argument with one count.
func (l *library) buffer(p unsafe.Pointer, count int64, t mpi.Datatype) ([]byte, *status.Error) {
	size, err := l.size(t)
	if err != nil {
		return nil, err
	}
	if count < 0 || count > mpi.MaxCount {
		return nil, failure(classCount, "a count of %d on rank %d", count, l.rank)
	}
	if p == nil && count > 0 {
		return nil, failure(classBuffer, "a nil buffer with a count of %d on rank %d", count, l.rank)
	}
	return span(p, count*size), nil
}

func overlap(a, b []byte) bool {
	if len(a) == 0 || len(b) == 0 {
		return false
	}
	x, y := uintptr(unsafe.Pointer(&a[0])), uintptr(unsafe.Pointer(&b[0]))
	return x < y+uintptr(len(b)) && y < x+uintptr(len(a))
}

package coll

import (
	"sort"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/mpi"
)

// bytes describes n bytes to MPI. It returns a count and a type: n times MPI_BYTE, or once a type
// made for that length if n is beyond MPI's counts.
func (a *Args) bytes(p *Program, n int64) (int64, mpi.Datatype, error) {
	if n <= mpi.MaxCount {
		return n, a.Lib.Byte(), nil
	}
	t, free, err := a.Lib.Bytes(n)
	if err != nil {
		return 0, 0, err
	}
	p.AtEnd(free)
	return 1, t, nil
}

// messageBatch collects messages between pairs of ranks that are under way at the same time. They use
// the communicator for collectives, which carries no message of the user's.
type messageBatch struct {
	a     *Args
	p     *Program
	calls []mpi.Call
	err   error
}

// maxBatch bounds the requests under way at once. More messages go in several rounds. Sender and
// receiver of a message have it in the same round, because both order their peers by distance.
const maxBatch = 64

const pairTag = 1

// ArrivalTag is the tag of the messages by which the members of a group on several nodes arrive, on the same
// communicator.
const ArrivalTag = 2

// WindowTag is the tag of the messages of windows (gocore/window), on the same communicator. The tags of pieces are
// below it.
const WindowTag = 1 << 10

func (t *messageBatch) add(fn mpi.Fn, peer int, data unsafe.Pointer, elements int64) {
	if elements == 0 || t.err != nil {
		return
	}
	n, typ, err := t.a.bytes(t.p, elements*t.a.elem())
	if err != nil {
		t.err = err
		return
	}
	c := mpi.Call{Fn: fn, Peer: int32(peer), Tag: pairTag, Comm: t.a.Comm}
	if fn == mpi.FnSend {
		c.SendBuf, c.SendCount, c.SendType = data, n, typ
	} else {
		c.RecvBuf, c.RecvCount, c.RecvType = data, n, typ
	}
	t.calls = append(t.calls, c)
}

func (t *messageBatch) send(peer int, data unsafe.Pointer, elements int64) {
	t.add(mpi.FnSend, peer, data, elements)
}

func (t *messageBatch) recv(peer int, data unsafe.Pointer, elements int64) {
	t.add(mpi.FnRecv, peer, data, elements)
}

// flush appends the calls collected so far as one round.
func (t *messageBatch) flush() {
	t.p.Together(t.calls)
	t.calls = nil
}

// exchange sends sends[i] to rank i and fills recvs[i] from it. The part for this rank itself is
// copied. Bytes moved by each rank: the length of the parts.
func exchange(a *Args, p *Program, sends, recvs []Part) error {
	if a.NoMPI {
		return a.exchangeByBounce(p, sends, recvs)
	}
	t := messageBatch{a: a, p: p}
	for d := 1; d < a.Size; d++ {
		to, from := (a.Rank+d)%a.Size, (a.Rank-d+a.Size)%a.Size
		t.recv(from, recvs[from].Data, recvs[from].Count)
		t.send(to, sends[to].Data, sends[to].Count)
		if d%(maxBatch/2) == 0 {
			t.flush()
		}
	}
	dst, src := recvs[a.Rank], sends[a.Rank]
	p.Do(func() error {
		a.copyElements(dst.Data, src.Data, dst.Count)
		return nil
	})
	t.flush()
	return t.err
}

// overlap tells whether two parts share memory.
func (a *Args) overlap(x, y Part) bool {
	from, to := uintptr(x.Data), uintptr(y.Data)
	return x.Count > 0 && y.Count > 0 && from < to+uintptr(y.Count*a.elem()) && to < from+uintptr(x.Count*a.elem())
}

// overlapAny tells whether a part of one side shares memory with a part of the other side.
func (a *Args) overlapAny(sends, recvs []Part) bool {
	type span struct{ from, to uintptr }
	spans := func(parts []Part) (list []span, all span) {
		all.from = ^uintptr(0)
		for _, part := range parts {
			if part.Count > 0 {
				s := span{uintptr(part.Data), uintptr(a.at(part.Data, part.Count))}
				list = append(list, s)
				all.from, all.to = min(all.from, s.from), max(all.to, s.to)
			}
		}
		return list, all
	}
	if len(sends) == 1 && len(recvs) == 1 {
		return a.overlap(sends[0], recvs[0])
	}
	xs, x := spans(sends)
	ys, y := spans(recvs)
	if x.from >= y.to || y.from >= x.to {
		return false // the usual case; no need to sort
	}
	for _, list := range [][]span{xs, ys} {
		sort.Slice(list, func(i, j int) bool { return list[i].from < list[j].from })
	}
	for len(xs) > 0 && len(ys) > 0 {
		switch {
		case xs[0].to <= ys[0].from:
			xs = xs[1:]
		case ys[0].to <= xs[0].from:
			ys = ys[1:]
		default:
			return true
		}
	}
	return false
}

// withoutOverlap returns the parts to send. They are a copy if they share memory with the parts to
// receive, which MPI does not allow: some MPIs refuse it, others give wrong results.
func (a *Args) withoutOverlap(p *Program, sends, recvs []Part) ([]Part, error) {
	if !a.overlapAny(sends, recvs) {
		return sends, nil
	}
	whole, err := a.alloc(p, totalCount(sends))
	if err != nil {
		return nil, err
	}
	out, done := make([]Part, len(sends)), int64(0)
	for i, s := range sends {
		out[i] = Part{Data: a.at(whole, done), Count: s.Count}
		done += s.Count
	}
	p.Do(func() error {
		for i, s := range sends {
			a.copyElements(out[i].Data, s.Data, s.Count)
		}
		return nil
	})
	return out, nil
}

// perRank returns a side as one part for each rank. The side has a share for every rank.
func (a *Args) perRank(parts []Part) []Part {
	if len(parts) != 1 {
		return parts
	}
	return a.split(parts[0])
}

// split views one buffer as Size parts of equal length.
func (a *Args) split(whole Part) []Part {
	length := whole.Count / int64(a.Size)
	parts := make([]Part, a.Size)
	for i := range parts {
		parts[i] = Part{Data: a.at(whole.Data, int64(i)*length), Count: length, OnDevice: whole.OnDevice}
	}
	return parts
}

// contiguous returns one contiguous buffer for parts. A single part is returned as it is, with a
// nil function. For several parts the buffer is scratch memory. If fill is set, a step copies the
// parts into it; the returned function copies it back to them.
func (a *Args) contiguous(p *Program, parts []Part, fill bool) (unsafe.Pointer, func() error, error) {
	if len(parts) == 1 {
		return parts[0].Data, nil, nil
	}
	whole, err := a.alloc(p, totalCount(parts))
	if err != nil {
		return nil, nil, err
	}
	walk := func(f func(part Part, at unsafe.Pointer)) {
		var done int64
		for _, part := range parts {
			f(part, a.at(whole, done))
			done += part.Count
		}
	}
	if fill {
		p.Do(func() error {
			walk(func(part Part, at unsafe.Pointer) { a.copyElements(at, part.Data, part.Count) })
			return nil
		})
	}
	return whole, func() error {
		walk(func(part Part, at unsafe.Pointer) { a.copyElements(part.Data, at, part.Count) })
		return nil
	}, nil
}

// Bounds of scratch memory, in bytes.

// pad returns what an allocation of n bytes takes: each begins on a cache line.
func pad(n int64) int64 { return (max(n, 1) + mem.Alignment - 1) &^ (mem.Alignment - 1) }

// scratch returns what alloc takes for n elements, at least one.
func (a *Args) scratch(n int64) int64 { return pad(max(n, 1) * a.elem()) }

// contiguousScratch returns what contiguous takes.
func (a *Args) contiguousScratch(parts []Part) int64 {
	if len(parts) <= 1 {
		return 0
	}
	return a.scratch(totalCount(parts))
}

// withoutOverlapScratch returns the most that withoutOverlap takes.
func (a *Args) withoutOverlapScratch(sends, recvs []Part) int64 {
	if !a.overlapAny(sends, recvs) {
		return 0
	}
	return a.scratch(totalCount(sends))
}

// int32sScratch returns what n arrays with one int32 for each rank take.
func (a *Args) int32sScratch(n int) int64 { return pad(4 * int64(n) * int64(a.Size)) }

package coll

import "github.com/paddlempi/paddlempi/gocore/mpi"

// describeBytes describes n bytes to MPI. It returns a count and a type: n times MPI_BYTE, or once a type
// made for that length if n is beyond MPI's counts.
func describeBytes(a *Args, p *Program, n int64) (int64, mpi.Datatype, error) {
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
	// longest is the length in bytes of the longest message; 0: there is none. A longer part goes in several.
	longest int64
	err     error
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

// add adds the messages of one part.
func (t *messageBatch) add(fn mpi.Fn, peer int, part Part) {
	step := part.Count
	if t.longest > 0 {
		step = t.longest / t.a.elem()
	}
	for from := int64(0); from < part.Count && t.err == nil; from += step {
		n, typ, err := describeBytes(t.a, t.p, min(step, part.Count-from)*t.a.elem())
		if err != nil {
			t.err = err
			return
		}
		c := mpi.Call{Fn: fn, Peer: int32(peer), Tag: pairTag, Comm: t.a.Comm}
		if fn == mpi.FnSend {
			c.SendBuf, c.SendCount, c.SendType = t.a.at(part.Data, from), n, typ
		} else {
			c.RecvBuf, c.RecvCount, c.RecvType = t.a.at(part.Data, from), n, typ
		}
		t.calls = append(t.calls, c)
	}
}

// flush appends the calls collected so far as one round, and returns the first error.
func (t *messageBatch) flush() error {
	t.p.Together(t.calls)
	t.calls = nil
	return t.err
}

// exchange adds the messages that send sends[i] to rank i and fill recvs[i] from it.
func (t *messageBatch) exchange(sends, recvs []Part) error {
	a := t.a
	for d := 1; d < a.Size; d++ {
		to, from := (a.Rank+d)%a.Size, (a.Rank-d+a.Size)%a.Size
		t.add(mpi.FnRecv, from, recvs[from])
		t.add(mpi.FnSend, to, sends[to])
		if d%(maxBatch/2) == 0 {
			_ = t.flush() // the last one returns the error
		}
	}
	return t.flush()
}

// exchange sends sends[i] to rank i and fills recvs[i] from it. The part for this rank itself is
// copied. Bytes moved by each rank: the length of the parts.
func exchange(a *Args, p *Program, sends, recvs []Part) error {
	if a.NoMPI {
		return exchangeByBounce(a, p, sends, recvs, false)
	}
	addCopies(a, p, recvs[a.Rank:], sends[a.Rank:a.Rank+1])
	t := messageBatch{a: a, p: p}
	return t.exchange(sends, recvs)
}

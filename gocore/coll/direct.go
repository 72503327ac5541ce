package coll

import (
	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/mpi"
)

// The algorithm direct gives MPI the addresses of tensors in device memory. It first waits until
// the producing stream has reached the collective, because MPI knows no streams. It serves
// operations that only move data, and uses MPI_Isend and MPI_Irecv of MPI_BYTE alone. Every
// CUDA-aware MPI documents these for device memory, and they are what the trial of this MPI has
// tried. Open MPI's list of CUDA-aware functions leaves out the nonblocking collectives, and its
// reductions copy the whole tensor to pageable memory.
//
// Parts are sent from and received into their tensors, so lists of tensors and parts of different
// lengths are not packed. A rank's part for itself is copied on the device. A rank with host
// tensors takes part with their addresses.
var (
	broadcastDirect      = directAlgorithm(always, nil, directBroadcast)
	allGatherDirect      = directAlgorithm(always, nil, directAllGather)
	gatherDirect         = directAlgorithm(always, nil, directGather)
	scatterDirect        = directAlgorithm(always, nil, directScatter)
	allToAllEvenDirect   = directAlgorithm(evenShares, nil, directAllToAll)
	allToAllUnevenDirect = directAlgorithm(always, (*Args).lengthsScratch, func(a *Args, p *Program, t *messageBatch) error {
		if err := agreeOnLengths(a, p, a.perRank(a.Send), a.perRank(a.Recv)); err != nil {
			return err
		}
		return directAllToAll(a, p, t)
	})
)

func directAlgorithm(enabled func(*Sig) bool, scratch func(*Args) int64, build func(*Args, *Program, *messageBatch) error) Algorithm {
	open := func(s *Sig) bool { return s.Any&NotDirect == 0 && enabled(s) }
	return Algorithm{Name: "direct", callsMPI: true, Memory: deviceMemory, Enabled: open, polls: always, scratch: scratch, build: func(a *Args, p *Program) error {
		p.Until(a.DeviceArgs.ready)
		t := messageBatch{a: a, p: p}
		if err := build(a, p, &t); err != nil {
			return err
		}
		t.flush()
		return t.err
	}}
}

// DirectOK tells whether this rank's tensors suit the algorithm direct: each is contiguous, and
// none that is sent overlaps one that is received (see separate).
func DirectOK(a *Args) bool {
	if !hasAlgorithm("direct", a.Code) {
		return false
	}
	for _, parts := range [][]Part{a.Send, a.Recv} {
		for i := range parts {
			if parts[i].OnDevice && parts[i].Layout != nil {
				return false
			}
		}
	}
	return a.separate()
}

// separate tells whether no part that is sent shares memory with a part that is received. The part
// that a rank sends to itself may already lie in its place.
func (a *Args) separate() bool {
	if a.Partial || len(a.Send) == 1 && len(a.Recv) == 1 && !a.overlap(a.Send[0], a.Recv[0]) {
		return true // the usual case; its cost does not grow with the number of ranks
	}
	sends, recvs := a.Send, a.Recv
	if a.Trait().Send.PerRank() {
		sends = a.perRank(sends)
	}
	if a.Trait().Recv.PerRank() {
		recvs = a.perRank(recvs)
	}
	for i := range sends {
		for j := range recvs {
			sameRank := (i == a.Rank || len(sends) == 1) && (j == a.Rank || len(recvs) == 1)
			if a.overlap(sends[i], recvs[j]) && !(sameRank && sends[i].Data == recvs[j].Data) {
				return false
			}
		}
	}
	return true
}

// directMessage is the length in bytes of the longest message. A longer part goes in several
// messages, so that MPI never uses a derived datatype on device memory.
const directMessage = 1 << 30

// addPart adds the messages of one part.
func (t *messageBatch) addPart(fn mpi.Fn, peer int, part Part) {
	step := directMessage / t.a.elem()
	for from := int64(0); from < part.Count; from += step {
		t.add(fn, peer, t.a.at(part.Data, from), min(step, part.Count-from))
	}
}

// forEachDistance calls f for the distances 1 to n-1, with the rank at that distance to send to and
// the rank at that distance to receive from. After every maxBatch messages it flushes. Sender and
// receiver of a message have it in the same round, because both order their peers by distance.
func (t *messageBatch) forEachDistance(f func(to, from int)) {
	a := t.a
	for d := 1; d < a.Size; d++ {
		f((a.Rank+d)%a.Size, (a.Rank-d+a.Size)%a.Size)
		if d%(maxBatch/2) == 0 {
			t.flush()
		}
	}
}

// copyLocal queues the copy of the part that this rank sends to itself, unless it lies in its
// place.
func (t *messageBatch) copyLocal(dst, src Part) {
	a := t.a
	if dst.Data == src.Data || dst.Count == 0 {
		return
	}
	t.p.Do(func() error {
		if !dst.OnDevice && !src.OnDevice {
			mem.Copy(dst.Data, src.Data, dst.Count*a.elem())
			return nil
		}
		da := a.DeviceArgs
		if err := da.Device.Copy(dst.Data, src.Data, dst.Count*a.elem(), da.Device.Comm); err != nil {
			return err
		}
		return da.end(da.Device.Comm)
	})
}

// directTree is the length in bytes up to which a broadcast goes down a binomial tree.
const directTree = 256 << 10

// directBroadcast goes down a binomial tree: ceil(log2 n) steps, each for the whole tensor. Bytes
// moved: S into every rank, up to ceil(log2 n) S out of the root. A long tensor on more than two
// ranks is cut into n parts. The root sends one part to each rank, and the ranks then send their
// parts to each other. Bytes moved: 2S out of the root, S out of and into the other ranks.
func directBroadcast(a *Args, _ *Program, t *messageBatch) error {
	whole := a.Recv[0]
	if a.Size == 2 || whole.Count*a.elem() <= directTree {
		virtual := (a.Rank - a.Root + a.Size) % a.Size
		rank := func(virtual int) int { return (virtual + a.Root) % a.Size }
		bit := 1
		for ; bit < a.Size && virtual&bit == 0; bit <<= 1 {
		}
		if virtual != 0 {
			t.addPart(mpi.FnRecv, rank(virtual-bit), whole)
			t.flush()
		}
		for bit >>= 1; bit > 0; bit >>= 1 {
			if virtual+bit < a.Size {
				t.addPart(mpi.FnSend, rank(virtual+bit), whole)
			}
		}
		return nil
	}
	part := func(i int) Part {
		n, size := whole.Count, int64(a.Size)
		from, to := n*int64(i)/size, n*int64(i+1)/size
		return Part{Data: a.at(whole.Data, from), Count: to - from, OnDevice: whole.OnDevice}
	}
	if a.Rank == a.Root {
		t.forEachDistance(func(to, _ int) { t.addPart(mpi.FnSend, to, part(to)) })
	} else {
		t.addPart(mpi.FnRecv, a.Root, part(a.Rank))
	}
	t.flush()
	t.forEachDistance(func(to, from int) {
		if a.Rank != a.Root {
			t.addPart(mpi.FnRecv, from, part(from))
		}
		if to != a.Root {
			t.addPart(mpi.FnSend, to, part(a.Rank))
		}
	})
	return nil
}

// directAllGather sends this rank's part to every other rank, and copies it into this rank's
// result. Bytes moved by each rank: (n-1)S out and in, S by the copy.
func directAllGather(a *Args, _ *Program, t *messageBatch) error {
	recvs := a.perRank(a.Recv)
	t.copyLocal(recvs[a.Rank], a.Send[0])
	t.forEachDistance(func(to, from int) {
		t.addPart(mpi.FnRecv, from, recvs[from])
		t.addPart(mpi.FnSend, to, a.Send[0])
	})
	return nil
}

// directGather sends every part to the root. Bytes moved: S out of each rank, (n-1)S into the root,
// S by the root's copy.
func directGather(a *Args, _ *Program, t *messageBatch) error {
	if a.Rank != a.Root {
		t.addPart(mpi.FnSend, a.Root, a.Send[0])
		return nil
	}
	recvs := a.perRank(a.Recv)
	t.copyLocal(recvs[a.Rank], a.Send[0])
	t.forEachDistance(func(_, from int) { t.addPart(mpi.FnRecv, from, recvs[from]) })
	return nil
}

// directScatter sends every rank its part. Bytes moved: (n-1)S out of the root, S by the root's
// copy, S into each other rank.
func directScatter(a *Args, _ *Program, t *messageBatch) error {
	if a.Rank != a.Root {
		t.addPart(mpi.FnRecv, a.Root, a.Recv[0])
		return nil
	}
	sends := a.perRank(a.Send)
	t.copyLocal(a.Recv[0], sends[a.Rank])
	t.forEachDistance(func(to, _ int) { t.addPart(mpi.FnSend, to, sends[to]) })
	return nil
}

// directAllToAll exchanges parts between all pairs of ranks. Bytes moved by each rank: (1-1/n)S out
// and in, S/n by the copy. S is all that a rank sends.
func directAllToAll(a *Args, _ *Program, t *messageBatch) error {
	sends, recvs := a.perRank(a.Send), a.perRank(a.Recv)
	t.copyLocal(recvs[a.Rank], sends[a.Rank])
	t.forEachDistance(func(to, from int) {
		t.addPart(mpi.FnRecv, from, recvs[from])
		t.addPart(mpi.FnSend, to, sends[to])
	})
	return nil
}

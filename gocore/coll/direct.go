package coll

import (
	"slices"

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
	broadcastDirect = directAlgorithm(always, nil, directBroadcast)
	// Bytes moved by each rank: (n-1)S out and in, S by the copy.
	allGatherDirect = directAlgorithm(always, nil, directExchange)
	// Bytes moved: S out of each rank, (n-1)S into the root, S by the root's copy.
	gatherDirect = directAlgorithm(always, nil, directExchange)
	// Bytes moved: (n-1)S out of the root, S by the root's copy, S into each other rank.
	scatterDirect = directAlgorithm(always, nil, directExchange)
	// Bytes moved by each rank: (1-1/n)S out and in, S/n by the copy. S is all that a rank sends.
	allToAllEvenDirect   = directAlgorithm(evenShares, nil, directExchange)
	allToAllUnevenDirect = directAlgorithm(always, lengthsScratch, func(t *messageBatch) error {
		if err := agreeOnLengths(t.a, t.p, perRank(t.a, t.a.Send), perRank(t.a, t.a.Recv)); err != nil {
			return err
		}
		return directExchange(t)
	})
)

// directMessage is the length in bytes of the longest message, so that MPI never uses a derived datatype on device
// memory.
const directMessage = 1 << 30

func directAlgorithm(enabled func(*Sig) bool, scratch func(*Args) int64, build func(*messageBatch) error) Algorithm {
	open := func(s *Sig) bool { return s.Any&NotDirect == 0 && enabled(s) }
	return Algorithm{Name: "direct", callsMPI: true, Memory: deviceMemory, Enabled: open, polls: always, scratch: scratch, build: func(a *Args, p *Program) error {
		p.Until(a.DeviceArgs.ready)
		return build(&messageBatch{a: a, p: p, longest: directMessage})
	}}
}

// DirectOK tells whether this rank's tensors suit the algorithm direct: each is contiguous, and
// none that is sent overlaps one that is received (see separate).
func DirectOK(a *Args) bool {
	strided := func(part Part) bool { return part.OnDevice && part.Layout != nil }
	return hasAlgorithm("direct", a.Code) && !slices.ContainsFunc(a.Send, strided) && !slices.ContainsFunc(a.Recv, strided) && separate(a)
}

// directExchange sends every rank what this one gives to it, and receives what this one gets from it.
func directExchange(t *messageBatch) error {
	a, trait := t.a, t.a.Trait()
	sends, recvs := make([]Part, a.Size), make([]Part, a.Size)
	given, got := sides(a)
	for r := range a.Size {
		if Gives(a) && trait.WritesRecv(a.Root, r) {
			sends[r] = given[min(r, len(given)-1)]
		}
		if a.WritesRecv() && trait.Gives.Includes(a.Root, r) {
			recvs[r] = got[min(r, len(got)-1)]
		}
	}
	t.copyLocal(recvs[a.Rank], sends[a.Rank])
	return t.exchange(sends, recvs)
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
func directBroadcast(t *messageBatch) error {
	a, whole := t.a, t.a.Recv[0]
	if a.Size == 2 || whole.Count*a.elem() <= directTree {
		virtual := (a.Rank - a.Root + a.Size) % a.Size
		rank := func(virtual int) int { return (virtual + a.Root) % a.Size }
		bit := 1
		for ; bit < a.Size && virtual&bit == 0; bit <<= 1 {
		}
		if virtual != 0 {
			t.add(mpi.FnRecv, rank(virtual-bit), whole)
			_ = t.flush() // the last one returns the error
		}
		for bit >>= 1; bit > 0; bit >>= 1 {
			if virtual+bit < a.Size {
				t.add(mpi.FnSend, rank(virtual+bit), whole)
			}
		}
		return t.flush()
	}
	parts, none := make([]Part, a.Size), make([]Part, a.Size)
	for i := range parts {
		n, size := whole.Count, int64(a.Size)
		from, to := n*int64(i)/size, n*int64(i+1)/size
		parts[i] = Part{Data: a.at(whole.Data, from), Count: to - from}
	}
	sends, recvs := slices.Repeat(parts[a.Rank:a.Rank+1], a.Size), parts
	sends[a.Root] = Part{} // it has everything
	if a.Rank == a.Root {
		_ = t.exchange(parts, none)
		recvs = none
	} else {
		t.add(mpi.FnRecv, a.Root, parts[a.Rank])
		_ = t.flush()
	}
	return t.exchange(sends, recvs)
}

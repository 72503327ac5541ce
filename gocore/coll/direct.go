package coll

import (
	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/mpi"
)

// The path direct gives MPI the addresses of tensors in device memory, once the producing
// stream has come to the collective: MPI knows no streams. It serves what only moves data,
// and it is made of MPI_Isend and MPI_Irecv of MPI_BYTE alone. These are what every
// CUDA-aware MPI documents for device memory, and what the trial of this one has tried;
// Open MPI's list leaves out the nonblocking collectives, and its reductions copy the whole
// tensor to pageable memory. Parts go to and from where they lie, so lists of tensors and
// parts of different lengths are not packed. A rank's own part is a copy on the device.
//
// A rank whose tensors are the host's takes part with their addresses.
var (
	broadcastDirect      = directly(always, nil, directBroadcast)
	allGatherDirect      = directly(always, nil, directAllGather)
	gatherDirect         = directly(always, nil, directGather)
	scatterDirect        = directly(always, nil, directScatter)
	allToAllEvenDirect   = directly(evenly, nil, directAllToAll)
	allToAllUnevenDirect = directly(always, (*Args).lengthsScratch, func(a *Args, p *Program, t *together) error {
		if err := agreeOnLengths(a, p, a.each(a.Send), a.each(a.Recv)); err != nil {
			return err
		}
		return directAllToAll(a, p, t)
	})
)

func directly(enabled func(*Sig) bool, scratch func(*Args) int64, build func(*Args, *Program, *together) error) Algorithm {
	open := func(s *Sig) bool { return onDevice(s) && s.Any&NotDirect == 0 && enabled(s) }
	return Algorithm{Name: "direct", Enabled: open, Polls: always, Scratch: scratch, Build: func(a *Args, p *Program) error {
		p.Until(a.Place.ready)
		t := together{a: a, p: p}
		if err := build(a, p, &t); err != nil {
			return err
		}
		t.flush()
		return t.err
	}}
}

// DirectOK tells whether MPI can be given the addresses of this rank's tensors: each is
// contiguous, and they are separate.
func DirectOK(a *Args) bool {
	if !serves("direct", a.Code) {
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

// separate tells whether no part that is sent shares memory with one that is filled, but for the
// rank's own part where it lies in its place.
func (a *Args) separate() bool {
	if len(a.Send) == 1 && len(a.Recv) == 1 && !a.overlap(a.Send[0], a.Recv[0]) {
		return true // the usual case, whatever the number of ranks
	}
	sends, recvs := a.Send, a.Recv
	if a.Trait().Send.Each() {
		sends = a.each(sends)
	}
	if a.Trait().Recv.Each() {
		recvs = a.each(recvs)
	}
	for i := range sends {
		for j := range recvs {
			own := (i == a.Rank || len(sends) == 1) && (j == a.Rank || len(recvs) == 1)
			if a.overlap(sends[i], recvs[j]) && !(own && sends[i].Data == recvs[j].Data) {
				return false
			}
		}
	}
	return true
}

// directMessage is the longest message, in bytes: what is longer goes in several, so that
// no derived datatype meets device memory.
const directMessage = 1 << 30

// whole adds the messages of one part.
func (t *together) whole(fn mpi.Fn, peer int, part Part) {
	step := directMessage / t.a.elem()
	for from := int64(0); from < part.Count; from += step {
		t.add(fn, peer, t.a.at(part.Data, from), min(step, part.Count-from))
	}
}

// distances calls f with the peers at every distance: whom a rank sends to while it
// receives from the other. Rounds of at most maxTogether messages pair up.
func (t *together) distances(f func(to, from int)) {
	a := t.a
	for d := 1; d < a.Size; d++ {
		f((a.Rank+d)%a.Size, (a.Rank-d+a.Size)%a.Size)
		if d%(maxTogether/2) == 0 {
			t.flush()
		}
	}
}

// ownPart queues the copy of this rank's own part, where it does not lie in its place.
func (t *together) ownPart(dst, src Part) {
	a := t.a
	if dst.Data == src.Data || dst.Count == 0 {
		return
	}
	t.p.Do(func() error {
		if !dst.OnDevice && !src.OnDevice {
			mem.Copy(dst.Data, src.Data, dst.Count*a.elem())
			return nil
		}
		pl := a.Place
		if err := pl.Device.Copy(dst.Data, src.Data, dst.Count*a.elem(), pl.Device.Comm); err != nil {
			return err
		}
		return pl.end(pl.Device.Comm)
	})
}

// directTree is the length in bytes up to which a broadcast goes down a binomial tree.
const directTree = 256 << 10

// directBroadcast goes down a binomial tree: ceil(log2 n) steps, each the whole tensor;
// S into every rank, up to ceil(log2 n) S out of the root. A long tensor on more than two
// ranks goes in n parts, one to each rank, which then send their parts to each other: 2S
// out of the root, S out of and into the others.
func directBroadcast(a *Args, _ *Program, t *together) error {
	whole := a.Recv[0]
	if a.Size == 2 || whole.Count*a.elem() <= directTree {
		virtual := (a.Rank - a.Root + a.Size) % a.Size
		rank := func(virtual int) int { return (virtual + a.Root) % a.Size }
		bit := 1
		for ; bit < a.Size && virtual&bit == 0; bit <<= 1 {
		}
		if virtual != 0 {
			t.whole(mpi.FnRecv, rank(virtual-bit), whole)
			t.flush()
		}
		for bit >>= 1; bit > 0; bit >>= 1 {
			if virtual+bit < a.Size {
				t.whole(mpi.FnSend, rank(virtual+bit), whole)
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
		t.distances(func(to, _ int) { t.whole(mpi.FnSend, to, part(to)) })
	} else {
		t.whole(mpi.FnRecv, a.Root, part(a.Rank))
	}
	t.flush()
	t.distances(func(to, from int) {
		if a.Rank != a.Root {
			t.whole(mpi.FnRecv, from, part(from))
		}
		if to != a.Root {
			t.whole(mpi.FnSend, to, part(a.Rank))
		}
	})
	return nil
}

// directAllGather sends this rank's part to every other, and fills its place in the own
// result. Bytes moved a rank: (n-1)S out and in, S by the copy.
func directAllGather(a *Args, _ *Program, t *together) error {
	recvs := a.each(a.Recv)
	t.ownPart(recvs[a.Rank], a.Send[0])
	t.distances(func(to, from int) {
		t.whole(mpi.FnRecv, from, recvs[from])
		t.whole(mpi.FnSend, to, a.Send[0])
	})
	return nil
}

// directGather sends every part to the root. Bytes moved: S out, (n-1)S into the root, S
// there by the copy.
func directGather(a *Args, _ *Program, t *together) error {
	if a.Rank != a.Root {
		t.whole(mpi.FnSend, a.Root, a.Send[0])
		return nil
	}
	recvs := a.each(a.Recv)
	t.ownPart(recvs[a.Rank], a.Send[0])
	t.distances(func(_, from int) { t.whole(mpi.FnRecv, from, recvs[from]) })
	return nil
}

// directScatter sends every rank its part. Bytes moved: (n-1)S out of the root, S there by
// the copy, S in.
func directScatter(a *Args, _ *Program, t *together) error {
	if a.Rank != a.Root {
		t.whole(mpi.FnRecv, a.Root, a.Recv[0])
		return nil
	}
	sends := a.each(a.Send)
	t.ownPart(a.Recv[0], sends[a.Rank])
	t.distances(func(to, _ int) { t.whole(mpi.FnSend, to, sends[to]) })
	return nil
}

// directAllToAll exchanges parts between all pairs. Bytes moved a rank: (1-1/n)S out and
// in, S/n by the copy.
func directAllToAll(a *Args, _ *Program, t *together) error {
	sends, recvs := a.each(a.Send), a.each(a.Recv)
	t.ownPart(recvs[a.Rank], sends[a.Rank])
	t.distances(func(to, from int) {
		t.whole(mpi.FnRecv, from, recvs[from])
		t.whole(mpi.FnSend, to, sends[to])
	})
	return nil
}

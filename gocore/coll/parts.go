package coll

import (
	"sort"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/mem"
)

// This file is about where parts lie: cut, one after the other, or sharing memory, and about copies of them.

func totalCount(parts []Part) (total int64) {
	for i := range parts {
		total += parts[i].Count
	}
	return total
}

// OwnBytes returns the bytes of this rank's tensor; if it gives and gets a share of every rank, those of the larger side.
func OwnBytes(a *Args) int64 {
	sent, got := totalCount(a.Send), totalCount(a.Recv)
	switch t := a.Trait(); {
	case t.Send.PerRank() == t.Recv.PerRank():
		return max(sent, got) * a.elem()
	case t.Send.PerRank():
		return got * a.elem()
	}
	return sent * a.elem()
}

// perRank returns a side as one part for each rank. The side has a share for every rank.
func perRank(a *Args, parts []Part) []Part {
	if len(parts) != 1 {
		return parts
	}
	whole, list := parts[0], make([]Part, a.Size)
	length := whole.Count / int64(a.Size)
	for i := range list {
		list[i] = Part{Data: a.at(whole.Data, int64(i)*length), Count: length, OnDevice: whole.OnDevice}
	}
	return list
}

// slice is the part of a buffer that one rank reduces.
type slice struct{ from, count int64 }

// sliceAlign is the number of elements of which slices are multiples: one cache line of 2-byte
// elements.
const sliceAlign = 32

// cutAlike cuts count elements in n slices of one length, but the last ones may be shorter or empty.
func cutAlike(count int64, n int) []slice {
	length := (count + int64(n) - 1) / int64(n)
	return cutSlices(count, n, (length+sliceAlign-1)/sliceAlign*sliceAlign)
}

func cutSlices(count int64, n int, length int64) []slice {
	s := make([]slice, n)
	for i := range s {
		from := min(int64(i)*length, count)
		s[i] = slice{from, min(length, count-from)}
	}
	return s
}

// views returns slices of a tensor whose elements have elem bytes.
func views(whole Part, of []slice, elem int64) []Part {
	parts := make([]Part, len(of))
	for i, s := range of {
		parts[i] = Part{Data: unsafe.Add(whole.Data, s.from*elem), Count: s.count}
	}
	return parts
}

// sliced cuts a tensor in one slice for each rank.
func sliced(a *Args, whole Part) []Part { return views(whole, cutAlike(whole.Count, a.Size), a.elem()) }

// laidFrom returns where each piece is, if they lie one after the other from an address on.
func laidFrom(a *Args, at unsafe.Pointer, pieces []Part) []Part {
	list := make([]Part, len(pieces))
	for i, piece := range pieces {
		list[i] = Part{Data: at, Count: piece.Count}
		at = a.at(at, piece.Count)
	}
	return list
}

// joined returns parts as one part, if each begins where the one before ends.
func joined(a *Args, parts []Part) (whole Part, ok bool) {
	for _, part := range parts {
		switch {
		case part.Count == 0:
		case whole.Count == 0:
			whole = part
		case part.Data != a.at(whole.Data, whole.Count):
			return Part{}, false
		default:
			whole.Count += part.Count
		}
	}
	return whole, true
}

// Copies.

// copyParts copies each part that is not in its place.
func copyParts(a *Args, to, from []Part) {
	for i := range from {
		a.copyElements(to[i].Data, from[i].Data, from[i].Count)
	}
}

// addCopies appends copyParts, unless all parts are in their places.
func addCopies(a *Args, p *Program, to, from []Part) {
	if len(from) > 0 && to[0].Data != from[0].Data {
		p.Do(func() error {
			copyParts(a, to, from)
			return nil
		})
	}
}

// laidOut returns scratch memory for parts, one after the other.
func laidOut(a *Args, p *Program, parts []Part) ([]Part, error) {
	whole, err := a.alloc(p, totalCount(parts))
	if err != nil {
		return nil, err
	}
	return laidFrom(a, whole, parts), nil
}

// contiguous returns parts that lie one after the other: a single part as it is, for several ones scratch memory.
func contiguous(a *Args, p *Program, parts []Part) ([]Part, error) {
	if len(parts) == 1 {
		return parts, nil
	}
	return laidOut(a, p, parts)
}

// inOneBlock returns where all parts lie one after the other. Several parts are copied.
func inOneBlock(a *Args, p *Program, parts []Part) (unsafe.Pointer, error) {
	laid, err := contiguous(a, p, parts)
	if err != nil {
		return nil, err
	}
	addCopies(a, p, laid, parts)
	return laid[0].Data, nil
}

// withoutOverlap returns the parts to send. They are a copy if they share memory with the parts to
// receive, which MPI does not allow: some MPIs refuse it, others give wrong results.
func withoutOverlap(a *Args, p *Program, sends, recvs []Part) ([]Part, error) {
	if !overlapAny(a, sends, recvs) {
		return sends, nil
	}
	copied, err := laidOut(a, p, sends)
	if err == nil {
		addCopies(a, p, copied, sends)
	}
	return copied, err
}

// keepApart returns the parts to send, as a copy if one of them shares memory with a part that is received (separate).
func keepApart(a *Args, p *Program) ([]Part, error) {
	if separate(a) {
		return a.Send, nil
	}
	return withoutOverlap(a, p, a.Send, a.Recv)
}

// inputApart returns this rank's tensor: the result's if the operation is in place, a copy if it shares some of that.
func inputApart(a *Args, p *Program) (Part, error) {
	if len(a.Send) == 0 || a.Send[0].Data == a.Recv[0].Data {
		return a.Recv[0], nil
	}
	sends, err := withoutOverlap(a, p, a.Send, a.Recv)
	if err != nil {
		return Part{}, err
	}
	return sends[0], nil
}

// Shared memory.

// sides returns the parts of both sides, one for each rank where a side has shares.
func sides(a *Args) (sends, recvs []Part) {
	sends, recvs = a.Send, a.Recv
	if a.Trait().Send.PerRank() {
		sends = perRank(a, sends)
	}
	if a.Trait().Recv.PerRank() {
		recvs = perRank(a, recvs)
	}
	return sends, recvs
}

// separate tells whether no part that is sent shares memory with a part that is received. The part
// that a rank sends to itself may already lie in its place.
func separate(a *Args) bool {
	if a.Partial || len(a.Send) == 1 && len(a.Recv) == 1 && !a.overlap(a.Send[0], a.Recv[0]) {
		return true // the usual case; its cost does not grow with the number of ranks
	}
	sends, recvs := sides(a)
	return separateSides(a, sends, recvs, func(x, y *Part) (overlap, same bool) {
		return a.overlap(*x, *y), x.Data == y.Data
	})
}

// separateSides is separate for tensors that compare compares.
func separateSides[T any](a *Args, sends, recvs []T, compare func(x, y *T) (overlap, same bool)) bool {
	for i := range sends {
		for j := range recvs {
			sameRank := (i == a.Rank || len(sends) == 1) && (j == a.Rank || len(recvs) == 1)
			if overlap, same := compare(&sends[i], &recvs[j]); overlap && !(sameRank && same) {
				return false
			}
		}
	}
	return true
}

// overlap tells whether two parts share memory.
func (a *Args) overlap(x, y Part) bool {
	from, to := uintptr(x.Data), uintptr(y.Data)
	return x.Count > 0 && y.Count > 0 && from < to+uintptr(y.Count*a.elem()) && to < from+uintptr(x.Count*a.elem())
}

// overlapAny tells whether a part of one side shares memory with a part of the other side.
func overlapAny(a *Args, sends, recvs []Part) bool {
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

// Bounds of scratch memory, in bytes.

// pad returns what an allocation of n bytes takes: each begins on a cache line.
func pad(n int64) int64 { return (max(n, 1) + mem.Alignment - 1) &^ (mem.Alignment - 1) }

// scratch returns what alloc takes for n elements, at least one.
func (a *Args) scratch(n int64) int64 { return pad(max(n, 1) * a.elem()) }

// contiguousScratch returns what contiguous takes.
func contiguousScratch(a *Args, parts []Part) int64 {
	if len(parts) <= 1 {
		return 0
	}
	return a.scratch(totalCount(parts))
}

// apartScratch returns the most that copies of what is sent take, so that it lies apart from what is received.
func apartScratch(a *Args) int64 {
	if !overlapAny(a, a.Send, a.Recv) {
		return 0
	}
	return a.scratch(totalCount(a.Send))
}

// int32sScratch returns what n arrays with one int32 for each rank take.
func int32sScratch(a *Args, n int) int64 { return pad(4 * int64(n) * int64(a.Size)) }

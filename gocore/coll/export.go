package coll

import "github.com/paddlempi/paddlempi/gocore/op"

// Exportable tells whether the algorithm ipc can serve this rank's call. All tensors must be
// contiguous and in device memory. The memory that other ranks access must be one range on each
// side. This rank must not write memory that others may still read. Exportable does not ask whether
// the driver can share this kind of memory.
//
// The other ranks access both sides of an all_reduce, the root's result of a reduce, and the send
// side of every other operation. A list of tensors is one range if each tensor begins where the one
// before ends, as the chunks of one tensor do. A result that only this rank writes may be any list.
func Exportable(a *Args) bool {
	if !contiguousOnDevice(a.Send) || !contiguousOnDevice(a.Recv) {
		return false
	}
	source, _, ok := a.exports()
	return ok && a.resultIsSafe(source)
}

// exports returns the memory of this rank that the other ranks read (source) and the memory that
// they write (target). Either may be empty. ok is false if source is not one range.
func (a *Args) exports() (source, target Part, ok bool) {
	t := a.Trait()
	ok = true
	switch {
	case !hasAlgorithm("ipc", a.Code):
		return source, target, false
	case !t.Gives.Includes(a.Root, a.Rank):
	case t.Send.PerRank():
		source, ok = a.joined(a.Send)
	default:
		source = a.Part()
	}
	if t.Reduces && t.Shares == op.NoShares && a.WritesRecv() {
		target = a.Recv[0] // every rank writes the slice that it reduces
	}
	return source, target, ok
}

// joined returns parts as one part, if each begins where the one before ends.
func (a *Args) joined(parts []Part) (whole Part, ok bool) {
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

// resultIsSafe tells whether this rank's result can be written while other ranks read source. It
// can if the two do not overlap. It also can if the result has exactly the place of its input: the
// whole source, or this rank's share of it.
func (a *Args) resultIsSafe(source Part) bool {
	if source.Count == 0 {
		return true
	}
	mine, t := source, a.Trait()
	perRank := t.Recv.PerRank()
	if t.Shares == op.Pairwise {
		mine = Part{} // the other ranks read all of it but this rank's share, so no place is safe
	} else if t.Send.PerRank() {
		from, count := a.share(a.Send, a.Rank)
		mine = Part{Data: a.at(source.Data, from), Count: count}
	}
	results := len(a.Recv)
	if perRank && results == 1 {
		results = a.Size
	}
	for i := range results {
		r := a.Recv[0]
		if perRank {
			r = a.resultFrom(i)
		}
		if !a.overlap(source, r) {
			continue
		}
		if r.Data != mine.Data || r.Count != mine.Count || perRank && i != a.Rank {
			return false
		}
	}
	return true
}

// share returns where a rank's share begins on a side that has one for every rank, counted in
// elements through all parts, and its length.
func (a *Args) share(parts []Part, rank int) (from, count int64) {
	if len(parts) == 1 {
		length := parts[0].Count / int64(a.Size)
		return int64(rank) * length, length
	}
	return totalCount(parts[:rank]), parts[rank].Count
}

// resultFrom returns the part of this rank's result that is filled from a rank.
func (a *Args) resultFrom(rank int) Part {
	if len(a.Recv) == 1 {
		from, count := a.share(a.Recv, rank)
		return Part{Data: a.at(a.Recv[0].Data, from), Count: count, OnDevice: a.Recv[0].OnDevice}
	}
	return a.Recv[rank]
}

package coll

import "github.com/paddlempi/paddlempi/gocore/op"

// Exportable tells whether the path ipc can carry this rank's call: its tensors are
// contiguous in device memory, what the others have to reach is one piece, and nothing is
// written where others may still read. It says nothing of the kind of memory.
//
// Others reach both sides of an all_reduce, what a rank sends of other operations, and the
// root's result of a reduce. A list of tensors is one piece where each lies behind the one
// before, as the chunks of a tensor do. What a rank only pulls into may be any list.
func Exportable(a *Args) bool {
	if !flat(a.Send) || !flat(a.Recv) {
		return false
	}
	give, _, ok := a.exports()
	return ok && a.sound(give)
}

// exports returns what the others read of this rank's memory and what they write; ok is false where
// that is not one piece a side.
func (a *Args) exports() (give, take Part, ok bool) {
	t := a.Trait()
	ok = true
	switch {
	case !serves("ipc", a.Code):
		return give, take, false
	case !t.Gives.Includes(a.Root, a.Rank):
	case t.Send.Each():
		give, ok = a.joined(a.Send)
	default:
		give = a.Part()
	}
	if t.Reduces && t.Shares == op.NoShares && a.WritesRecv() {
		take = a.Recv[0] // each rank writes the slice that it adds
	}
	return give, take, ok
}

// joined returns parts as one, if each lies behind the one before.
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

// sound tells whether this rank's result lies apart from what others read, or exactly in
// the place of what is read for it alone.
func (a *Args) sound(give Part) bool {
	if give.Count == 0 {
		return true
	}
	own, t := give, a.Trait()
	each := t.Recv.Each()
	if t.Shares == op.Pairwise {
		own = Part{} // others read all of it but this rank's share
	} else if t.Send.Each() {
		from, count := a.share(a.Send, a.Rank)
		own = Part{Data: a.at(give.Data, from), Count: count}
	}
	results := len(a.Recv)
	if each && results == 1 {
		results = a.Size
	}
	for i := range results {
		r := a.Recv[0]
		if each {
			r = a.place(i)
		}
		if !a.overlap(give, r) {
			continue
		}
		if r.Data != own.Data || r.Count != own.Count || each && i != a.Rank {
			return false
		}
	}
	return true
}

// share tells where a rank's share of a side that has one for every rank begins, counted
// through all parts, and how long it is.
func (a *Args) share(parts []Part, rank int) (from, count int64) {
	if len(parts) == 1 {
		each := parts[0].Count / int64(a.Size)
		return int64(rank) * each, each
	}
	return counts(parts[:rank]), parts[rank].Count
}

// place is where this rank's result has what comes from a rank.
func (a *Args) place(rank int) Part {
	if len(a.Recv) == 1 {
		from, count := a.share(a.Recv, rank)
		return Part{Data: a.at(a.Recv[0].Data, from), Count: count, OnDevice: a.Recv[0].OnDevice}
	}
	return a.Recv[rank]
}

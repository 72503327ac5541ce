package coll

import "github.com/paddlempi/paddlempi/gocore/op"

// Exportable tells whether the other ranks can reach what they have to of this rank's
// tensors, all of which lie in memory that can be mapped: one contiguous tensor on each
// side that they read or write.
func Exportable(a *Args) bool {
	if a.Code == op.Scan || a.Code == op.Exscan || a.Code == op.AllReduceCoalesced {
		return false
	}
	one := func(parts []Part) bool { return len(parts) <= 1 && flat(parts) }
	return one(a.Send) && one(a.Recv)
}

package coll

// reduceIPC is allReduceIPC with the slices written to the root alone.
// Bytes moved: S read for each rank, S written in all.
var reduceIPC = overIPC(summed, func(a *Args) (func(int) bool, func(*mapped) error) {
	sl := a.slicesOnDevice(a.Count)
	return holds(sl), func(m *mapped) error {
		own := sl[a.Rank]
		return m.reduce(own.from, own.count, a.at(m.takes[a.Root], own.from))
	}
})

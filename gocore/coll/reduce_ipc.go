package coll

// reduceIPC is allReduceIPC, but the slices are written to the root alone. Bytes moved: S read by
// each rank, S written by all ranks together.
var reduceIPC = ipcAlgorithm(kernelsReduce, func(a *Args) (func(int) bool, func(*ipcCall) error) {
	sl := a.slicesOnDevice(a.Count)
	return hasSlice(sl), func(m *ipcCall) error {
		mine := sl[a.Rank]
		return m.reduce(mine.from, mine.count, a.at(m.targets[a.Root], mine.from))
	}
})

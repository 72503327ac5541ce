package coll

// allGatherIPC: each rank copies what every other rank sends into its result, and its own part
// unless it is there already. The parts may differ in length. Bytes moved by each rank: its result,
// read and written.
var allGatherIPC = ipcAlgorithm(always, func(a *Args) (func(int) bool, func(*ipcCall) error) {
	return everyRank, func(m *ipcCall) error {
		return m.inTurn(func(rank int) error { return m.pull(a.resultFrom(rank), rank, 0) })
	}
})

func everyRank(int) bool { return true }

package coll

// gatherIPC: the root copies what every rank sends into its result. Bytes moved by the root: nS,
// read and written.
var gatherIPC = ipcAlgorithm(always, func(a *Args) (func(int) bool, func(*ipcCall) error) {
	return func(rank int) bool { return rank == a.Root }, func(m *ipcCall) error {
		return m.inTurn(func(rank int) error { return m.pull(a.resultFrom(rank), rank, 0) })
	}
})

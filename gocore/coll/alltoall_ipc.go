package coll

// allToAllIPC: each rank copies its share of what the others send. It serves shares of one length
// only, because a rank does not know where its share begins in another rank's uneven tensor. Bytes
// moved by each rank: S, read and written. S is all that a rank receives.
var allToAllIPC = ipcAlgorithm(evenShares, func(a *Args) (func(int) bool, func(*ipcCall) error) {
	return everyRank, func(m *ipcCall) error {
		return m.inTurn(func(rank int) error { return m.pull(a.resultFrom(rank), rank, int64(a.Rank)*a.Count) })
	}
})

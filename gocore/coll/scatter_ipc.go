package coll

// scatterIPC: each rank copies its share of what the root sends. The root does so, too, unless the
// share is in its place already. Bytes moved by each rank: S, read and written.
var scatterIPC = ipcAlgorithm(always, func(a *Args) (func(int) bool, func(*ipcCall) error) {
	return everyRank, func(m *ipcCall) error {
		return m.pull(a.Recv[0], a.Root, int64(a.Rank)*a.Count)
	}
})

package coll

// scatterIPC: each rank copies its share of what the root sends, the root too unless it
// lies in its place. Bytes moved a rank: S, read and written.
var scatterIPC = overIPC(always, func(a *Args) (func(int) bool, func(*mapped) error) {
	return everyRank, func(m *mapped) error {
		return m.pull(a.Recv[0], a.Root, int64(a.Rank)*a.Count)
	}
})

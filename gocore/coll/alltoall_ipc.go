package coll

// allToAllIPC: each rank copies its share of what the others send. Only for shares of one
// length, for a rank does not know where its share lies in another's uneven ones.
// Bytes moved a rank: S, read and written.
var allToAllIPC = overIPC(evenly, func(a *Args) (func(int) bool, func(*mapped) error) {
	return everyRank, func(m *mapped) error {
		return m.inTurn(func(rank int) error { return m.pull(a.place(rank), rank, int64(a.Rank)*a.Count) })
	}
})

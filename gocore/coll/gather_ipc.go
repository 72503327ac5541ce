package coll

// gatherIPC: the root copies what all ranks send into its place.
// Bytes moved by the root: nS, read and written.
var gatherIPC = overIPC(always, func(a *Args) (func(int) bool, func(*mapped) error) {
	return func(rank int) bool { return rank == a.Root }, func(m *mapped) error {
		return m.inTurn(func(rank int) error { return m.pull(a.place(rank), rank, 0) })
	}
})

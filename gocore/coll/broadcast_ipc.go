package coll

// broadcastIPC: each rank but the root copies the root's tensor.
// Bytes moved by each: S, read and written.
var broadcastIPC = overIPC(always, func(a *Args) (func(int) bool, func(*mapped) error) {
	return func(rank int) bool { return rank != a.Root }, func(m *mapped) error {
		return m.pull(a.Recv[0], a.Root, 0)
	}
})

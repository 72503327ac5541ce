package coll

// broadcastIPC: each rank but the root copies the root's tensor. Bytes moved by each of them: S,
// read and written.
var broadcastIPC = ipcAlgorithm(always, func(a *Args) (func(int) bool, func(*ipcCall) error) {
	return func(rank int) bool { return rank != a.Root }, func(m *ipcCall) error {
		return m.pull(a.Recv[0], a.Root, 0)
	}
})

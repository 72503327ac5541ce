package coll

// reduceScatterIPC: each rank's kernel reads this rank's share from all n tensors, in rank order.
// Shares may differ in length. Bytes moved by each rank: its share, read n times and written once.
var reduceScatterIPC = ipcAlgorithm(kernelsReduce, func(a *Args) (func(int) bool, func(*ipcCall) error) {
	return func(rank int) bool {
			_, count := a.share(a.Send, rank)
			return count > 0
		}, func(m *ipcCall) error {
			from, count := a.share(a.Send, a.Rank)
			return m.reduce(from, count, a.Recv[0].Data)
		}
})

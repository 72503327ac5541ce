package coll

// reduceScatterIPC: each rank's kernel reads its share from all n tensors, in the order of
// the ranks. Shares may differ in length. Bytes moved a rank: n of its shares read, one
// written.
var reduceScatterIPC = overIPC(summed, func(a *Args) (func(int) bool, func(*mapped) error) {
	return func(rank int) bool {
			_, count := a.share(a.Send, rank)
			return count > 0
		}, func(m *mapped) error {
			from, count := a.share(a.Send, a.Rank)
			return m.reduce(from, count, a.Recv[0].Data)
		}
})

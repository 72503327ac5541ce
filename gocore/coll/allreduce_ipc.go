package coll

import "unsafe"

// allReduceIPC gives each rank a slice. One kernel reads the slice from all n tensors, in rank
// order, and writes the result into all n. So all ranks get identical bits. This holds in place,
// too, because one thread reads and writes an element.
//
// Bytes moved by each rank: S read and S written. If all ranks share a device, these are nS and nS
// of its memory, which is the least possible.
var allReduceIPC = ipcAlgorithm(kernelsReduce, func(a *Args) (func(int) bool, func(*ipcCall) error) {
	sl := a.slicesOnDevice(a.Count)
	return hasSlice(sl), func(m *ipcCall) error {
		mine, to := sl[a.Rank], make([]unsafe.Pointer, a.Size)
		for i := range to {
			to[i] = a.at(m.targets[i], mine.from)
		}
		return m.reduce(mine.from, mine.count, to...)
	}
})

const (
	// leastSlice is the length in bytes below which a slice is not cut further. A kernel takes as
	// long for a shorter one, and ranks that share a device take turns.
	leastSlice = 16 << 10
	// deviceLine is the length in bytes of which slices are multiples: the unit of device memory.
	deviceLine = 128
)

// slicesOnDevice cuts n elements into one slice for each rank. Those of the last ranks may be
// empty.
func (a *Args) slicesOnDevice(n int64) []slice {
	line := deviceLine / a.elem()
	length := max((n+int64(a.Size)-1)/int64(a.Size), leastSlice/a.elem())
	return cutSlices(n, a.Size, (length+line-1)/line*line)
}

// hasSlice returns a function that tells whether a rank's slice has elements.
func hasSlice(sl []slice) func(rank int) bool {
	return func(rank int) bool { return sl[rank].count > 0 }
}

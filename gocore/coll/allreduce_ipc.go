package coll

import "unsafe"

// allReduceIPC gives each rank a slice: one kernel reads it from all n tensors, in the order
// of the ranks, and writes the result into all n. So all ranks get identical bits, in place
// too, for an element is read and written by one thread.
//
// Bytes moved: S read and S written for each rank, nS and nS where all share a device, which
// is the floor.
var allReduceIPC = overIPC(summed, func(a *Args) (func(int) bool, func(*mapped) error) {
	sl := a.slicesOnDevice(a.Count)
	return holds(sl), func(m *mapped) error {
		own, to := sl[a.Rank], make([]unsafe.Pointer, a.Size)
		for i := range to {
			to[i] = a.at(m.takes[i], own.from)
		}
		return m.reduce(own.from, own.count, to...)
	}
})

const (
	// leastSlice is the length in bytes below which a slice is not cut further: a kernel
	// over less takes as long, and ranks that share a device take turns.
	leastSlice = 16 << 10
	// deviceLine is what slices are multiples of, in bytes: the memory's own unit.
	deviceLine = 128
)

// slicesOnDevice cuts n elements into one slice a rank. The last ranks may have none.
func (a *Args) slicesOnDevice(n int64) []slice {
	line := deviceLine / a.elem()
	each := max((n+int64(a.Size)-1)/int64(a.Size), leastSlice/a.elem())
	return a.cut(n, (each+line-1)/line*line)
}

// holds tells which ranks have a slice.
func holds(sl []slice) func(rank int) bool {
	return func(rank int) bool { return sl[rank].count > 0 }
}

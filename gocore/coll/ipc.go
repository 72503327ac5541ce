package coll

import (
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/cuda"
	"github.com/paddlempi/paddlempi/gocore/op"
)

// The algorithm ipc: the ranks of a node read and write each other's device memory (steps_ipc.go). A row says which
// calls it serves, which ranks have work to do, and what that is.
var (
	// Bytes moved by each rank but the root: S, read and written.
	broadcastIPC = ipcAlgorithm(always, notTheRoot, pullFromRoot)
	// Parts may differ in length. Bytes moved by each rank: its result, read and written. Its own part may be there already.
	allGatherIPC = ipcAlgorithm(always, everyRank, pullFromAll)
	// Bytes moved by the root: nS, read and written.
	gatherIPC = ipcAlgorithm(always, theRoot, pullFromAll)
	// The root copies its share, too, unless it is in its place. Bytes moved by each rank: S, read and written.
	scatterIPC = ipcAlgorithm(always, everyRank, pullFromRoot)
	// Shares of one length only, because a rank does not know where its share begins in another rank's uneven tensor. Bytes
	// moved by each rank: S, read and written. S is all that a rank receives.
	allToAllIPC = ipcAlgorithm(evenShares, everyRank, pullFromAll)
	// One kernel reads a rank's slice from all n tensors, in rank order, and writes the result into all n. So all ranks get
	// identical bits. This holds in place, too, because one thread reads and writes an element. Bytes moved by each rank: S
	// read and S written. If all ranks share a device, these are nS and nS of its memory, which is the least possible.
	allReduceIPC = ipcAlgorithm(kernelsReduce, hasSlice, func(m *ipcCall) error {
		return m.reduceSlice(m.targets...)
	})
	// The same, but the slices are written to the root alone. Bytes moved: S read by each rank, S written by all ranks together.
	reduceIPC = ipcAlgorithm(kernelsReduce, hasSlice, func(m *ipcCall) error {
		return m.reduceSlice(m.targets[m.a.Root])
	})
	// Each rank's kernel reads this rank's share from all n tensors, in rank order. Shares may differ in length. Bytes moved
	// by each rank: its share, read n times and written once.
	reduceScatterIPC = ipcAlgorithm(kernelsReduce, func(m *ipcCall, rank int) bool { return m.sends[rank].Count > 0 }, func(m *ipcCall) error {
		rank := m.a.Rank
		return m.reduce(totalCount(m.sends[:rank]), m.sends[rank].Count, m.a.Recv[0].Data)
	})
)

// kernelsReduce tells whether the kernels have this reduction, and over that many ranks.
func kernelsReduce(s *Sig) bool { return s.Size <= cuda.MaxArrays && op.Defined(s.Reduce, s.DType) }

// What follows tells whether a rank has work to do. All ranks get the same answers.

func everyRank(*ipcCall, int) bool         { return true }
func theRoot(m *ipcCall, rank int) bool    { return rank == m.a.Root }
func notTheRoot(m *ipcCall, rank int) bool { return rank != m.a.Root }
func hasSlice(m *ipcCall, rank int) bool   { return m.slices[rank].count > 0 }

const (
	// leastSlice is the length in bytes below which a slice is not cut further. A kernel takes as
	// long for a shorter one, and ranks that share a device take turns.
	leastSlice = 16 << 10
	// deviceLine is the length in bytes of which slices are multiples: the unit of device memory.
	deviceLine = 128
)

// slicesOnDevice cuts n elements into one slice for each rank. Those of the last ranks may be
// empty.
func slicesOnDevice(a *Args, n int64) []slice {
	line := deviceLine / a.elem()
	length := max((n+int64(a.Size)-1)/int64(a.Size), leastSlice/a.elem())
	return cutSlices(n, a.Size, (length+line-1)/line*line)
}

// reduceSlice queues the reduction of this rank's slice of all sources into the same place of tensors.
func (m *ipcCall) reduceSlice(tensors ...unsafe.Pointer) error {
	mine, to := m.slices[m.a.Rank], make([]unsafe.Pointer, len(tensors))
	for i, tensor := range tensors {
		to[i] = m.a.at(tensor, mine.from)
	}
	return m.reduce(mine.from, mine.count, to...)
}

// forThisRank returns where what a rank gives to this one begins in what it gives.
func (m *ipcCall) forThisRank() int64 {
	if m.a.Trait().Send.PerRank() {
		return int64(m.a.Rank) * m.a.Count
	}
	return 0
}

func pullFromRoot(m *ipcCall) error { return m.pull(m.a.Recv[0], m.a.Root, m.forThisRank()) }

// pullFromAll begins with this rank's part, so that not all ranks read the same rank's memory at once.
func pullFromAll(m *ipcCall) error {
	for i := range m.a.Size {
		rank := (m.a.Rank + i) % m.a.Size
		if err := m.pull(m.results[rank], rank, m.forThisRank()); err != nil {
			return err
		}
	}
	return nil
}

// Exportable tells whether the algorithm ipc can serve this rank's call. All tensors must be
// contiguous and in device memory. The memory that other ranks access must be one range on each
// side. This rank must not write memory that others may still read. Exportable does not ask whether
// the driver can share this kind of memory.
//
// The other ranks access both sides of an all_reduce, the root's result of a reduce, and the send
// side of every other operation. A list of tensors is one range if each tensor begins where the one
// before ends, as the chunks of one tensor do. A result that only this rank writes may be any list.
func Exportable(a *Args) bool {
	if !contiguousOnDevice(a.Send) || !contiguousOnDevice(a.Recv) {
		return false
	}
	source, _, ok := exports(a)
	return ok && resultIsSafe(a, source)
}

// exports returns the memory of this rank that the other ranks read (source) and the memory that
// they write (target). Either may be empty. ok is false if source is not one range.
func exports(a *Args) (source, target Part, ok bool) {
	t := a.Trait()
	ok = true
	switch {
	case !hasAlgorithm("ipc", a.Code):
		return source, target, false
	case !t.Gives.Includes(a.Root, a.Rank):
	case t.Send.PerRank():
		source, ok = joined(a, a.Send)
	default:
		source = a.Part()
	}
	if t.Reduces && t.Shares == op.NoShares && a.WritesRecv() {
		target = a.Recv[0] // every rank writes the slice that it reduces
	}
	return source, target, ok
}

// resultIsSafe tells whether this rank's result can be written while other ranks read source. It
// can if the two do not overlap. It also can if the result has exactly the place of its input: the
// whole source, or this rank's share of it.
func resultIsSafe(a *Args, source Part) bool {
	if source.Count == 0 {
		return true
	}
	mine, t := source, a.Trait()
	sends, results := sides(a)
	if t.Shares == op.Pairwise {
		mine = Part{} // the other ranks read all of it but this rank's share, so no place is safe
	} else if t.Send.PerRank() {
		mine = sends[a.Rank]
	}
	for i, r := range results {
		safe := r.Data == mine.Data && r.Count == mine.Count && (i == a.Rank || !t.Recv.PerRank())
		if a.overlap(source, r) && !safe {
			return false
		}
	}
	return true
}

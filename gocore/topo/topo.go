// Package topo knows which ranks share a node.
package topo

import (
	"slices"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/mpi"
	"github.com/paddlempi/paddlempi/gocore/op"
)

// Topology says which ranks are on which node. It is the same on every rank, except for Rank,
// LocalRank, LocalSize, LocalCPUs and CPUs.
type Topology struct {
	Rank, Size           int
	LocalRank, LocalSize int
	LocalCPUs            int   // number of CPUs on which the ranks of this node may run, all together
	CPUs                 CPUs  // those of this rank
	Node                 []int // node of each world rank; nodes are numbered in the order of their first ranks
}

// Crowded tells whether the node has more ranks than CPUs for them. A rank that spins then takes
// time from the ranks for which it waits.
func (t *Topology) Crowded() bool { return t.LocalSize > t.LocalCPUs }

// Discover asks MPI (MPI_Comm_split_type with MPI_COMM_TYPE_SHARED, MPI-4.1 section 7.4.2), and
// does not read the launcher's variables. It is collective over comm.
func Discover(lib mpi.Library, comm mpi.Comm) (*Topology, error) {
	t := &Topology{}
	var err error
	if t.Rank, err = lib.Rank(comm); err != nil {
		return nil, err
	}
	if t.Size, err = lib.Size(comm); err != nil {
		return nil, err
	}
	node, err := lib.SplitShared(comm)
	if err != nil {
		return nil, err
	}
	defer lib.Free(node)
	if t.LocalRank, err = lib.Rank(node); err != nil {
		return nil, err
	}
	if t.LocalSize, err = lib.Size(node); err != nil {
		return nil, err
	}
	masks, err := allMasks(lib, node, t.LocalSize)
	if err != nil {
		return nil, err
	}
	t.LocalCPUs, t.CPUs = count(union(masks)), cpusOf(masks, t.LocalRank)
	block, err := mem.Alloc(int64(8 * (t.Size + 1)))
	if err != nil {
		return nil, err
	}
	defer mem.Free(block)
	words := unsafe.Slice((*int64)(block), t.Size+1)
	words[0] = int64(t.Rank)
	i64, _ := lib.TypeOf(op.Int64)
	// The node's first rank identifies the node.
	if err := lib.Run(&mpi.Call{Fn: mpi.FnBcast, Comm: node, RecvBuf: block, RecvCount: 1, RecvType: i64}, nil); err != nil {
		return nil, err
	}
	if err := lib.Run(&mpi.Call{Fn: mpi.FnAllgather, Comm: comm, SendBuf: block, SendCount: 1, SendType: i64,
		RecvBuf: unsafe.Pointer(&words[1]), RecvCount: 1, RecvType: i64}, nil); err != nil {
		return nil, err
	}
	number := map[int64]int{}
	for _, first := range words[1:] {
		if _, ok := number[first]; !ok {
			number[first] = len(number)
		}
		t.Node = append(t.Node, number[first])
	}
	return t, nil
}

// OneNode tells whether the given world ranks share a node.
func (t *Topology) OneNode(ranks []int) bool {
	for _, r := range ranks {
		if t.Node[r] != t.Node[ranks[0]] {
			return false
		}
	}
	return true
}

// Peers returns the world ranks on this rank's node, in order.
func (t *Topology) Peers() []int {
	var peers []int
	for r, n := range t.Node {
		if n == t.Node[t.Rank] {
			peers = append(peers, r)
		}
	}
	return peers
}

// allMasks returns the affinity masks of all ranks of comm.
func allMasks(lib mpi.Library, comm mpi.Comm, ranks int) ([]mask, error) {
	block, err := mem.Alloc(int64(ranks+1) * int64(unsafe.Sizeof(mask{})))
	if err != nil {
		return nil, err
	}
	defer mem.Free(block)
	masks := unsafe.Slice((*mask)(block), ranks+1)
	masks[ranks] = affinity()
	t, _ := lib.TypeOf(op.UInt64)
	err = lib.Run(&mpi.Call{Fn: mpi.FnAllgather, Comm: comm, SendBuf: unsafe.Pointer(&masks[ranks]), SendCount: cpuWords, SendType: t,
		RecvBuf: block, RecvCount: cpuWords, RecvType: t}, nil)
	return slices.Clone(masks[:ranks]), err
}

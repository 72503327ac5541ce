// Package topo knows which ranks share a node.
package topo

import (
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/mpi"
	"github.com/paddlempi/paddlempi/gocore/op"
)

// Topology says which ranks are on which node. It is the same on every rank, except for Rank,
// LocalRank, LocalSize and LocalCPUs.
type Topology struct {
	Rank, Size           int
	LocalRank, LocalSize int
	LocalCPUs            int   // number of CPUs on which the ranks of this node may run, all together
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
	if t.LocalCPUs, err = unionOfCPUs(lib, node); err != nil {
		return nil, err
	}
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

// unionOfCPUs counts the CPUs on which at least one rank of comm may run.
func unionOfCPUs(lib mpi.Library, comm mpi.Comm) (int, error) {
	block, err := mem.Alloc(2 * 8 * cpuWords)
	if err != nil {
		return 0, err
	}
	defer mem.Free(block)
	words := unsafe.Slice((*uint64)(block), 2*cpuWords)
	mask := affinity()
	copy(words, mask[:])
	t, _ := lib.TypeOf(op.UInt64)
	o, _ := lib.OpOf(op.BOr, op.UInt64)
	err = lib.Run(&mpi.Call{Fn: mpi.FnAllreduce, Comm: comm, Op: o, SendBuf: block, SendCount: cpuWords, SendType: t,
		RecvBuf: unsafe.Pointer(&words[cpuWords]), RecvCount: cpuWords, RecvType: t}, nil)
	return count(words[cpuWords:]), err
}

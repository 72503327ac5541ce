// Package topo knows which ranks share a node.
package topo

import "github.com/paddlempi/paddlempi/gocore/transport"

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

// Discover asks the transport (MPI: MPI_Comm_split_type with MPI_COMM_TYPE_SHARED, MPI-4.1 section 7.4.2), and
// does not read the launcher's variables. It is collective over all.
func Discover(all transport.Exchange) (*Topology, error) {
	node, err := all.Node()
	if err != nil {
		return nil, err
	}
	defer node.Free()
	t := &Topology{Rank: all.Rank(), Size: all.Size(), LocalRank: node.Rank(), LocalSize: node.Size()}
	mine := []int64{int64(t.Rank)}
	for _, w := range affinity() {
		mine = append(mine, int64(w))
	}
	rows, err := node.Gather(mine, nil)
	if err != nil {
		return nil, err
	}
	masks := make([]mask, len(rows))
	for i, row := range rows {
		for w := range masks[i] {
			masks[i][w] = uint64(row[1+w])
		}
	}
	t.LocalCPUs, t.CPUs = count(union(masks)), cpusOf(masks, t.LocalRank)
	// The node's first rank identifies the node.
	firsts, err := all.Gather(rows[0][:1], nil)
	if err != nil {
		return nil, err
	}
	number := map[int64]int{}
	for _, row := range firsts {
		if _, ok := number[row[0]]; !ok {
			number[row[0]] = len(number)
		}
		t.Node = append(t.Node, number[row[0]])
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

// ByNode returns the indexes of the given world ranks by node, in the order of the nodes' first ranks among them.
func (t *Topology) ByNode(ranks []int) (nodes [][]int) {
	number := map[int]int{}
	for i, r := range ranks {
		at, ok := number[t.Node[r]]
		if !ok {
			at = len(nodes)
			number[t.Node[r]] = at
			nodes = append(nodes, nil)
		}
		nodes[at] = append(nodes[at], i)
	}
	return nodes
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

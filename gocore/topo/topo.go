// Package topo knows which ranks share a node.
package topo

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"os"
	"slices"

	"github.com/paddlempi/paddlempi/gocore/transport"
)

// Topology says which ranks are on which node. It is the same on every rank, except for Rank,
// LocalRank, LocalSize, LocalCPUs and CPUs.
type Topology struct {
	Rank, Size           int
	LocalRank, LocalSize int
	LocalCPUs            int   // number of CPUs on which the ranks of this node may run, all together
	CPUs                 CPUs  // those of this rank
	Node                 []int // node of each world rank; nodes are numbered in the order of their first ranks
	Joined               bool  // the ranks are those of several jobs, which are connected until their world ends
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
	t.number(firsts)
	return t, nil
}

// number numbers the nodes. Rows of ranks on one node are the same.
func (t *Topology) number(rows [][]int64) {
	number := map[string]int{}
	for _, row := range rows {
		name := fmt.Sprint(row)
		if _, ok := number[name]; !ok {
			number[name] = len(number)
		}
		t.Node = append(t.Node, number[name])
	}
}

// DiscoverJoined is Discover for ranks of several jobs. It does not ask the transport: MPICH numbers the nodes of each job, and
// takes two hosts for one if they have the same number in their jobs (measured). It is collective over all.
func DiscoverJoined(all transport.Exchange) (*Topology, error) {
	t := &Topology{Rank: all.Rank(), Size: all.Size(), Joined: true}
	mine := identity()
	names := len(mine)
	for _, w := range affinity() {
		mine = append(mine, int64(w))
	}
	rows, err := all.Gather(mine, nil)
	if err != nil {
		return nil, err
	}
	var masks []mask
	hosts := make([][]int64, len(rows))
	for r, row := range rows {
		hosts[r] = row[:names]
		if !slices.Equal(hosts[r], mine[:names]) {
			continue
		}
		if r == t.Rank {
			t.LocalRank = len(masks)
		}
		var m mask
		for w := range m {
			m[w] = uint64(row[names+w])
		}
		masks = append(masks, m)
	}
	t.LocalSize = len(masks)
	t.LocalCPUs, t.CPUs = count(union(masks)), cpusOf(masks, t.LocalRank)
	t.number(hosts)
	return t, nil
}

// identity is the same for processes that see each other in /proc: on one host, in one container.
func identity() []int64 {
	h := sha256.New()
	for _, path := range []string{"/proc/sys/kernel/random/boot_id", "/proc/sys/kernel/hostname"} {
		text, _ := os.ReadFile(path)
		_, _ = h.Write(append(text, 0))
	}
	namespace, _ := os.Readlink("/proc/self/ns/pid")
	_, _ = h.Write([]byte(namespace))
	sum := h.Sum(nil)
	return []int64{int64(binary.LittleEndian.Uint64(sum)), int64(binary.LittleEndian.Uint64(sum[8:]))}
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

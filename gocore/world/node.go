package world

import (
	"github.com/paddlempi/paddlempi/gocore/arrive"
	"github.com/paddlempi/paddlempi/gocore/heap"
	"github.com/paddlempi/paddlempi/gocore/topo"
	"github.com/paddlempi/paddlempi/gocore/transport"
)

// Node is what the ranks of this rank's node share: memory files, which package segment makes. Its methods are safe
// for concurrent use.
type Node struct {
	base     transport.Comm
	topo     *topo.Topology
	ranks    []int              // world ranks on this node
	presence *arrive.Lines      // shows which of them have left; nil if they cannot share memory
	way      way                // how they came to share memory
	views    map[int]*heap.View // heaps of the other ones, by world rank; nil if they cannot be shared
	adopts   bool               // they can open each other's files through /proc
	noHeaps  string             // why views is nil; "" if this rank is alone on its node
	crowded  bool               // there are more ranks than cores
}

// newNode opens what the ranks of each node share. It is collective over base.
func newNode(base transport.Comm, t *topo.Topology) (*Node, error) {
	n := &Node{base: base, topo: t, ranks: t.Peers(), crowded: t.Crowded()}
	var err error
	if n.presence, n.way, err = n.MakeLines(base, n.ranks, 0); err != nil {
		return nil, err
	}
	return n, n.shareHeaps()
}

// Crowded tells whether this node has more ranks than cores.
func (n *Node) Crowded() bool { return n.crowded }

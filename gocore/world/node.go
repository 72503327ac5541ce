package world

import (
	"slices"
	"syscall"

	"github.com/paddlempi/paddlempi/gocore/arrive"
	"github.com/paddlempi/paddlempi/gocore/heap"
	"github.com/paddlempi/paddlempi/gocore/topo"
	"github.com/paddlempi/paddlempi/gocore/transport"
	"github.com/paddlempi/paddlempi/gocore/transport/memory"
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
	local    *memory.Comm       // connects the ranks of this node; nil if they cannot share memory, and where base needs none
}

// newNode opens what the ranks of each node share. direct says that this rank may give messages of device memory to base.
// newNode is collective over base.
func newNode(base transport.Comm, t *topo.Topology, direct bool) (*Node, error) {
	n := &Node{base: base, topo: t, ranks: t.Peers(), crowded: t.Crowded()}
	var err error
	if n.presence, n.way, err = n.MakeLines(base, n.ranks, 0); err != nil {
		return nil, err
	}
	if err := n.shareHeaps(); err != nil {
		return nil, err
	}
	return n, n.connect(direct)
}

// connect makes what carries messages within the node, unless base is that, or some rank may need base for device memory. It
// is collective over base.
func (n *Node) connect(direct bool) error {
	if n.base.HostMemoryOnly() {
		return nil
	}
	words := []int64{1}
	if direct {
		words[0] = 0
	}
	if err := n.base.Min(words); err != nil || words[0] == 0 {
		return err
	}
	file, _, err := shareFile(n.base, n.ranks, "paddlempi-messages", memory.Bytes(len(n.ranks)))
	if file == nil || err != nil {
		return err
	}
	shared, err := file.Map()
	file.Close()
	if err != nil {
		return err
	}
	n.local, err = memory.New(shared, slices.Index(n.ranks, n.topo.Rank), len(n.ranks), func() { _ = syscall.Munmap(shared) })
	return err
}

// Connect returns a Comm of some ranks of this node, which carries messages better than base does; nil if there is none. All
// of them call it, with the same key.
func (n *Node) Connect(ranks []int, key uint64) (transport.Comm, error) {
	if n.local == nil {
		return nil, nil
	}
	places := make([]int, len(ranks))
	for i, r := range ranks {
		places[i] = slices.Index(n.ranks, r)
	}
	return n.local.Create(places, key)
}

// Crowded tells whether this node has more ranks than cores.
func (n *Node) Crowded() bool { return n.crowded }

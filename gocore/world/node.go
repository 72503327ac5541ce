package world

import (
	"slices"

	"github.com/paddlempi/paddlempi/gocore/health"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/topo"
	"github.com/paddlempi/paddlempi/gocore/transport"
	"github.com/paddlempi/paddlempi/gocore/transport/memory"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// Node is what the ranks of this rank's node share: memory files, which package segment makes. Its methods are safe
// for concurrent use.
type Node struct {
	health.NodeView // who the ranks are, and what their memory shows of them

	base    transport.Comm
	way     way         // how they came to share memory
	adopts  bool        // they can open each other's files through /proc
	noHeaps string      // why Views is nil; "" if this rank is alone on its node
	crowded bool        // there are more ranks than cores
	bells   *work.Bells // of the ranks of this node; nil: there are none

	revocation *revocation // who has revoked the world

	local *memory.Comm // connects the ranks of this node; nil if they cannot share memory, and where base needs none
}

// newNode opens what the ranks of each node share. direct says that this rank may give messages of device memory to base.
// newNode is collective over base. After an error there is what was opened before.
func newNode(base transport.Comm, t *topo.Topology, direct bool) (*Node, error) {
	n := &Node{NodeView: health.NodeView{Ranks: t.Peers()}, base: base, crowded: t.Crowded()}
	if err := n.present(); err != nil {
		return n, err
	}
	n.shareRevocation()
	if err := n.shareHeaps(); err != nil {
		return n, err
	}
	return n, n.connect(direct)
}

// connect makes what carries messages within the node, unless base is that, or some rank may need base for device memory. It
// is collective over base.
func (n *Node) connect(direct bool) error {
	if n.base.HostMemoryOnly() {
		return nil
	}
	if wanted, err := transport.All(n.base, !direct); err != nil || !wanted {
		return err
	}
	var err error
	n.local, _, err = connect(sharing(n.base, n.Ranks, messagesFile, memory.Bytes(len(n.Ranks))))
	return err
}

// messagesFile is the name of the memory file that carries messages.
const messagesFile = "paddlempi-messages"

// ConnectNode returns what carries messages between the ranks of comm, which are on one node. If some rank cannot have it, refused
// says on all ranks which, and on that rank why. Only processes of one user get it, because comm may be overheard. ConnectNode is
// collective over comm.
func ConnectNode(comm transport.Exchange) (c *memory.Comm, refused, err error) {
	h := sharing(comm, transport.EveryRank(comm.Size()), messagesFile, memory.Bytes(comm.Size()))
	h.sameUser = true
	return connect(h)
}

// connect makes what carries messages between the peers of h. See ConnectNode.
func connect(h *handover) (c *memory.Comm, refused, err error) {
	rank, size := h.comm.Rank(), h.comm.Size()
	file, _, err := h.share()
	if err != nil {
		return nil, nil, err
	}
	var why error
	switch {
	case file != nil:
		c, why = memory.Open(file, slices.Index(h.peers, rank), len(h.peers))
	case len(h.peers) == 1:
		c, why = memory.New(make([]byte, memory.Bytes(1)), 0, 1, nil) // nobody else needs that memory
	case len(h.lacks) > 0:
		why = h.refused
	}
	words := []int64{1, int64(size)} // whether all have it, and the first rank that knows why it has not
	if c == nil {
		words[0] = 0
	}
	if why != nil {
		words[1] = int64(rank)
	}
	if err := h.comm.Min(words); err != nil {
		return nil, nil, err
	}
	if words[0] == 1 {
		return c, nil, nil
	}
	if c != nil {
		_ = c.Free()
	}
	if why != nil {
		return nil, status.New(status.Unsupported, "rank %d cannot share memory with the other ranks: %v", rank, why).WithRanks(rank), nil
	}
	first := int(words[1])
	return nil, status.New(status.Unsupported, "rank %d cannot share memory with the other ranks, and its own error says why", first).WithRanks(first), nil
}

// Connect returns a Comm of some ranks of this node, which carries messages better than base does; nil if there is none. All
// of them call it, with the same key.
func (n *Node) Connect(ranks []int, key uint64) (transport.Comm, error) {
	if n.local == nil {
		return nil, nil
	}
	places := make([]int, len(ranks))
	for i, r := range ranks {
		places[i] = slices.Index(n.Ranks, r)
	}
	return n.local.Create(places, key)
}

// Crowded tells whether this node has more ranks than cores.
func (n *Node) Crowded() bool { return n.crowded }

// close frees what newNode has made.
func (n *Node) close() {
	n.closeViews()
	n.closeBells()
	if n.local != nil {
		_ = n.local.Free()
	}
	if n.Presence != nil {
		_ = n.Presence.Close()
	}
}

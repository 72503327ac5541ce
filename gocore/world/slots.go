package world

import (
	"slices"

	"github.com/paddlempi/paddlempi/gocore/arrive"
	"github.com/paddlempi/paddlempi/gocore/segment"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/transport"
)

// MakeControlSlots makes the control slots of peers: the ranks of comm on this rank's node, this rank among them, with more bytes behind
// them. MakeControlSlots is collective over comm. A rank that is alone on its node gets no control slots. If some rank of comm cannot map its node's control slots, all ranks
// get none, and how is byMessage.
func (n *Node) MakeControlSlots(comm transport.Exchange, peers []int, more int64) (_ *arrive.ControlSlots, how way, _ error) {
	return n.makeControlSlots(comm, peers, arrive.ControlSlotsSize(len(peers))+more, nil)
}

// makeControlSlots makes control slots in a file of so many bytes. Each rank that has the file calls also with it, unless that is nil.
func (n *Node) makeControlSlots(comm transport.Exchange, peers []int, bytes int64, also func(*segment.File) error) (_ *arrive.ControlSlots, how way, _ error) {
	size, me := len(peers), slices.Index(peers, comm.Rank())
	file, how, err := sharing(comm, peers, "paddlempi-arrive", bytes).share()
	if err != nil || how == byMessage {
		return nil, how, err
	}
	var slots *arrive.ControlSlots
	if file != nil {
		if slots, err = arrive.NewControlSlots(file, size, me); err == nil && also != nil {
			err = also(file)
		}
		file.Close()
	}
	mapped, failed := transport.All(comm, err == nil)
	switch {
	case slots == nil:
	case failed != nil:
		slots.Stop(1, status.CodeOf(failed)) // others may have heard of this rank: they need not wait for it in a collective
		_ = slots.Close()
	case !mapped:
		_ = slots.Close()
	case n.crowded:
		slots.YieldEvery(16)
	}
	if failed != nil || !mapped {
		return nil, byMessage, failed
	}
	return slots, how, nil
}

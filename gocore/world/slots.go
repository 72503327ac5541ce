package world

import (
	"slices"

	"github.com/paddlempi/paddlempi/gocore/arrive"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/transport"
)

// MakeControlSlots makes the control slots of peers: the ranks of comm on this rank's node, this rank among them, with more bytes behind
// them. MakeControlSlots is collective over comm. A rank that is alone on its node gets no control slots. If some rank of comm cannot map its node's control slots, all ranks
// get none, and how is byMessage.
func (n *Node) MakeControlSlots(comm transport.Exchange, peers []int, more int64) (_ *arrive.ControlSlots, how way, _ error) {
	size, me := len(peers), slices.Index(peers, comm.Rank())
	file, how, err := sharing(comm, peers, "paddlempi-arrive", arrive.ControlSlotsSize(size)+more).share()
	if err != nil || how == byMessage {
		return nil, how, err
	}
	var slots *arrive.ControlSlots
	if file != nil {
		slots, err = arrive.NewControlSlots(file, size, me)
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

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
	file, how, err := shareFile(comm, peers, "paddlempi-arrive", arrive.ControlSlotsSize(size)+more)
	if err != nil || how == byMessage {
		return nil, how, err
	}
	ok := []int64{1}
	var slots *arrive.ControlSlots
	if file != nil {
		if slots, err = arrive.NewControlSlots(file, size, me); err != nil {
			ok[0] = 0
		}
		file.Close()
	}
	if err := comm.Min(ok); err != nil {
		if slots != nil {
			slots.Stop(1, status.CodeOf(err)) // others may have heard of this rank: they need not wait for it in a collective
			_ = slots.Close()
		}
		return nil, how, err
	}
	if ok[0] == 0 {
		if slots != nil {
			_ = slots.Close()
		}
		return nil, byMessage, nil
	}
	if slots != nil && n.crowded {
		slots.YieldEvery(16)
	}
	return slots, how, nil
}

package coll

import (
	"github.com/paddlempi/paddlempi/gocore/coll/ipc"
	"github.com/paddlempi/paddlempi/gocore/cuda"
)

// Place is what a collective needs beyond Args where some rank has tensors in device memory.
type Place struct {
	// Device holds this rank's tensors; nil where they are all the host's.
	Device *cuda.Device
	// Ready stands for what the producing stream had queued when the collective was
	// submitted: nothing may touch the tensors before.
	Ready cuda.Event
	// Chunk is the length in bytes of the pieces that are staged, the same on all ranks.
	Chunk int64
	// Peers maps the memory of the group's other ranks; nil unless all share a node.
	Peers *ipc.Peers

	// Tail is made by the algorithm: it stands for the last copy or kernel that it queued,
	// where that is not over when the program is. It is of Device.GetEvent.
	Tail cuda.Event
}

// end makes Tail stand for what is queued on s by now.
func (pl *Place) end(s cuda.Stream) error { return pl.Device.Mark(&pl.Tail, s) }

// ready tells whether the producing stream has come to the collective.
func (pl *Place) ready() (bool, error) {
	if pl.Device == nil {
		return true, nil
	}
	return pl.Device.Query(pl.Ready)
}

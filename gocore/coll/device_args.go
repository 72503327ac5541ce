package coll

import (
	"github.com/paddlempi/paddlempi/gocore/coll/ipc"
	"github.com/paddlempi/paddlempi/gocore/cuda"
)

// DeviceArgs is what a collective needs beyond Args if some rank has tensors in device memory.
type DeviceArgs struct {
	// Device holds this rank's tensors. It is nil if they are all in host memory.
	Device *cuda.Device
	// Ready stands for what the producing stream had queued when the collective was submitted.
	// Nothing may touch the tensors before that is over.
	Ready cuda.Event
	// PieceBytes is the length of a staged piece in bytes, the same on all ranks.
	PieceBytes int64
	// Peers maps the memory of the group's other ranks. It is nil unless all members share a node.
	Peers *ipc.Peers

	// Tail is set by the algorithm. It stands for the last copy or kernel that the algorithm has
	// queued, which may still run when the program has ended. It is 0 if nothing was queued. The
	// caller gives it back with Device.PutEvent.
	Tail cuda.Event
}

// end makes Tail stand for the work that is queued on s now.
func (da *DeviceArgs) end(s cuda.Stream) error { return da.Device.Mark(&da.Tail, s) }

// ready tells whether the producing stream has finished what it had queued before the collective.
func (da *DeviceArgs) ready() (bool, error) {
	if da.Device == nil {
		return true, nil
	}
	return da.Device.Query(da.Ready)
}

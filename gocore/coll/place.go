package coll

import (
	"github.com/paddlempi/paddlempi/gocore/arrive"
	"github.com/paddlempi/paddlempi/gocore/coll/ipc"
	"github.com/paddlempi/paddlempi/gocore/cuda"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// Place is what a collective needs beyond Args where some rank has tensors in device memory.
type Place struct {
	// Device holds this rank's tensors; nil where they are all the host's.
	Device *cuda.Device
	// Ready stands for what the producing stream had queued when the collective was
	// submitted: nothing may touch the tensors before.
	Ready cuda.Event
	// Agreed is what every member announced, Any what at least one did.
	Agreed, Any arrive.Flags
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

// The algorithms for device memory, by path: the first path that is open to all ranks
// carries the collective.
//
//	ipc     the ranks share a node and every tensor can be mapped by the others
//	direct  MPI is given the addresses of the tensors: only where it moves them well
//	staged  through pinned host memory in pieces
var (
	ipcRegistry    = map[op.Code]*Algorithm{}
	directRegistry = map[op.Code][]*Algorithm{}
)

// chooseOnDevice returns the algorithm of a collective in which some rank's tensors are in
// device memory.
func chooseOnDevice(s *Sig) (*Algorithm, error) {
	if s.Size == 1 {
		return &aloneOnDevice, nil
	}
	if s.Agreed&arrive.IPC != 0 {
		if a := ipcRegistry[s.Code]; a != nil && a.Enabled(s) {
			return a, nil
		}
	}
	if s.Any&arrive.NotDirect == 0 {
		for _, a := range directRegistry[s.Code] {
			if a.Enabled(s) {
				return a, nil
			}
		}
	}
	if s.Any&arrive.NotStaged == 0 {
		return &staged, nil
	}
	return nil, status.New(status.Unsupported, "%s: a rank's PADDLEMPI_CUDA_PATHS leaves out \"staged\", and no other way serves this call: "+
		"ipc wants all ranks on one node and tensors in cudaMalloc'ed memory, each side one contiguous tensor; direct wants a CUDA-aware MPI and an operation that only moves data", s.Code)
}

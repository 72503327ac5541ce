// Package coll turns a collective into steps: MPI calls and local work.
//
// Each algorithm is one file, named operation_algorithm.go, whose comment gives
// its steps and the bytes it moves. A registry picks the first algorithm of the
// operation that is enabled; Enabled sees only what all ranks agree on, or they
// would choose differently and deadlock.
package coll

import (
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/arrive"
	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/mpi"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// Part is memory outside the Go heap: Count elements at Data, contiguous and the host's
// unless it says otherwise.
type Part struct {
	Data  unsafe.Pointer
	Count int64
	// OnDevice says that Data is memory of Args.Place's device; then Layout, unless nil, has
	// the shape and strides of a tensor that is not contiguous.
	OnDevice bool
	Layout   *op.Buf
}

// Sig is what all ranks agree on: the part of Args that Enabled may see.
type Sig struct {
	Code   op.Code
	DType  op.DType
	Reduce op.ReduceOp
	Root   int
	// Count is the number of elements of one rank's contribution, the same on all
	// ranks; 0 for an uneven all_gather or reduce_scatter, -1 for an uneven all_to_all.
	Count int64
	Size  int
	// Local says that the members share a node and its memory.
	Local  bool
	Agreed arrive.Flags // set by every member
	Any    arrive.Flags // set by at least one
}

// What the members tell each other of their calls.
const (
	Even arrive.Flags = arrive.Others << iota // the shares of this member are of one length

	// Of tensors in device memory. What rules a path out is a flag that one member's is
	// enough for, so that a member with host tensors has nothing to say.
	Device       // some of this member's tensors are in device memory
	IPC          // they can be mapped by the other processes of the node
	NotDirect    // its MPI does not take their addresses, or may not be given them
	NotStaged    // they may not be staged through host memory
	DeviceReduce // where staged, this member asks for sums on the device
)

// Args is a validated collective whose buffers are contiguous.
type Args struct {
	Lib  mpi.Library
	Comm mpi.Comm
	Rank int // of this process in Comm

	// Sig is what its algorithm is chosen by. An algorithm that chooses another one inside
	// changes a copy.
	Sig
	Scale float64 // factor of PREMUL_SUM
	// Send and Recv are the buffers: one, or one a rank. Send is empty for an
	// operation in place.
	Send, Recv []Part
	// Place is set where some rank's tensors are in device memory.
	Place *Place
}

// Trait is what holds for the operation.
func (s *Sig) Trait() *op.Trait { return s.Code.Trait() }

// ReadsRecv tells whether Recv holds this rank's contribution.
func (a *Args) ReadsRecv() bool { return a.Trait().ReadsRecv(a.Root, a.Rank, len(a.Send)) }

// WritesRecv tells whether this rank gets a result.
func (a *Args) WritesRecv() bool { return a.Trait().WritesRecv(a.Root, a.Rank) }

// Algorithm is one way to carry out an operation.
type Algorithm struct {
	Name string
	// Enabled says whether the algorithm can serve this call. It still can where more is
	// agreed on.
	Enabled func(*Sig) bool
	// Polls says that the steps wait by polling even where every member waits inside its
	// call: messages between pairs of ranks, or a wait for a device. All ranks then make
	// nonblocking calls throughout, and the wait can be given up. Nil: never.
	Polls func(*Sig) bool
	// Scratch returns the most bytes that the steps take from the program on this rank, so
	// that they can be reserved before the others count on it. Nil: none.
	Scratch func(*Args) int64
	// Build appends the steps of this rank. It touches no tensor and no device: only the
	// steps do.
	Build func(*Args, *Program) error
}

// registry lists the algorithms of each operation, the preferred first. It is filled
// by init because some algorithms choose another one inside.
var registry [op.Exscan + 1][]*Algorithm

func init() {
	registry = [...][]*Algorithm{
		op.Barrier:            {&single, &barrierMPI},
		op.Broadcast:          {&single, &singleOnDevice, &broadcastIPC, &broadcastDirect, &staged, &broadcastMPI},
		op.AllReduce:          {&single, &singleOnDevice, &allReduceIPC, &staged, &allReduceGather16, &allReduceSlices16, &allReduceMPI},
		op.AllReduceCoalesced: {&single, &singleOnDevice, &staged, &allReduceCoalescedPack},
		op.Reduce:             {&single, &singleOnDevice, &reduceIPC, &staged, &reduceSlices16, &reduceMPI},
		op.AllGather:          {&single, &singleOnDevice, &allGatherIPC, &allGatherDirect, &staged, &allGatherMPI, &allGatherUnevenMPI},
		op.Gather:             {&single, &singleOnDevice, &gatherIPC, &gatherDirect, &staged, &gatherMPI},
		op.Scatter:            {&single, &singleOnDevice, &scatterIPC, &scatterDirect, &staged, &scatterMPI},
		op.ReduceScatter:      {&single, &singleOnDevice, &reduceScatterIPC, &staged, &reduceScatterSlices16, &reduceScatterMPI},
		op.AllToAll: {&single, &singleOnDevice, &allToAllIPC, &allToAllEvenDirect, &allToAllUnevenDirect, &staged,
			&allToAllEvenMPI, &allToAllUnevenMPI},
		op.Scan:   {&single, &singleOnDevice, &staged, &scanGather16, &scanMPI},
		op.Exscan: {&single, &singleOnDevice, &staged, &scanGather16, &scanMPI},
	}
}

// algorithms lists those of an operation, none of one that the registry does not have.
func algorithms(c op.Code) []*Algorithm {
	if c <= 0 || int(c) >= len(registry) {
		return nil
	}
	return registry[c]
}

// Choose returns the first enabled algorithm.
func Choose(s *Sig) (*Algorithm, error) {
	for _, alg := range algorithms(s.Code) {
		if alg.Enabled(s) {
			return alg, nil
		}
	}
	if onDevice(s) {
		return nil, status.New(status.Unsupported, "%s: a rank's PADDLEMPI_CUDA_PATHS leaves out \"staged\", and no other way serves this call: "+
			"ipc wants all ranks on one node and tensors in cudaMalloc'ed memory, each side one contiguous tensor; direct wants a CUDA-aware MPI and an operation that only moves data", s.Code)
	}
	return nil, status.New(status.Unsupported, "no algorithm for %s of %s %s", s.Code, s.DType, s.Reduce)
}

// Polled tells whether the steps that serve a call have to be polled.
func (alg *Algorithm) Polled(s *Sig) bool { return alg.Polls != nil && alg.Polls(s) }

// serves tells whether an algorithm is among those of an operation.
func serves(name string, c op.Code) bool {
	for _, alg := range algorithms(c) {
		if alg.Name == name {
			return true
		}
	}
	return false
}

// Scratch returns the most bytes of host memory that any algorithm takes on this rank which may be
// chosen when it announces the flags own: whatever the others announce, no more is agreed on. It is
// called once a collective, before that is known, and leaves own as the flags of a.
func Scratch(a *Args, own arrive.Flags) (most int64) {
	a.Agreed, a.Any = own, own
	for _, alg := range algorithms(a.Code) {
		if alg.Scratch != nil && alg.Enabled(&a.Sig) {
			most = max(most, alg.Scratch(a))
		}
	}
	return most
}

// What algorithms are enabled by.

func onDevice(s *Sig) bool { return s.Any&Device != 0 }
func onHost(s *Sig) bool   { return s.Any&Device == 0 }
func evenly(s *Sig) bool   { return s.Agreed&Even != 0 }
func always(*Sig) bool     { return true }

func evenlyOnHost(s *Sig) bool  { return onHost(s) && evenly(s) }
func reducedOnHost(s *Sig) bool { return onHost(s) && reducedHere(s) }

func (a *Args) elem() int64 { return int64(a.DType.Size()) }

// reducedHere says that MPI's own reduction will not do: inside MPI, 16-bit floats would be
// rounded at every hop; and sums of 8-bit and 16-bit integers, which wrap (of which AVG is made), saturate in the
// vector code of Open MPI.
func reducedHere(s *Sig) bool {
	switch s.DType {
	case op.Float16, op.BFloat16:
		return true
	case op.Int8, op.UInt8, op.Int16, op.UInt16:
		return s.Reduce == op.Sum || s.Reduce == op.Avg
	}
	return false
}

// at returns the address i elements into a buffer.
func (a *Args) at(p unsafe.Pointer, i int64) unsafe.Pointer {
	return unsafe.Add(p, i*a.elem())
}

// alloc takes scratch memory that is freed when the program ends.
func (a *Args) alloc(p *Program, elements int64) (unsafe.Pointer, error) {
	return p.Alloc(elements * a.elem())
}

// copyElements moves n elements unless source and destination are the same.
func (a *Args) copyElements(dst, src unsafe.Pointer, n int64) {
	if dst != src && n > 0 {
		mem.Copy(dst, src, n*a.elem())
	}
}

func counts(parts []Part) (total int64) {
	for i := range parts {
		total += parts[i].Count
	}
	return total
}

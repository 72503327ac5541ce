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

// Args is a validated collective whose buffers are contiguous.
type Args struct {
	Lib  mpi.Library
	Comm mpi.Comm
	Rank int // of this process in Comm
	Size int

	Code   op.Code
	DType  op.DType
	Reduce op.ReduceOp
	Scale  float64 // factor of PREMUL_SUM
	Root   int
	// Count is the number of elements of one rank's contribution, the same on all
	// ranks; 0 for an uneven all_gather, reduce_scatter or all_to_all.
	Count int64
	// Send and Recv are the buffers: one, or one a rank. Send is empty for an
	// operation in place.
	Send, Recv []Part
	// Place is set where some rank's tensors are in device memory.
	Place *Place
}

// Sig is what all ranks agree on: the part of Args that Enabled may see.
type Sig struct {
	Code   op.Code
	DType  op.DType
	Reduce op.ReduceOp
	Root   int
	Count  int64
	Size   int
	Agreed arrive.Flags // set by every member
	Any    arrive.Flags // set by at least one
}

// Algorithm is one way to carry out an operation.
type Algorithm struct {
	Name string
	// Enabled says whether the algorithm can serve this call.
	Enabled func(*Sig) bool
	// Polls says that the steps wait by polling even where every member waits inside its
	// call: messages between pairs of ranks, or a wait for a device. All ranks then make
	// nonblocking calls throughout, and the wait can be given up. Nil: never.
	Polls func(*Sig) bool
	// Scratch returns the most bytes that Build takes from the program on this rank, so
	// that they can be reserved before the others count on it. Nil: none.
	Scratch func(*Args) int64
	// Build appends the steps of this rank. It touches no tensor: only the steps do.
	Build func(*Args, *Program) error
}

func (alg *Algorithm) polls(s *Sig) bool { return alg.Polls != nil && alg.Polls(s) }

// Choose returns the first enabled algorithm.
func Choose(s *Sig) (*Algorithm, error) {
	if s.Any&arrive.Device != 0 {
		return chooseOnDevice(s)
	}
	if s.Code > 0 && int(s.Code) < len(registry) {
		for i := range registry[s.Code] {
			if a := &registry[s.Code][i]; a.Enabled(s) {
				return a, nil
			}
		}
	}
	return nil, status.New(status.Unsupported, "no algorithm for %s of %s %s", s.Code, s.DType, s.Reduce)
}

// registry lists the algorithms of each operation, the preferred first. It is filled
// by init because some algorithms choose another one inside.
var registry [op.Exscan + 1][]Algorithm

func init() {
	registry = [...][]Algorithm{
		op.Barrier:            {barrierSingle, barrierMPI},
		op.Broadcast:          {broadcastSingle, broadcastMPI},
		op.AllReduce:          {allReduceSingle, allReduceGather16, allReduceSlices16, allReduceMPI},
		op.AllReduceCoalesced: {allReduceCoalescedPack},
		op.Reduce:             {reduceSingle, reduceSlices16, reduceMPI},
		op.AllGather:          {allGatherSingle, allGatherMPI, allGatherUnevenMPI},
		op.Gather:             {gatherSingle, gatherMPI},
		op.Scatter:            {scatterSingle, scatterMPI},
		op.ReduceScatter:      {reduceScatterSingle, reduceScatterSlices16, reduceScatterMPI},
		op.AllToAll:           {allToAllSingle, allToAllEvenMPI, allToAllUnevenMPI},
		op.Scan:               {scanSingle, scanGather16, scanMPI},
		op.Exscan:             {scanSingle, scanGather16, scanMPI},
	}
}

// Plan is Choose, and tells whether the steps have to be polled.
func Plan(s *Sig) (alg *Algorithm, polled bool, err error) {
	if alg, err = Choose(s); err != nil {
		return nil, false, err
	}
	return alg, alg.polls(s), nil
}

// Sig returns what the registry chooses by, but for what the members agree on.
func (a *Args) Sig() Sig {
	return Sig{Code: a.Code, DType: a.DType, Reduce: a.Reduce, Root: a.Root, Count: a.Count, Size: a.Size}
}

// Scratch returns the most bytes of host memory that Build of any algorithm takes on this rank which
// may be chosen, whatever the others announce. s is that of a (the caller has it in memory that is
// reused: this is called once a collective), own are the flags that this rank announces.
func Scratch(s *Sig, a *Args, own arrive.Flags) (most int64) {
	if s.Code <= 0 || int(s.Code) >= len(registry) {
		return 0
	}
	for i := range registry[s.Code] {
		alg := &registry[s.Code][i]
		if alg.Scratch == nil {
			continue
		}
		for _, s.Agreed = range [2]arrive.Flags{own, 0} {
			if alg.Enabled(s) {
				most = max(most, alg.Scratch(a))
				break
			}
		}
	}
	return most
}

func always(*Sig) bool      { return true }
func single(s *Sig) bool    { return s.Size == 1 }
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

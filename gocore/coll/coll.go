package coll

import (
	"fmt"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/arrive"
	"github.com/paddlempi/paddlempi/gocore/coll/shm"
	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// Part is memory outside the Go heap: Count elements at Data. The memory is contiguous host memory
// unless OnDevice or Layout says otherwise.
type Part struct {
	Data  unsafe.Pointer
	Count int64
	// OnDevice says that Data is memory of Args.DeviceArgs.Device.
	OnDevice bool
	// Layout has the shape and strides of a tensor that is not contiguous. Such a part in host memory comes with the flag
	// Piecewise.
	Layout *op.Buf
}

// Sig is the part of Args that Enabled may see, because all ranks have agreed on it.
type Sig struct {
	Code   op.Code
	DType  op.DType
	Reduce op.ReduceOp
	Root   int
	// Count is the number of elements of one rank's tensor, or of one rank's share if the operation
	// has shares. For all_reduce_coalesced it is the sum over the tensors. It is 0 for a barrier,
	// and for an all_gather or reduce_scatter whose shares differ in length. All ranks have the
	// same Count.
	//
	// An all_to_all is the exception: only if Even is agreed on, all ranks have the same Count.
	// Otherwise Count is -1 on a rank whose shares differ in length, and the length of a share on
	// any other rank.
	Count int64
	Size  int
	// Local says that the members share a node and its memory.
	Local  bool
	Nodes  int          // on which the members are, if they arrive by wire; else 0
	Rails  int          // ranks of the smallest node, if the group may work in levels; 0: it may not
	Agreed arrive.Flags // flags that every member has set
	Any    arrive.Flags // flags that at least one member has set
	Forced Forced       // algorithms that the group prefers to the registry's order
	NoMPI  bool         // the group has several members and no MPI
}

// Flags that a member announces about its call.
const (
	// Even says that all shares of this member have the same length: in an all_to_all, those of both
	// sides. A member announces it for an operation without shares, too.
	Even arrive.Flags = arrive.Others << iota

	// The flags below are about tensors in device memory. A property that every member needs is a
	// flag that all must set (IPC, DeviceReduce). An obstacle is a flag that one member sets for
	// all (NotDirect, NotStaged), so a member with host tensors sets none of them.
	Device       // some tensors of this member are in device memory
	IPC          // the other processes of the node can map this member's tensors
	NotDirect    // this member's MPI must not be given the addresses of its tensors
	NotStaged    // this member's tensors must not be staged through host memory
	DeviceReduce // this member wants the device to reduce staged tensors

	Inline // this member's input lies in its arrival slot
	Mapped // this member's tensors lie in its heap, and its slot tells where

	ForLevels // this member has what it needs to work in levels
	ForBounce // this member has a block for bounce, and has told where

	ForCMA // the other members may read this member's tensors in its memory, and it can read theirs

	Piecewise // some tensors of this member in host memory are not contiguous, and too long to be copied as a whole
)

// ofTensors are the flags that say where a member's tensors lie. They hold for the call that was announced, not for one
// inside it.
const ofTensors = Inline | Mapped | ForCMA | arrive.Summed

// inside returns what is agreed on for an operation that is carried out as a part of this one.
func (s *Sig) inside(c op.Code) Sig {
	inner := *s
	inner.Code, inner.Agreed, inner.Any = c, s.Agreed&^ofTensors, s.Any&^ofTensors
	return inner
}

// Args is a collective whose arguments were checked.
type Args struct {
	MPI
	Rank int // of this process in Comm

	// Choose gets only Sig. An algorithm that chooses a second algorithm for a part of its work
	// changes a copy of Args.
	Sig
	Scale  float64 // factor of PREMUL_SUM
	Pieces Pieces  // of messages between nodes
	// Partial says that the results are partial sums: of 16-bit floats, but of type float32 themselves. Only a
	// reduce_scatter of the members on a node (Levels) has such results, in one part, and only mapped serves it.
	Partial bool
	// Send and Recv are the buffers: one, or one for each rank. Send is empty if the operation is
	// in place.
	Send, Recv []Part
	// Neighbours is set for an operation between neighbours.
	Neighbours *Neighbours
	// DeviceArgs is set if some rank has tensors in device memory.
	DeviceArgs *DeviceArgs
	// Payloads has what the members have announced beside their signatures, for the collective with the number Seq. It
	// is nil in a group of one.
	Payloads Payloads
	Seq      uint64
	// Node is set if all ranks share a node and its memory, Levels if Rails is not 0.
	Node   *Node
	Levels *Levels
	Bounce *Bounce // nil if the members do not share memory
}

// Payloads are the payloads of an arrival.
type Payloads interface {
	// Payload returns the payload of a member for collective seq, at which all members have arrived, and its length. It is
	// valid until this member's next collective.
	Payload(seq uint64, member int) (payload unsafe.Pointer, bytes int64)
	// Rooms returns the most bytes of payloads.
	Rooms() arrive.Rooms
}

// Trait returns the row of the operation in op's table.
func (s *Sig) Trait() *op.Trait { return s.Code.Trait() }

// ReadsRecv tells whether Recv holds this rank's input.
func (a *Args) ReadsRecv() bool { return a.Trait().ReadsRecv(a.Root, a.Rank, len(a.Send)) }

// WritesRecv tells whether this rank gets a result.
func (a *Args) WritesRecv() bool { return a.Trait().WritesRecv(a.Root, a.Rank) }

// Part returns this rank's input: Send, or Recv if the operation is in place.
func (a *Args) Part() Part {
	if len(a.Send) > 0 {
		return a.Send[0]
	}
	return a.Recv[0]
}

// Algorithm is one way to carry out an operation.
type Algorithm struct {
	Name string
	// Memory is the memory that the algorithm serves: hostMemory if all tensors of all ranks are in
	// host memory, stridedMemory if they are and some rank has a tensor with a Layout, deviceMemory if some rank has a
	// tensor in device memory.
	Memory memory
	// Enabled says whether the algorithm can serve a call on such memory. If it accepts a Sig, it
	// also accepts that Sig with more flags in Agreed or fewer in Any. nil stands for always.
	Enabled func(*Sig) bool
	// callsMPI says that the steps call MPI: for themselves, not by another algorithm that they choose.
	callsMPI bool
	// wins says for which of the calls that the algorithm serves it is faster than those behind it in the registry. It counts only
	// if the algorithm is not forced and the group has MPI. nil stands for always.
	wins func(*Sig) bool
	// polls says that the steps must be polled even if every member waits inside its call, because
	// they send messages between pairs of ranks or wait for a device. All ranks then use
	// nonblocking MPI calls, so the wait can be given up. nil stands for never.
	polls func(*Sig) bool
	// scratch returns an upper bound of the bytes that the steps take from the program on this
	// rank. They are reserved before the other ranks count on this one. nil stands for 0.
	scratch func(*Args) int64
	// build appends the steps of this rank. build touches no tensor and no device: only the steps
	// do.
	build func(*Args, *Program) error
	// atOnce, if set, stands for build. It computes the result when all ranks have arrived, without
	// a wait. Scratch memory is from the program.
	atOnce func(*Args, *Program) error
	// rounds, if set, begins the rounds of bounce in place of build, in a call whose thread carries them out.
	rounds func(*Args, *Program) error
	// shared, if set, stands for build. It returns the work that the ranks share out when all have
	// arrived.
	shared func(*Args) (*shm.Op, error)
}

// memory is a set of kinds of memory.
type memory uint8

const (
	hostMemory memory = 1 << iota
	deviceMemory
	stridedMemory
)

// memory returns the kind of memory that an algorithm has to serve for this call.
func (s *Sig) memory() memory {
	switch {
	case s.Any&Device != 0:
		return deviceMemory
	case s.Any&Piecewise != 0:
		return stridedMemory
	}
	return hostMemory
}

// serves tells whether the algorithm can serve a call.
func (alg *Algorithm) serves(s *Sig) bool {
	return alg.Memory&s.memory() != 0 && !(alg.callsMPI && s.NoMPI) && (alg.Enabled == nil || alg.Enabled(s))
}

// algorithms returns the algorithms of an operation, or nil if c is no collective.
func algorithms(c op.Code) []*Algorithm {
	if c <= 0 || int(c) >= len(registry) {
		return nil
	}
	return registry[c]
}

// Choose returns the forced algorithm if it can serve the call, else the first algorithm of the
// operation that can. A group of one rank is never forced.
func Choose(s *Sig) (*Algorithm, error) {
	if s.Forced != 0 && s.Size > 1 { // a group of one may have no communicator
		if alg := s.Forced.serving(s); alg != nil {
			return alg, nil
		}
	}
	for _, alg := range algorithms(s.Code) {
		if alg.serves(s) && (alg.wins == nil || s.NoMPI || alg.wins(s)) {
			return alg, nil
		}
	}
	if s.memory() == deviceMemory {
		return nil, status.New(status.Unsupported, "%s: a rank's PADDLEMPI_CUDA_PATHS leaves out \"staged\", and no other path serves this call: "+
			"ipc wants all ranks on one node and tensors in cudaMalloc'ed memory, each side one contiguous tensor; direct wants a CUDA-aware MPI and an operation that only moves data", s.Code)
	}
	return nil, status.New(status.Unsupported, "no algorithm for %s of %s %s", s.Code, s.DType, s.Reduce)
}

// polled tells whether the steps for a call have to be polled.
func (alg *Algorithm) polled(s *Sig) bool { return alg.polls != nil && alg.polls(s) }

// Form is how an algorithm carries out a call.
type Form int

// The forms.
const (
	InOneGo  Form = iota // the program may run with blocking calls (Program.Run)
	Polled               // the program has to be polled
	AtOnce               // without a wait (Algorithm.Compute)
	InChunks             // the ranks share out the work (Algorithm.Share)
	InRounds             // windows go through blocks (Algorithm.Begin)
)

// Form returns how a call on which all members have agreed is carried out.
func (alg *Algorithm) Form(s *Sig) Form {
	switch {
	case alg.atOnce != nil:
		return AtOnce
	case alg.shared != nil:
		return InChunks
	case alg.rounds != nil:
		return InRounds
	case alg.polled(s) || s.Agreed&arrive.Sync == 0:
		return Polled
	}
	return InOneGo
}

// Compute carries out a call at once. Scratch memory is from p.
func (alg *Algorithm) Compute(a *Args, p *Program) error { return alg.atOnce(a, p) }

// Share returns the work of a call that is done in chunks.
func (alg *Algorithm) Share(a *Args) (*shm.Op, error) { return alg.shared(a) }

// Begin begins the rounds of a call, which Args.Bounce carries out. Scratch memory is from p.
func (alg *Algorithm) Begin(a *Args, p *Program) error { return alg.rounds(a, p) }

// Build makes p the program of a call that is not done in chunks.
func (p *Program) Build(alg *Algorithm, a *Args) error {
	p.Reset(a.Lib)
	if alg.atOnce != nil {
		p.Do(func() error { return alg.atOnce(a, p) })
		return nil
	}
	return alg.build(a, p)
}

// hasAlgorithm tells whether an operation has an algorithm of that name.
func hasAlgorithm(name string, c op.Code) bool {
	for _, alg := range algorithms(c) {
		if alg.Name == name {
			return true
		}
	}
	return false
}

// Conditions under which algorithms are enabled.

func oneRank(s *Sig) bool    { return s.Size == 1 }
func evenShares(s *Sig) bool { return s.Agreed&Even != 0 }
func byMPI(s *Sig) bool      { return !reducedOutsideMPI(s) }
func always(*Sig) bool       { return true }

// NotAsAgreed is the error that the slot of a member does not hold what the member has announced.
type NotAsAgreed struct {
	Code   op.Code
	Member int
}

func (e *NotAsAgreed) Error() string {
	return fmt.Sprintf("%s: rank %d of the group has announced one thing and told another", e.Code, e.Member)
}

func (a *Args) notAsAgreed(member int) error { return &NotAsAgreed{a.Code, member} }

func (a *Args) elem() int64 { return int64(a.DType.Size()) }

// reducedOutsideMPI says that this package does the arithmetic of a reduction, and MPI only moves
// the data. Inside MPI 16-bit floats would be rounded at every hop, and sums of 8-bit and 16-bit
// integers saturate in the vector code of Open MPI, although they must wrap. AVG is made of such a
// sum.
func reducedOutsideMPI(s *Sig) bool {
	switch s.DType {
	case op.Float16, op.BFloat16:
		return true
	case op.Int8, op.UInt8, op.Int16, op.UInt16:
		return s.Reduce == op.Sum || s.Reduce == op.Avg
	}
	return false
}

// at returns the address of element i of the buffer p.
func (a *Args) at(p unsafe.Pointer, i int64) unsafe.Pointer {
	return unsafe.Add(p, i*a.elem())
}

// alloc takes scratch memory, of an element at least, that is freed when the program ends.
func (a *Args) alloc(p *Program, elements int64) (unsafe.Pointer, error) {
	return p.Alloc(max(1, elements) * a.elem())
}

// copyElements copies n elements unless source and destination are the same.
func (a *Args) copyElements(dst, src unsafe.Pointer, n int64) {
	if dst != src && n > 0 {
		mem.Copy(dst, src, n*a.elem())
	}
}

// Bytes returns how many bytes this rank puts into a collective, or gets from it if it puts none.
func Bytes(a *Args) int64 {
	if len(a.Send) > 0 {
		return totalCount(a.Send) * a.elem()
	}
	return totalCount(a.Recv) * a.elem()
}

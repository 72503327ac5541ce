// Package bounce carries out collectives whose tensors the other ranks of the node cannot map. They go, window by
// window, through blocks of memory that all these ranks map. The comment of rounds.h has the protocol, and why it is safe.
//
// Bytes moved, for a tensor of S bytes: a rank that gives it copies S into its slots, and a rank that gets it copies S out of
// them. A window stays in the processor's cache between the two. An all_reduce on n ranks copies 2(1-1/n)S on each rank,
// and reads 2S and writes 2S/n for the sums.
package bounce

/*
#cgo CFLAGS: -std=c11 -O3
#include "cma.h"
#cgo noescape pb_run
#cgo nocallback pb_run
*/
import "C"

import (
	"syscall"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/cma"
	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/reduce"
	"github.com/paddlempi/paddlempi/gocore/threads"
)

// State is the state of this rank's part in an operation.
type State int

const (
	Pending    State = C.PB_PENDING    // this rank waits for another one, and has done nothing
	Moving     State = C.PB_MOVING     // it has done something, and is not done
	Done       State = C.PB_DONE       // its part is done
	Damaged    State = C.PB_DAMAGED    // a block holds what no rank writes
	Unreadable State = C.PB_UNREADABLE // the memory of a rank cannot be read
)

// Kind is what a rank does with the windows of a round.
type Kind int32

const (
	Copy   Kind = C.PB_COPY   // it copies what each giver has for it
	Reduce Kind = C.PB_REDUCE // it reduces what the givers have for it
	Sliced Kind = C.PB_SLICED // it reduces its slice of what all have, and copies the slices of the others
)

const (
	// windowBytes is the length of a slot in a group of few ranks. Windows of 32 KiB have more rounds; of longer ones, what a rank
	// reads again is no more in the first cache of its core.
	windowBytes = 64 << 10
	// laneBytes and longestWindow are for larger groups, where a window has a lane for each rank.
	laneBytes     = 4 << 10
	longestWindow = 256 << 10
	// ringBytes is the length of the slots of all ranks together. A slot is used again when the caches of the cores that have read it
	// have lost it to others: to write to a line that another core still holds takes six times as long (measured).
	ringBytes = 4 << 20
	// aheadOf is how many windows a rank of one thread publishes before it reduces those of the others. It is few, because it reads its own tensor
	// again then. Where nothing is reduced, or ranks share cores, a rank goes ahead as far as its slots let it.
	aheadOf = 2
	// cachedResult is the length of a result from which on it is copied past the caches.
	cachedResult = 8 << 20
	// cachedLent is the same where nothing goes through slots: this rank's own part is copied so.
	cachedLent = 2 << 20
	// line is what lanes and slices are multiples of.
	line = 64
)

// window returns the length of a slot in a group of n ranks. There is a line for each rank.
func window(n int) int64 {
	return max(windowBytes, min(int64(n)*laneBytes, longestWindow), int64(n)*line)
}

// Slots returns how many slots a block has in a group of n ranks. If these are more than their cores, a rank does as much as it can in its
// time: it has more slots.
func Slots(n int, crowded bool) int {
	ring := int64(ringBytes)
	if crowded {
		ring *= 4
	}
	return int(max(LeastSlots, ring/(int64(n)*window(n))))
}

// LeastSlots is the least number of slots.
const LeastSlots = 2 * aheadOf

// BlockBytes returns the length of the block of a rank that has so many slots, in a group of n ranks.
func BlockBytes(n, slots int) int64 {
	return int64(C.pb_block_bytes(C.int(n), C.int(slots), C.int64_t(window(n))))
}

// Clear makes a block ready for use, before another rank maps it.
func Clear(block unsafe.Pointer) {
	*(*C.pb_head)(block) = C.pb_head{}
	*ownerIn(block) = cma.Show()
}

// ownerIn returns what the owner of a block shows, so that others read its memory.
func ownerIn(block unsafe.Pointer) *cma.Proof {
	return (*cma.Proof)(unsafe.Pointer(&(*C.pb_head)(block).owner))
}

// folder is the C function that does the arithmetic.
var folder = C.pmpi_folder(reduce.Folder())

// spreader is the C function by which other threads of this rank help.
var spreader = C.pt_spreader(threads.Spreader())

// Team is the blocks of a group as one rank sees them, and the operation that is under way there. One goroutine at a time
// calls its methods.
type Team struct {
	c         *C.pb_op
	n         int
	crowded   bool
	reads     bool
	yield     C.int
	rounds    uint64 // of the operations that were begun
	give, get []C.pb_row
}

// Call says what an operation is. All ranks have the same, but for Gives and Gets.
type Call struct {
	Kind        Kind
	Apart       bool  // what a rank gives has a row for each rank; else there is one row, of which all get everything
	First, Last int   // the ranks from First on, before Last, give something
	Gives       bool  // this rank gives something to others
	Gets        bool  // this rank has a result
	Longest     int64 // bytes of the longest row that any rank gives
	Result      int64 // bytes of this rank's result
	Elem        int64 // bytes of an element
	Lends       bool  // Kind is Copy, all ranks read the rows in the memory of others (Reads), and Longest is not 0
	Fold        reduce.Fold
}

// NewTeam makes the team of rank me. blocks has where the block of each rank is in this process; all have that many slots, or more.
// crowded says that the node has more ranks than cores. yieldEvery is after how many pauses a wait yields the core; 0: never.
func NewTeam(blocks []unsafe.Pointer, me, slots int, crowded bool, yieldEvery int) (*Team, error) {
	n := len(blocks)
	size := int64(unsafe.Sizeof(C.pb_op{})) + int64(n)*(2*int64(unsafe.Sizeof(C.pb_row{}))+int64(unsafe.Sizeof(cma.Proof{}))+(1+threads.Most)*int64(unsafe.Sizeof(unsafe.Pointer(nil)))) +
		threads.Most*int64(unsafe.Sizeof(C.pmpi_far{}))
	room, err := mem.Alloc(size)
	if err != nil {
		return nil, err
	}
	t := &Team{n: n, crowded: crowded, yield: C.int(yieldEvery)}
	t.c = carve[C.pb_op](&room, 1)
	t.give, t.get = unsafe.Slice(carve[C.pb_row](&room, n), n), unsafe.Slice(carve[C.pb_row](&room, n), n)
	list, src := carve[unsafe.Pointer](&room, n), carve[unsafe.Pointer](&room, n*threads.Most)
	far := carve[C.pmpi_far](&room, threads.Most)
	clear(unsafe.Slice(far, threads.Most))
	copy(unsafe.Slice(list, n), blocks)
	owner := carve[cma.Proof](&room, n)
	t.reads = true
	for i, block := range blocks {
		p := *ownerIn(block) // of which nobody changes this copy
		unsafe.Slice(owner, n)[i] = p
		t.reads = t.reads && (i == me || p.Holds())
	}
	*t.c = C.pb_op{n: C.int32_t(n), me: C.int32_t(me), window: C.int64_t(window(n)), slots: C.int32_t(slots), give: &t.give[0], get: &t.get[0],
		block: (**C.pb_head)(unsafe.Pointer(list)), src: src, far: far, run: folder, spread: spreader, owner: (*C.pb_owner)(unsafe.Pointer(owner))}
	return t, nil
}

// carve takes room for n values of T out of a block.
func carve[T any](room *unsafe.Pointer, n int) *T {
	p := (*T)(*room)
	*room = unsafe.Add(*room, n*int(unsafe.Sizeof(*p)))
	return p
}

// Free frees the team. No operation is under way, or its rank takes no part in it any more.
func (t *Team) Free() { mem.Free(unsafe.Pointer(t.c)) }

// Reads tells whether this rank can read the memory of all others.
func (t *Team) Reads() bool { return t.reads }

// Lends tells whether the operation that was begun last is one in which ranks read in the memory of others.
func (t *Team) Lends() bool { return t.c.lends != 0 }

// Give says where this rank's row for rank i is, and Get where what rank i gives goes. They are called before Begin. Where
// there is one row, or one result, i is 0.
func (t *Team) Give(i int, data unsafe.Pointer, bytes int64) { t.give[i] = row(data, bytes) }

// Get is described at Give.
func (t *Team) Get(i int, data unsafe.Pointer, bytes int64) { t.get[i] = row(data, bytes) }

func row(data unsafe.Pointer, bytes int64) C.pb_row {
	return C.pb_row{at: (*C.char)(data), bytes: C.int64_t(bytes)}
}

// Begin begins an operation, when the one before is over.
func (t *Team) Begin(c *Call) {
	lanes := 1
	if c.Apart {
		lanes = t.n
	}
	o := t.c
	step, rounds := cut(c.Longest, int64(o.window)/int64(lanes))
	if c.Lends {
		step, rounds = c.Longest, 1
	}
	o.before, o.rounds = C.uint64_t(t.rounds), C.uint64_t(rounds)
	o.kind, o.lanes, o.step = C.int32_t(c.Kind), C.int32_t(lanes), C.int64_t(step)
	o.first, o.last, o.gives, o.gets = C.int32_t(c.First), C.int32_t(c.Last), number(c.Gives), number(c.Gets)
	o.threads = C.int32_t(threads.For(max(c.Longest*int64(lanes), c.Result)))
	o.ahead, o.lends = aheadOf, number(c.Lends)
	if o.threads > 1 {
		o.ahead = min(2*aheadOf*o.threads, o.slots) // two batches of rounds.c
	}
	if c.Kind == Copy || t.crowded {
		o.ahead = o.slots
	}
	o.past = number(c.Result >= cachedResult || c.Lends && c.Result >= cachedLent)
	o.elem, o.fold = C.int64_t(c.Elem), *(*C.pmpi_fold)(unsafe.Pointer(&c.Fold))
	t.rounds += uint64(rounds)
	C.pb_begin(o)
}

// cut returns how long the lanes of a round are, and how many rounds there are.
func cut(longest, lane int64) (step, rounds int64) {
	if longest == 0 {
		return 0, 0
	}
	lane &^= line - 1
	rounds = (longest + lane - 1) / lane
	step = ((longest+rounds-1)/rounds + line - 1) &^ (line - 1)
	return step, (longest + step - 1) / step
}

func number(b bool) C.int32_t {
	if b {
		return 1
	}
	return 0
}

// Run takes the operation further by up to most steps, each a window or less. It pauses spin times in a row at most until it
// can do one.
func (t *Team) Run(most, spin int) State {
	return State(C.pb_run(t.c, C.int(most), C.int(spin), t.yield))
}

// Awaited returns the rank for which this one waits, -1 if there is none.
func (t *Team) Awaited() int { return int(C.pb_awaited(t.c)) }

// Awaits tells whether this rank waits for rank i, perhaps among others.
func (t *Team) Awaits(i int) bool { return C.pb_awaits(t.c, C.int(i)) != 0 }

// HasEnded tells whether rank i has ended its part in every operation that this one has begun.
func (t *Team) HasEnded(i int) bool {
	return C.pb_has_ended(unsafe.Slice(t.c.block, t.n)[i], C.uint64_t(t.rounds)) != 0
}

// DamagedBy returns the rank whose block holds what no rank writes there, after Run has returned Damaged.
func (t *Team) DamagedBy() int { return int(t.c.damaged) - 1 }

// UnreadableOf returns the rank whose memory cannot be read, and why, after Run has returned Unreadable.
func (t *Team) UnreadableOf() (int, syscall.Errno) {
	return int(t.c.unreadable) - 1, syscall.Errno(t.c.cause)
}

// Idle tells whether all other ranks have ended their part in every operation that this one has begun, or are gone: these read
// nothing any more. The block of a rank may be used for something else once it is gone, not before.
func (t *Team) Idle(gone func(rank int) bool) bool {
	for i := range t.n {
		if i != int(t.c.me) && !t.HasEnded(i) && !gone(i) {
			return false
		}
	}
	return true
}

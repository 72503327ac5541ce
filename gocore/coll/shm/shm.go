// Package shm carries out collectives in tensors that all ranks of a node map. The work is cut into
// chunks, which the ranks claim one by one. The comment of chunks.h has the protocol, and why it is
// safe.
//
// Bytes moved: an all_reduce of S bytes on n ranks reads nS and writes nS in all, which are 2S for
// each rank and the least possible. An operation that only moves data reads and writes every byte
// once.
package shm

/*
#cgo CFLAGS: -std=c11 -O3
#include "chunks.h"
#cgo nocallback sm_work
#cgo nocallback sm_state
*/
import "C"

import (
	"slices"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/reduce"
	"github.com/paddlempi/paddlempi/gocore/threads"
)

// MaxRanks is the most members of a group whose chunks can be claimed.
const MaxRanks = 1 << 16

// State is the state of an operation.
type State int

const (
	Pending State = C.SM_PENDING // some chunk is not over
	Done    State = C.SM_DONE    // all chunks are done
	Closed  State = C.SM_CLOSED  // the operation was given up, and no rank works on it any more
	Closing State = C.SM_CLOSING // the operation was given up, but a rank still works on a chunk
	Blind   State = C.SM_BLIND   // no rank could map all tensors: nothing was done
)

// kinds has 1 more than the layout of each operation; 0 if it has none.
var kinds = [...]C.int32_t{
	op.AllReduce: 1 + C.SM_ALL_REDUCE, op.AllReduceCoalesced: 1 + C.SM_ALL_REDUCE, op.Reduce: 1 + C.SM_REDUCE,
	op.ReduceScatter: 1 + C.SM_REDUCE_SCATTER, op.Broadcast: 1 + C.SM_BROADCAST, op.AllGather: 1 + C.SM_ALL_GATHER,
	op.Gather: 1 + C.SM_GATHER, op.Scatter: 1 + C.SM_SCATTER, op.AllToAll: 1 + C.SM_ALL_TO_ALL,
}

// Serves tells whether an operation can be carried out here.
func Serves(c op.Code) bool { return c > 0 && int(c) < len(kinds) && kinds[c] > 0 }

// folder is the C function that does the arithmetic.
var folder = C.pmpi_folder(reduce.Folder())

// spreader is the C function by which other threads of this rank help.
var spreader = C.pt_spreader(threads.Spreader())

// Op is an operation as this process sees it. One goroutine at a time calls its methods.
type Op struct {
	c     *C.sm_op
	next  *C.sm_part // room for the parts that Add will add, in C memory
	left  int        // parts for which there is room
	scale int64      // elements of the C code in one of the caller's
	yield C.int
}

// Collective says what an operation is. All ranks have the same, but for Rank and Parts.
type Collective struct {
	Seq        uint64
	Code       op.Code
	DType      op.DType
	Out        op.DType // of the results, if it is not DType: see reduce.Fold.To
	Reduce     op.ReduceOp
	Scale      float64
	Count      int64   // elements of one rank's tensors, or of every share if all shares have one length
	Shares     []int64 // elements of the shares if they differ, else nil; see ShareOf
	Rank, Size int
	Root       int
	Parts      int            // how many parts Add will add, or more
	Words      unsafe.Pointer // words in shared memory, for this operation alone
	Chunks     int            // how many words there are; more than Size
	YieldEvery int            // yield the core after that many pauses; 0 for never
}

// ShareOf is the place in Collective.Shares of what rank from gives rank to, in an all_to_all. In every other
// operation Shares has one number for each rank.
func (c *Collective) ShareOf(from, to int) int { return from*c.Size + to }

// bytes returns how many bytes a rank gives or gets.
func (c *Collective) bytes() int64 {
	elements := c.Count
	if c.Shares != nil {
		elements = 0
		for _, share := range c.Shares {
			elements += share
		}
		if c.Code.Trait().Shares == op.Pairwise {
			elements /= int64(c.Size)
		}
	} else if c.Code.Trait().Shares != op.NoShares {
		elements *= int64(c.Size)
	}
	return elements * int64(c.DType.Size())
}

// chunkBytes is how long a chunk is at least. A claim costs some 50 ns, and an uncontended chunk of
// this length some microseconds.
const chunkBytes = 32 << 10

// New prepares an operation. Add then says where the tensors are. Free frees the operation.
func New(c *Collective) (*Op, error) {
	n, pieces, shares := c.Size, 1, c.Code.Trait().Shares
	if shares != op.NoShares {
		pieces = n
	}
	rows, stride := 0, 0 // of an all_to_all: how many rows of n + 1 numbers
	if shares == op.Pairwise {
		if rows = 1; c.Shares != nil {
			rows, stride = 2*n, n+1
		}
	}
	var header C.sm_op
	crew := threads.For(c.bytes())
	size := int64(unsafe.Sizeof(header)) + 2*int64(n)*int64(unsafe.Sizeof(C.sm_side{})) + int64(c.Parts)*int64(unsafe.Sizeof(C.sm_part{})) +
		8*int64(2*n*crew+pieces+1+rows*(n+1))
	block, err := mem.Alloc(size)
	if err != nil {
		return nil, err
	}
	room := block
	o := &Op{c: carve[C.sm_op](&room, 1), yield: C.int(c.YieldEvery), scale: 1}
	sides := unsafe.Slice(carve[C.sm_side](&room, 2*n), 2*n)
	clear(sides)
	o.next, o.left = carve[C.sm_part](&room, c.Parts), c.Parts
	work := carve[unsafe.Pointer](&room, 2*n*crew)
	begin := unsafe.Slice(carve[C.int64_t](&room, pieces+1), pieces+1)
	table := unsafe.Slice(carve[C.int64_t](&room, rows*(n+1)), rows*(n+1))
	elem := int64(c.DType.Size())
	out := elem
	fold := reduce.CopyBytes()
	if c.Code.Trait().Reduces {
		fold = reduce.NewFold(c.DType, c.Reduce, n, c.Scale)
		if c.Out != 0 {
			fold, out = fold.To(c.Out), int64(c.Out.Size())
		}
	} else {
		o.scale, elem, out = elem, 1, 1
	}
	o.lay(c, begin, table)
	total := int64(begin[pieces])
	*o.c = C.sm_op{
		seq: C.uint64_t(c.Seq), words: (*C.uint64_t)(unsafe.Add(c.Words, 8)), blind_ranks: (*C.uint64_t)(c.Words), n: C.int32_t(n), me: C.int32_t(c.Rank), root: C.int32_t(c.Root),
		kind: kinds[c.Code] - 1, chunks: C.int32_t(cuts(total*elem, n, c.Chunks-1)),
		pieces: C.int32_t(pieces), begin: &begin[0], stride: C.int64_t(stride), elem: C.int64_t(elem), out_elem: C.int64_t(out),
		fold: *(*C.pmpi_fold)(unsafe.Pointer(&fold)), run: folder,
		in: &sides[0], out: &sides[n], threads: C.int32_t(crew), spread: spreader,
		src: work, dst: (*unsafe.Pointer)(unsafe.Add(unsafe.Pointer(work), 8*n*crew)),
	}
	if rows > 0 {
		o.c.sends, o.c.receives = &table[0], &table[rows/2*(n+1)]
	}
	return o, nil
}

// NewBystander prepares the operation of a rank that cannot take part in it, so that it can Leave. Only
// Seq, Rank, Size, Words, Chunks and YieldEvery of c count.
func NewBystander(c *Collective) (*Op, error) {
	block, err := mem.Alloc(int64(unsafe.Sizeof(C.sm_op{})))
	if err != nil {
		return nil, err
	}
	o := &Op{c: (*C.sm_op)(block), yield: C.int(c.YieldEvery), scale: 1}
	*o.c = C.sm_op{seq: C.uint64_t(c.Seq), words: (*C.uint64_t)(unsafe.Add(c.Words, 8)), blind_ranks: (*C.uint64_t)(c.Words),
		n: C.int32_t(c.Size), me: C.int32_t(c.Rank), chunks: C.int32_t(c.Chunks - 1), blind: 1}
	return o, nil
}

// carve takes room for n values of T out of a block.
func carve[T any](room *unsafe.Pointer, n int) *T {
	p := (*T)(*room)
	*room = unsafe.Add(*room, n*int(unsafe.Sizeof(*p)))
	return p
}

// lay computes where pieces begin, and in an all_to_all where shares begin on both sides: one row if
// all shares have one length, else a row for what each rank gives, and then one for what each gets.
func (o *Op) lay(c *Collective, begin, table []C.int64_t) {
	n := c.Size
	length := func(i int) C.int64_t { return C.int64_t(c.Count * o.scale) }
	if c.Shares != nil {
		length = func(i int) C.int64_t { return C.int64_t(c.Shares[i] * o.scale) }
	}
	sum := func(out []C.int64_t, length func(i int) C.int64_t) {
		out[0] = 0
		for i := range len(out) - 1 {
			out[i+1] = out[i] + length(i)
		}
	}
	switch {
	case len(begin) == 2 && len(table) == 0: // the usual case
		begin[0], begin[1] = 0, length(0)
	case len(table) == 0:
		sum(begin, length)
	case c.Shares == nil:
		sum(table, length)
		sum(begin, func(int) C.int64_t { return table[n] })
	default:
		row := func(i int) []C.int64_t { return table[i*(n+1) : (i+1)*(n+1)] }
		for r := range n {
			sum(row(r), func(p int) C.int64_t { return length(c.ShareOf(r, p)) })
			sum(row(n+r), func(from int) C.int64_t { return length(c.ShareOf(from, r)) })
		}
		sum(begin, func(p int) C.int64_t { return row(n + p)[n] })
	}
}

// cuts returns into how many chunks an operation is cut: so many that every rank has work, and that a
// rank which comes late finds some of its share done.
func cuts(bytes int64, ranks, most int) int {
	n := int(min(bytes/chunkBytes, int64(most)))
	if bytes >= int64(ranks)*512 {
		n = max(n, ranks)
		n -= n % ranks // so that a rank's share is a number of whole chunks
	}
	return max(1, n)
}

// Side is what a rank gives, or what it gets.
type Side int

// The sides of an operation.
const (
	In Side = iota
	Out
)

// Add says that a side of a rank goes on with count elements at data in this process. The parts of a
// side are added in their order, before those of another side.
func (o *Op) Add(s Side, rank int, data unsafe.Pointer, count int64) {
	if count == 0 {
		return
	}
	if o.left--; o.left < 0 {
		panic("shm: more parts than the call has")
	}
	first := o.c.in
	if s == Out {
		first = o.c.out
	}
	side, end := &unsafe.Slice(first, o.c.n)[rank], C.int64_t(count*o.scale)
	if side.parts == 0 {
		side.part = o.next
	} else {
		end += unsafe.Slice(side.part, side.parts)[side.parts-1].end
	}
	*o.next = C.sm_part{at: (*C.char)(data), end: end}
	o.next = (*C.sm_part)(unsafe.Add(unsafe.Pointer(o.next), unsafe.Sizeof(*o.next)))
	side.parts++
}

// CannotMap says that this process cannot map some tensor. It claims no chunks and leaves them to
// the other ranks. If no rank can, the state becomes Blind. Call it once.
func (o *Op) CannotMap() { C.sm_blind(o.c) }

// IsBlind tells whether CannotMap was called.
func (o *Op) IsBlind() bool { return o.c.blind != 0 }

// Work claims and does at most that many chunks, and returns how many it did.
func (o *Op) Work(most int) int { return int(C.sm_work(o.c, C.int(most))) }

// All is a number of chunks that is never reached.
const All = 1 << 30

// State looks whether the operation is over. It pauses spin times at most.
func (o *Op) State(spin int) State { return State(C.sm_state(o.c, C.int(spin), o.yield)) }

// Close gives the operation up: it closes the chunks that no rank has claimed. If there are none,
// the operation goes on: the state is Done or Pending.
func (o *Op) Close() State { return State(C.sm_close(o.c)) }

// Leave is Close for a rank whose call ends now. The chunks that others work on fail with it, because
// this rank's tensors may change from now on.
func (o *Op) Leave() State { return State(C.sm_leave(o.c)) }

// Worker returns a rank that works on a chunk; -1 if there is none.
func (o *Op) Worker() int { return int(C.sm_worker(o.c)) }

// Closers returns the ranks that have closed chunks.
func (o *Op) Closers() []int {
	var who []int
	for from := C.int(-1); ; {
		rank := int(C.sm_closer(o.c, &from))
		if rank < 0 {
			return who
		}
		if !slices.Contains(who, rank) {
			who = append(who, rank)
		}
	}
}

// FailPeer closes the chunks that a dead rank had claimed, and returns how many.
func (o *Op) FailPeer(rank int) int { return int(C.sm_fail_peer(o.c, C.int(rank))) }

// Damaged tells whether a word of some chunk held what no rank writes there. The operation is closed then.
func (o *Op) Damaged() bool { return o.c.damaged != 0 }

// Free frees the operation. It must be over.
func (o *Op) Free() {
	if o.c != nil {
		mem.Free(unsafe.Pointer(o.c))
		o.c = nil
	}
}

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

// kinds has the layout of each operation.
var kinds = map[op.Code]C.int32_t{
	op.AllReduce: C.SM_ALL_REDUCE, op.Reduce: C.SM_REDUCE, op.ReduceScatter: C.SM_REDUCE_SCATTER,
	op.Broadcast: C.SM_BROADCAST, op.AllGather: C.SM_ALL_GATHER, op.Gather: C.SM_GATHER,
	op.Scatter: C.SM_SCATTER, op.AllToAll: C.SM_ALL_TO_ALL,
}

// Serves tells whether an operation can be carried out here.
func Serves(c op.Code) bool {
	_, ok := kinds[c]
	return ok
}

// Op is an operation as this process sees it. One goroutine at a time calls its methods.
type Op struct {
	c       *C.sm_op
	in, out []unsafe.Pointer // by rank, in C memory
	yield   C.int
}

// Call says what an operation is. All ranks have the same, but for Rank.
type Call struct {
	Seq        uint64
	Code       op.Code
	DType      op.DType
	Reduce     op.ReduceOp
	Scale      float64
	Count      int64 // elements of one rank's tensor, or of one rank's share
	Rank, Size int
	Root       int
	Words      unsafe.Pointer // words in shared memory, for this operation alone
	Chunks     int            // how many words there are; more than Size
	YieldEvery int            // yield the core after that many pauses; 0 for never
}

// chunkBytes is how long a chunk is at least. A claim costs some 50 ns, and an uncontended chunk of
// this length some microseconds.
const chunkBytes = 32 << 10

// New prepares an operation. Free frees it.
func New(c *Call) (*Op, error) {
	n := c.Size
	size := int64(unsafe.Sizeof(C.sm_op{})) + 4*int64(n)*8
	block, err := mem.Alloc(size)
	if err != nil {
		return nil, err
	}
	o := &Op{c: (*C.sm_op)(block), yield: C.int(c.YieldEvery)}
	arrays := unsafe.Slice((*unsafe.Pointer)(unsafe.Add(block, unsafe.Sizeof(C.sm_op{}))), 4*n)
	clear(arrays)
	o.in, o.out = arrays[:n], arrays[n:2*n]
	elem := int64(c.DType.Size())
	pieces := 1
	if c.Code.Trait().Shares != op.NoShares {
		pieces = n
	}
	fold := reduce.CopyBytes()
	count := c.Count
	if c.Code.Trait().Reduces {
		fold = reduce.NewFold(c.DType, c.Reduce, n, c.Scale)
	} else {
		count, elem = count*elem, 1
	}
	*o.c = C.sm_op{
		seq: C.uint64_t(c.Seq), words: (*C.uint64_t)(unsafe.Add(c.Words, 8)), blind_ranks: (*C.uint64_t)(c.Words), n: C.int32_t(n), me: C.int32_t(c.Rank), root: C.int32_t(c.Root),
		kind: kinds[c.Code], pieces: C.int32_t(pieces), cuts: C.int32_t(cuts(count*elem, pieces, n, c.Chunks-1)),
		count: C.int64_t(count), elem: C.int64_t(elem),
		fold: *(*C.pmpi_fold)(unsafe.Pointer(&fold)), run: C.pmpi_folder(reduce.Folder()),
		in: (*unsafe.Pointer)(unsafe.Pointer(&o.in[0])), out: (*unsafe.Pointer)(unsafe.Pointer(&o.out[0])),
		src: (*unsafe.Pointer)(unsafe.Pointer(&arrays[2*n])), dst: (*unsafe.Pointer)(unsafe.Pointer(&arrays[3*n])),
	}
	return o, nil
}

// cuts returns into how many chunks a piece is cut: so many that every rank has work, and that a
// rank which comes late finds some of its share done.
func cuts(bytes int64, pieces, ranks, most int) int {
	n := int(min(bytes/chunkBytes, int64(most)))
	if pieces == 1 && bytes >= int64(ranks)*512 {
		n = max(n, ranks)
		n -= n % ranks // so that a rank's share is a number of whole chunks
	}
	return max(1, min(n, most/pieces))
}

// Set says where the tensors of a rank are in this process.
func (o *Op) Set(rank int, in, out unsafe.Pointer) { o.in[rank], o.out[rank] = in, out }

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

// Bury closes the chunks that a dead rank had claimed, and returns how many.
func (o *Op) Bury(rank int) int { return int(C.sm_bury(o.c, C.int(rank))) }

// Free frees the operation. It must be over.
func (o *Op) Free() {
	if o.c != nil {
		mem.Free(unsafe.Pointer(o.c))
		o.c = nil
	}
}

package window

import (
	"encoding/binary"

	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// A message of windows is a head, the target's box, and elements. Its reader checks every number.

const (
	headBytes = 64
	dimBytes  = 16
	// pieceBytes is the most bytes of elements in a message. Larger accesses are several messages. Every MPI sends so many
	// at once, without a word from the receiver, which may compute: Open MPI by TCP up to 64 KiB with its own header.
	pieceBytes  = 60 << 10
	mostMessage = headBytes + mostDims*dimBytes + pieceBytes
)

// kind says what a message is.
type kind uint32

const (
	kindCall   kind = 0x70776d01 + iota // an access, a signal, a lock
	kindAnswer                          // of a call that returns something; elements follow
	kindFailed                          // of a call that failed; an error follows (status.Pack)
	kindDone                            // says only how far the sender has come
)

// head is the beginning of a message.
type head struct {
	kind   kind
	code   Code
	seq    uint64 // of a call: its number among the sender's calls; of an answer that of the call
	done   uint64 // the sender has carried out the receiver's calls up to this one
	window uint64
	offset int64
	count  int64 // elements of the target
	reduce op.ReduceOp
	dtype  op.DType
	dims   int32
	more   bool // the sender's next call follows at once
}

// put writes the head and the box to b, and returns what follows.
func (h *head) put(b []byte, at *box) []byte {
	binary.LittleEndian.PutUint32(b, uint32(h.kind))
	binary.LittleEndian.PutUint32(b[4:], uint32(h.code))
	binary.LittleEndian.PutUint64(b[8:], h.seq)
	binary.LittleEndian.PutUint64(b[16:], h.done)
	binary.LittleEndian.PutUint64(b[24:], h.window)
	binary.LittleEndian.PutUint64(b[32:], uint64(h.offset))
	binary.LittleEndian.PutUint64(b[40:], uint64(h.count))
	binary.LittleEndian.PutUint32(b[48:], uint32(h.reduce))
	binary.LittleEndian.PutUint32(b[52:], uint32(h.dtype))
	binary.LittleEndian.PutUint32(b[56:], uint32(h.dims))
	binary.LittleEndian.PutUint32(b[60:], flag(h.more))
	b = b[headBytes:]
	for i := range h.dims {
		binary.LittleEndian.PutUint64(b, uint64(at.shape[i]))
		binary.LittleEndian.PutUint64(b[8:], uint64(at.steps[i]))
		b = b[dimBytes:]
	}
	return b
}

func flag(set bool) uint32 {
	if set {
		return 1
	}
	return 0
}

// read reads a message: its head, its box, and what follows.
func read(b []byte) (h head, at box, rest []byte, err error) {
	if len(b) < headBytes {
		return h, at, nil, rubbish("a message of %d bytes", len(b))
	}
	h = head{kind: kind(binary.LittleEndian.Uint32(b)), code: Code(binary.LittleEndian.Uint32(b[4:])), seq: binary.LittleEndian.Uint64(b[8:]),
		done: binary.LittleEndian.Uint64(b[16:]), window: binary.LittleEndian.Uint64(b[24:]), offset: int64(binary.LittleEndian.Uint64(b[32:])),
		count: int64(binary.LittleEndian.Uint64(b[40:])), reduce: op.ReduceOp(binary.LittleEndian.Uint32(b[48:])), dtype: op.DType(binary.LittleEndian.Uint32(b[52:])),
		dims: int32(binary.LittleEndian.Uint32(b[56:])), more: binary.LittleEndian.Uint32(b[60:]) != 0}
	rest = b[headBytes:]
	switch {
	case h.kind < kindCall || h.kind > kindDone:
		return h, at, nil, rubbish("a message of kind %#x", uint32(h.kind))
	case h.dims < 0 || h.dims > mostDims || int(h.dims)*dimBytes > len(rest):
		return h, at, nil, rubbish("%d dimensions in a message of %d bytes", h.dims, len(b))
	}
	at.offset, at.count = h.offset, h.count
	if h.dims > 0 {
		at.shape, at.steps = make([]int64, h.dims), make([]int64, h.dims)
	}
	for i := range h.dims {
		at.shape[i], at.steps[i] = int64(binary.LittleEndian.Uint64(rest)), int64(binary.LittleEndian.Uint64(rest[8:]))
		rest = rest[dimBytes:]
	}
	if n, ok := product(at.shape); at.shape != nil && (!ok || n != h.count) {
		return h, at, nil, rubbish("%d elements of the shape %v", h.count, at.shape)
	}
	return h, at, rest, nil
}

func rubbish(format string, args ...any) *status.Error {
	return status.New(status.GroupBroken, "a message of a window cannot be: "+format, args...)
}

// given and taken return how many bytes of elements a call has, and how many its answer has.
func (h *head) given() int64 {
	switch h.code {
	case Put, Accumulate, GetAccumulate:
		if h.code != Put && h.reduce == NoOp {
			return 0
		}
		return h.count * int64(h.dtype.Size())
	case CompareAndSwap:
		return 2 * int64(h.dtype.Size())
	}
	return 0
}

func (h *head) taken() int64 {
	switch h.code {
	case Get, GetAccumulate, CompareAndSwap:
		return h.count * int64(h.dtype.Size())
	}
	return 0
}

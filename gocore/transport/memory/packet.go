package memory

// #include "rings.h"
import "C"

import "encoding/binary"

// What a packet is.
const (
	whole = C.PM_WHOLE + iota // a message, or its first piece
	more                      // the next piece of the message that was begun last
	ask                       // a long message: its receiver says go when it has room for it
	goOn                      // the answer of the receiver
	data                      // a piece of a long message
	took                      // the receiver has all of a long message
)

// packet is the head of what lies in a ring. Its payload follows, filled up to a multiple of align.
type packet struct {
	kind    uint32
	tag     int32
	context uint64 // of the Comm
	bytes   int64  // of the whole message; of more and data: of this piece; of goOn: how many the receiver wants
	number  uint64 // of the message, by its sender; of data: the claims that the piece is of (see stream.go)
	past    bool   // a payload in the bulk was written past the caches
	answer  uint64 // of ask: where the message is in its sender; of goOn: its claims; of data: the place of the piece
}

const (
	packetBytes = C.PM_HEAD
	pastBit     = 1 << 31   // of kind
	align       = C.PM_LINE // so that a head is on one cache line, and a message of a few numbers too
	// short is the most bytes of a message that is sent before anybody has asked for it.
	short = 64 << 10
	// piece is the most bytes of a packet: several fit into a ring, so that both sides copy at the same time.
	piece = 16 << 10
)

func (p *packet) put(b []byte) {
	_ = b[packetBytes-1]
	kind := p.kind
	if p.past {
		kind |= pastBit
	}
	binary.LittleEndian.PutUint32(b[0:], kind)
	binary.LittleEndian.PutUint32(b[4:], uint32(p.tag))
	binary.LittleEndian.PutUint64(b[8:], p.context)
	binary.LittleEndian.PutUint64(b[16:], uint64(p.bytes))
	binary.LittleEndian.PutUint64(b[24:], p.number)
	binary.LittleEndian.PutUint64(b[32:], p.answer)
}

// read reads a head. It returns false if no sender writes such a one.
func (p *packet) read(b []byte) bool {
	_ = b[packetBytes-1]
	kind := binary.LittleEndian.Uint32(b[0:])
	p.kind, p.past = kind&^pastBit, kind&pastBit != 0
	p.tag = int32(binary.LittleEndian.Uint32(b[4:]))
	p.context = binary.LittleEndian.Uint64(b[8:])
	p.bytes = int64(binary.LittleEndian.Uint64(b[16:]))
	p.number = binary.LittleEndian.Uint64(b[24:])
	p.answer = binary.LittleEndian.Uint64(b[32:])
	switch p.kind {
	case whole:
		return 0 <= p.bytes && p.bytes <= short
	case ask:
		return p.bytes > short
	case goOn:
		return p.bytes > 0
	case took:
		return p.bytes == 0
	case more, data:
		return 0 < p.bytes && p.bytes <= piece
	}
	return false
}

// payload returns how many bytes follow the head.
func (p *packet) payload() int {
	switch p.kind {
	case whole, more, data:
		return int(min(p.bytes, piece))
	}
	return 0
}

// before returns how many bytes are in the ring before a payload of n bytes that lies there: a few numbers are on the cache line
// of the head, and longer payloads begin on a line of their own.
func before(n int) int {
	if n <= align-packetBytes {
		return packetBytes
	}
	return align
}

// inRing returns how many bytes a packet takes in a ring whose payload has n bytes.
func inRing(n int) int {
	if n >= bulkFrom {
		return align
	}
	return (before(n) + n + align - 1) &^ (align - 1)
}

// lines returns how many bytes the cache lines of a payload of n bytes have.
func lines(n int) uint64 { return uint64(n+align-1) &^ (align - 1) }

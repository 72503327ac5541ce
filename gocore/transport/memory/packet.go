package memory

// #include "rings.h"
import "C"

// What a packet is.
const (
	whole = C.PM_WHOLE // a message, or its first piece
	more  = C.PM_MORE  // the next piece of the message that was begun last
	ask   = C.PM_ASK   // a long message: its receiver says go when it has room for it
	goOn  = C.PM_GO_ON // the answer of the receiver
	data  = C.PM_DATA  // pieces of a long message
	took  = C.PM_TOOK  // the receiver has all of a long message, or wants no more of it
	lost  = C.PM_LOST  // the sender cannot read the rest of a long message
)

// packet is the head of what lies in a ring: pm_packet. Its payload follows, filled up to a multiple of align.
type packet struct {
	kind    uint32 // and how a payload in the bulk was written; see what
	tag     int32
	context uint64 // of the Comm; of goOn: where the fragment begins
	bytes   int64  // of the whole message; of more and data: of this piece; of goOn: of the fragment
	number  uint64 // of the message, by its sender; of data and lost: the claims of the fragment (see stream.go)
	// answer is of ask where the message is in its sender, 0 if it does not lie in one piece; of goOn the claims; of data the
	// place of the piece in its fragment.
	answer uint64
}

const (
	align = C.PM_LINE // so that a head is on one cache line, and a message of a few numbers too
	// short is the most bytes of a message that is sent before anybody has asked for it, and mostWhole of one whose receiver waits
	// for it at that moment.
	short     = C.PM_EAGER
	mostWhole = C.PM_MOST
	// piece is the most bytes of a packet: several fit into a ring, so that both sides copy at the same time.
	piece = C.PM_PIECE
	// mostOfLong is the most bytes of a packet of a long message: of a very long one a packet costs more than that one side
	// begins later.
	mostOfLong = C.PM_MOST_OF_LONG
)

// what returns what the packet is.
func (p *packet) what() uint32 { return p.kind & C.PM_KIND }

// possible tells whether some sender writes such a head.
func (p *packet) possible() bool {
	switch p.what() {
	case whole:
		return 0 <= p.bytes && p.bytes <= mostWhole
	case ask:
		return p.bytes > short
	case goOn:
		return p.bytes > 0
	case took, lost:
		return p.bytes == 0
	case more:
		return 0 < p.bytes && p.bytes <= piece
	case data:
		return 0 < p.bytes && p.bytes <= mostOfLong
	}
	return false
}

// payload returns how many bytes follow the head.
func (p *packet) payload() int {
	switch p.what() {
	case whole, more:
		return int(min(p.bytes, piece))
	case data:
		return int(p.bytes)
	}
	return 0
}

// inRing returns how many bytes a packet takes in a ring whose payload has n bytes.
func inRing(n int) int { return int(C.pm_takes(C.uint64_t(n))) }

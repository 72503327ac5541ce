package memory

import "encoding/binary"

// What a packet is.
const (
	whole = 1 + iota // a short message
	ask              // a long message: its receiver says go when it has room for it
	goOn             // the answer of a receiver that cannot read the sender's memory
	data             // a piece of a long message
	took             // the receiver has read all of a long message
)

// packet is the head of what lies in a ring. Its payload follows, filled up to a multiple of align.
type packet struct {
	kind    uint32
	tag     int32
	context uint64 // of the Comm
	bytes   int64  // of the whole message; of data: of this piece
	number  uint64 // of the message, by its sender; of data: by its receiver
	answer  uint64 // of ask: where the message is in its sender; of goOn: the number by which the receiver knows it
}

const (
	packetBytes = 40
	align       = 8
	// short is the most bytes of a message that is sent before anybody has asked for it.
	short = 8 << 10
	// piece is the most bytes of a packet of data: several fit into a ring, so that both sides
	// copy at the same time.
	piece = 16 << 10
)

func (p *packet) put(b *[packetBytes]byte) {
	binary.LittleEndian.PutUint32(b[0:], p.kind)
	binary.LittleEndian.PutUint32(b[4:], uint32(p.tag))
	binary.LittleEndian.PutUint64(b[8:], p.context)
	binary.LittleEndian.PutUint64(b[16:], uint64(p.bytes))
	binary.LittleEndian.PutUint64(b[24:], p.number)
	binary.LittleEndian.PutUint64(b[32:], p.answer)
}

// read reads a head. It returns false if no sender writes such a one.
func (p *packet) read(b *[packetBytes]byte) bool {
	p.kind = binary.LittleEndian.Uint32(b[0:])
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
	case goOn, took:
		return p.bytes == 0
	case data:
		return 0 < p.bytes && p.bytes <= piece
	}
	return false
}

// payload returns how many bytes follow the head.
func (p *packet) payload() int {
	if p.kind == whole || p.kind == data {
		return int(p.bytes)
	}
	return 0
}

func aligned(n int) int { return (n + align - 1) &^ (align - 1) }

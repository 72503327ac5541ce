package link

import (
	"encoding/binary"

	"github.com/paddlempi/paddlempi/gocore/status"
)

// The heads of messages as bytes. Whoever reads them checks every length and number.

// packed is an answer as it travels: its header, or an error as bytes.
func packed(header []byte, err error) (b []byte, failed bool) {
	if err == nil && len(header) > MaxHeader {
		err = status.New(status.Argument, "the server's answer has a header of %d bytes, and the most are %d", len(header), MaxHeader)
	}
	if err != nil {
		return status.Pack(err), true
	}
	return header, false
}

// headBytes is the length of the beginning of a message by MPI.
const headBytes = 64

// kind says what a message is.
type kind uint32

const (
	kindRequest kind = 0x70736c01 + iota
	kindGone         // of a trainer: it sends no more
	kindAnswer
	kindFailed // an answer whose header is an error
	kindBye    // of a server: it takes no more; the header is an error that says why
)

// head is the beginning of a message. Its ids, values and answer follow it if the message is small,
// and then its header.
type head struct {
	kind   kind
	credit uint32
	seq    uint64
	header int64          // bytes
	sizes  [regions]int64 // of an answer the last one only
}

func (h *head) put(b []byte) {
	clear(b[:headBytes])
	binary.LittleEndian.PutUint32(b, uint32(h.kind))
	binary.LittleEndian.PutUint32(b[4:], h.credit)
	binary.LittleEndian.PutUint64(b[8:], h.seq)
	binary.LittleEndian.PutUint64(b[16:], uint64(h.header))
	for i, n := range h.sizes {
		binary.LittleEndian.PutUint64(b[24+8*i:], uint64(n))
	}
}

// readHead reads the head of a message, and checks it alone and against the length of the message.
func readHead(b []byte) (h head, err error) {
	if len(b) < headBytes {
		return h, rubbish("a message of %d bytes", len(b))
	}
	h.kind, h.credit = kind(binary.LittleEndian.Uint32(b)), binary.LittleEndian.Uint32(b[4:])
	h.seq, h.header = binary.LittleEndian.Uint64(b[8:]), int64(binary.LittleEndian.Uint64(b[16:]))
	for i := range h.sizes {
		h.sizes[i] = int64(binary.LittleEndian.Uint64(b[24+8*i:]))
	}
	if h.kind < kindRequest || h.kind > kindBye {
		return h, rubbish("a message of kind %#x", uint32(h.kind))
	}
	if h.credit >= Credits {
		return h, rubbish("credit %d of %d", h.credit, Credits)
	}
	if h.header < 0 || h.header > MaxHeader {
		return h, rubbish("a header of %d bytes", h.header)
	}
	if err := checkSizes(h.sizes[regionIDs], h.sizes[regionValues], h.sizes[regionAnswer]); err != nil {
		return h, err
	}
	if want := headBytes + h.inline() + h.header; want != int64(len(b)) {
		return h, rubbish("a message of %d bytes, of which its head says %d", len(b), want)
	}
	return h, nil
}

// payload returns how many bytes of regions the message has, in it or after it.
func (h *head) payload() int64 {
	if h.kind == kindRequest {
		return h.sizes[regionIDs] + h.sizes[regionValues]
	}
	if h.kind == kindAnswer {
		return h.sizes[regionAnswer]
	}
	return 0
}

// inline returns how many bytes of regions lie in the message itself.
func (h *head) inline() int64 {
	if n := h.payload(); n <= mostInline {
		return n
	}
	return 0
}

// mostInline is the most bytes of regions that lie in the message itself. More go by themselves,
// straight from and into their regions.
const mostInline = 16 << 10

// mostMessage is the longest message with a head.
const mostMessage = headBytes + mostInline + MaxHeader

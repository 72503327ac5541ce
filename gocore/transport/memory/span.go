package memory

import (
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/transport"
)

// span is where a message lies: in one piece, or where a packer has it.
type span struct {
	data   []byte
	packer transport.Packer
	length int64
}

func spanOf(data unsafe.Pointer, bytes int64) span {
	return span{data: unsafe.Slice((*byte)(data), bytes), length: bytes}
}

// address returns where the message is, nil if it does not lie in one piece.
func (s *span) address() unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(s.data)) }

// takes returns how many bytes of a message of so many there is room for. A packer takes all of one, or none.
func (s *span) takes(bytes int64) int64 {
	if s.packer != nil && bytes != s.length {
		return 0
	}
	return min(bytes, s.length)
}

// open returns the memory of a fragment; nil: not yet.
func (s *span) open(from, n int64) ([]byte, error) {
	if s.packer == nil {
		return s.data[from : from+n], nil
	}
	block, err := s.packer.Open(from, n)
	if block == nil {
		return nil, err
	}
	return unsafe.Slice((*byte)(block), n), err
}

func (s *span) close(from, n int64) error {
	if s.packer == nil {
		return nil
	}
	return s.packer.Close(from, n)
}

// localMessage is a long message from this process to itself.
type localMessage struct {
	s     *sending
	r     *receiving
	moved int64
}

// moveLocal takes such a message further, and tells whether it is over.
func (o *endpoint) moveLocal(l *localMessage) bool {
	for s, r := l.s, l.r; l.moved < r.wanted; {
		n := r.wanted - l.moved
		if s.packer != nil || r.packer != nil {
			n = min(n, transport.FragmentBytes)
		}
		from, err := s.open(l.moved, n)
		if err != nil {
			o.endSend(s, codePacker)
			o.endReceive(r, codeLost)
			return true
		}
		to, err := r.open(l.moved, n)
		if err == nil && (from == nil || to == nil) {
			return false
		}
		if err == nil {
			copy(to, from)
			_ = s.close(l.moved, n) // it only reads
			err = r.close(l.moved, n)
		}
		if err != nil {
			o.endSend(s, 0)
			o.endReceive(r, codePacker)
			return true
		}
		l.moved += n
	}
	o.endSend(l.s, 0)
	o.received(l.r)
	return true
}

// leaveLocal ends a receive that was given up, if such a message is for it.
func (o *endpoint) leaveLocal(r *transport.Request) bool {
	for i, l := range o.local {
		if l.r.r == r {
			o.local = without(o.local, i)
			o.endSend(l.s, 0)
			o.cancelled(l.r)
			return true
		}
	}
	return false
}

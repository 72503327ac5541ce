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

package buffer

import (
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/op"
)

// Staging is contiguous memory in place of a tensor that is not contiguous.
type Staging struct {
	buf   op.Buf
	Block unsafe.Pointer
	In    bool // the tensor is packed into the block before the operation
	Out   bool // the block is unpacked into the tensor afterwards
}

// Stage makes a staging for b.
func Stage(b *op.Buf, in, out bool) (Staging, error) {
	block, err := mem.Alloc(max(1, b.Bytes()))
	return Staging{buf: *b, Block: block, In: in, Out: out}, err
}

// CopyLayout copies the shape and strides, which the caller keeps only during Submit.
func (s *Staging) CopyLayout() {
	if s.buf.NDim > 0 {
		s.buf = *Layout(&s.buf)
	}
}

// Pack copies the tensor into the block, if the operation reads it.
func (s *Staging) Pack() error {
	if s.In {
		return mem.Pack(s.Block, &s.buf)
	}
	return nil
}

// Unpack copies the block into the tensor, if the operation writes it.
func (s *Staging) Unpack() error {
	if s.Out {
		return mem.Unpack(&s.buf, s.Block)
	}
	return nil
}

// Free gives the block back.
func (s *Staging) Free() {
	if s.Block != nil {
		mem.Free(s.Block)
		s.Block = nil
	}
}

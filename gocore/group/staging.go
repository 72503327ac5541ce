package group

import (
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/op"
)

// staging is contiguous memory in place of a tensor that is not contiguous.
type staging struct {
	buf   op.Buf
	block unsafe.Pointer
	in    bool // the tensor is packed into the block before the operation
	out   bool // the block is unpacked into the tensor afterwards
}

// stageBuf makes a staging for b.
func stageBuf(b *op.Buf, in, out bool) (staging, error) {
	block, err := mem.Alloc(max(1, b.Bytes()))
	return staging{buf: *b, block: block, in: in, out: out}, err
}

// copyLayout copies the shape and strides, which the caller keeps only during Submit.
func (s *staging) copyLayout() {
	if s.buf.NDim > 0 {
		s.buf = *layout(&s.buf)
	}
}

func (s *staging) pack() error {
	if s.in {
		return mem.Pack(s.block, &s.buf)
	}
	return nil
}

func (s *staging) free() {
	if s.block != nil {
		mem.Free(s.block)
		s.block = nil
	}
}

// unstage writes results back, unless the operation failed, and frees the stagings.
func (c *call) unstage(err error) error {
	for i := range c.staged {
		s := &c.staged[i]
		if err == nil && s.out {
			err = mem.Unpack(&s.buf, s.block)
		}
		s.free()
	}
	c.staged = nil
	return err
}

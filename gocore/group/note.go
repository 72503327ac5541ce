package group

import (
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/arrive"
	"github.com/paddlempi/paddlempi/gocore/coll"
	"github.com/paddlempi/paddlempi/gocore/heap"
	"github.com/paddlempi/paddlempi/gocore/mem"
)

// payload is what a call of a group on one node tells in the note of its announcement: its input, if that is short,
// or where its tensors are in this rank's heap.
type payload struct {
	bytes  int64          // of the input, if it lies in the note
	block  unsafe.Pointer // where an input of several parts is put together; nil for one part
	places coll.Places
}

// fillNote finds out what the note can hold, and sets the flag for it. It allocates what note needs.
func (c *call) fillNote() (err error) {
	s := &c.payload
	parts, bytes, ok := coll.Payload(&c.args, c.flags)
	if ok {
		if len(parts) > 1 {
			if s.block, err = mem.Alloc(bytes); err != nil {
				return err
			}
		}
		s.bytes = bytes
		c.flags |= coll.Inline
		if bytes > 0 {
			return nil
		}
		// The members that give something decide which algorithm is taken. This one can be part of both.
	}
	own := heap.Existing()
	if own == nil || len(c.staged) > 0 {
		return nil
	}
	if s.places, ok = coll.Place(&c.args, own); ok {
		c.flags |= coll.Mapped
	}
	return nil
}

// note returns the note. It is called when the call is announced, because the payload
// is read then.
func (c *call) note() (arrive.Note, error) {
	s := &c.payload
	switch {
	case c.flags&coll.Mapped != 0:
		return s.places.Note(), nil
	case s.bytes == 0:
		return arrive.Note{}, nil
	}
	for i := range c.staged {
		if err := c.staged[i].Pack(); err != nil {
			return arrive.Note{}, err
		}
	}
	parts := coll.Input(&c.args)
	if s.block == nil {
		return arrive.Note{Data: parts[0].Data, Bytes: s.bytes}, nil
	}
	to := s.block
	for i := range parts {
		n := parts[i].Count * int64(c.args.DType.Size())
		mem.Copy(to, parts[i].Data, n)
		to = unsafe.Add(to, n)
	}
	return arrive.Note{Data: s.block, Bytes: s.bytes}, nil
}

func (c *call) freeNote() {
	if c.payload.block != nil {
		mem.Free(c.payload.block)
		c.payload.block = nil
	}
	c.payload.places.Free()
}

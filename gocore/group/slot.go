package group

import (
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/arrive"
	"github.com/paddlempi/paddlempi/gocore/coll"
	"github.com/paddlempi/paddlempi/gocore/heap"
	"github.com/paddlempi/paddlempi/gocore/mem"
)

// slot is what a call of a group on one node tells in its arrival slot: its input, if that is short,
// or where its tensors are in this rank's heap.
type slot struct {
	bytes  int64          // of the input, if it lies in the slot
	block  unsafe.Pointer // where an input of several parts is put together; nil for one part
	places coll.Places
}

// fillSlot finds out what the slot can hold, and sets the flag for it. It allocates what note needs.
func (c *call) fillSlot() (err error) {
	s := &c.slot
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

// note returns what lies in the slot. It is called when the call is announced, because the payload
// is read then.
func (c *call) note() (arrive.Note, error) {
	s := &c.slot
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

func (c *call) freeSlot() {
	if c.slot.block != nil {
		mem.Free(c.slot.block)
		c.slot.block = nil
	}
	c.slot.places.Free()
}

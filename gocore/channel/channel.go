// Package channel carries bytes between the cores of a job.
//
// A channel is a communicator on which no message of the application travels, and a tag in it. Each
// room that sends messages has a tag of its own, so that the messages of two rooms never meet.
package channel

import (
	"sync"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/mpi"
)

// Tag says whose messages they are.
type Tag int32

// The rooms that send messages.
const (
	Groups Tag = iota + 1 // package group: meetings, and who is where
)

// Channel sends and receives the messages of one room. Its methods are safe for concurrent use.
type Channel struct {
	lib   mpi.Library
	comm  mpi.Comm
	tag   Tag
	limit int

	mu    sync.Mutex
	under []sending // those under way
}

// sending is a message that MPI may still read.
type sending struct {
	slot  *mpi.Slot
	block unsafe.Pointer
}

// New makes the channel of a room. comm carries nothing of the application's. Messages have at most
// limit bytes: lengths come from outside.
func New(lib mpi.Library, comm mpi.Comm, tag Tag, limit int) *Channel {
	return &Channel{lib: lib, comm: comm, tag: tag, limit: limit}
}

// Send posts a message to a rank of the communicator, parts one after the other, and does not wait.
// What goes beyond the limit is cut off. An error is MPI's, or there is no memory.
func (c *Channel) Send(to int, parts ...[]byte) error {
	n := 0
	for _, part := range parts {
		n += len(part)
	}
	n = min(n, c.limit)
	block, err := mem.Alloc(int64(max(1, n)))
	if err != nil {
		return err
	}
	room := unsafe.Slice((*byte)(block), n)
	for _, part := range parts {
		room = room[copy(room, part):]
	}
	slot := c.lib.NewSlot()
	if err := c.lib.Start(&mpi.Call{Fn: mpi.FnSend, Peer: int32(to), Tag: int32(c.tag), Comm: c.comm,
		SendBuf: block, SendCount: int64(n), SendType: c.lib.Byte()}, slot); err != nil {
		c.lib.FreeSlot(slot)
		mem.Free(block)
		return err
	}
	c.mu.Lock()
	c.under = append(c.under, sending{slot, block})
	c.mu.Unlock()
	return nil
}

// Sent frees the messages that MPI has done with and tells whether these are all.
func (c *Channel) Sent() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	kept := c.under[:0]
	for _, s := range c.under {
		if s.slot.Done == 0 {
			c.lib.Poll([]uintptr{uintptr(unsafe.Pointer(s.slot))})
		}
		if s.slot.Done == 0 {
			kept = append(kept, s)
			continue
		}
		c.lib.FreeSlot(s.slot)
		mem.Free(s.block)
	}
	c.under = kept
	return len(kept) == 0
}

// Receive takes a message that has arrived, from any rank; ok is false where there is none. It does
// not wait. One that is longer than the limit is nobody's of this library: it stays with MPI.
func (c *Channel) Receive() (from int, message []byte, ok bool) {
	msg, st, found, err := c.lib.Improbe(c.comm, mpi.AnySource, int32(c.tag))
	if err != nil || !found || st.Bytes < 0 || st.Bytes > int64(c.limit) {
		return 0, nil, false
	}
	block, err := mem.Alloc(max(1, st.Bytes))
	if err != nil {
		return 0, nil, false
	}
	defer mem.Free(block)
	if err := c.lib.Run(&mpi.Call{Fn: mpi.FnMrecv, Comm: c.comm, Message: msg, Peer: st.Source, Tag: st.Tag,
		RecvBuf: block, RecvCount: st.Bytes, RecvType: c.lib.Byte()}, nil); err != nil {
		return 0, nil, false
	}
	return int(st.Source), append([]byte(nil), unsafe.Slice((*byte)(block), st.Bytes)...), true
}

// Package channel carries bytes between the cores of a job.
//
// A channel is a tag on an endpoint that carries no messages of the application. Each room of
// the core that sends messages has its own tag, so that it never receives messages of another room.
package channel

import (
	"sync"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/transport"
)

// Tag says to which room messages belong.
type Tag int32

// The rooms that send messages.
const (
	Groups Tag = iota + 1 // package mailbox: meetings and questions
	Joins                 // package gocore: what the ranks of a party tell each other while it is joined with another one
)

// Channel sends and receives the messages of one room. Its methods are safe for concurrent use.
type Channel struct {
	comm  transport.Endpoint
	tag   Tag
	limit int

	mu     sync.Mutex
	posted []outgoing // messages that the transport may still read
}

// outgoing is a message that was sent and may be under way.
type outgoing struct {
	*transport.Request
	block unsafe.Pointer
}

// New makes the channel of a room. comm must not carry messages of the application. Messages have
// limit bytes at most, because Receive allocates what their headers say.
func New(comm transport.Endpoint, tag Tag, limit int) *Channel {
	return &Channel{comm: comm, tag: tag, limit: limit}
}

// Send posts a message of all parts to a rank of the communicator, and does not wait. It cuts the
// message off at the limit. It returns an error of the transport, or that there is no memory.
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
	r, err := c.comm.Send(block, int64(n), int32(to), int32(c.tag))
	if err != nil {
		mem.Free(block)
		return err
	}
	c.mu.Lock()
	c.posted = append(c.posted, outgoing{r, block})
	c.mu.Unlock()
	return nil
}

// Sent frees the messages that the transport has finished with, and tells whether all are.
func (c *Channel) Sent() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	kept := c.posted[:0]
	for _, s := range c.posted {
		if !transport.Over(c.comm, s.Request) {
			kept = append(kept, s)
			continue
		}
		c.comm.Release(s.Request)
		mem.Free(s.block)
	}
	c.posted = kept
	return len(kept) == 0
}

// Receive takes a message that has arrived from any rank. ok is false if there is none. Receive
// does not wait. A message that is longer than the limit does not come from this library; Receive
// drops it.
func (c *Channel) Receive() (from int, message []byte, ok bool) {
	msg, found, err := c.comm.Match(transport.AnySource, int32(c.tag))
	if err != nil || !found {
		return 0, nil, false
	}
	n := min(max(0, msg.Bytes), int64(c.limit))
	block, err := mem.Alloc(max(1, n))
	if err != nil {
		return 0, nil, false
	}
	defer mem.Free(block)
	if err := transport.TakeNow(c.comm, msg, block, n); err != nil {
		return 0, nil, false // it is truncated, if the message is too long
	}
	return int(msg.Source), append([]byte(nil), unsafe.Slice((*byte)(block), n)...), true
}

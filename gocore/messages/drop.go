package messages

import (
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/transport"
)

// At the end of a world no rank receives anything any more. What was sent to it all the same is taken and dropped, so that the
// sends of the others end.

// mostDropped is the length of the longest message that is taken to be dropped. The sender of a longer
// one ends with a request under way.
const mostDropped = 1 << 30

// dropped is a message that is received only so that its sender is done.
type dropped struct {
	on      transport.Endpoint
	request *transport.Request // nil if a probe has read it
	block   unsafe.Pointer
	bytes   int64 // of what is received
	more    int64 // what follows it on the endpoint side, in pieces of most bytes
	most    int64
	side    transport.Endpoint
	tag     int32
	source  int32
}

// DropNext takes the next message that has come for this member, and the one before further. It tells whether one is under
// way. Only the end of the world calls it.
func (g *Messages) DropNext() bool {
	if d := g.dropped; d != nil {
		if d.request != nil && !transport.Over(d.on, d.request) || g.dropRest(d) {
			return true
		}
		g.dropped = nil
	}
	on := g.Comm()
	if on == nil {
		return false
	}
	if msg, first, ok := g.Kept(); ok {
		g.dropped = drop(on, msg, first)
	} else if st, found, err := on.Probe(transport.AnySource, transport.AnyTag); err == nil && found && st.Bytes <= mostDropped {
		if msg, found, err := on.Match(transport.AnySource, transport.AnyTag); err == nil && found {
			g.dropped = drop(on, msg, nil)
		}
	}
	return g.dropped != nil
}

// drop begins to receive a message, of which first was read if it is not nil. It returns nil if that fails.
func drop(on transport.Endpoint, msg transport.Message, first []byte) *dropped {
	block, err := mem.Alloc(max(1, msg.Bytes)) // Open MPI 5 crashes if a long message has no room
	if err != nil {
		return nil
	}
	m := &dropped{on: on, block: block, bytes: msg.Bytes, source: msg.Source}
	if first != nil {
		copy(unsafe.Slice((*byte)(block), msg.Bytes), first)
	} else if m.request, err = on.Take(msg, block, msg.Bytes); err != nil {
		mem.Free(block)
		return nil
	}
	return m
}

// dropRest begins to receive what follows, now that a part is there. It returns false if there is nothing more.
func (g *Messages) dropRest(m *dropped) bool {
	if m.request != nil {
		m.on.Release(m.request)
	}
	if m.side == nil {
		if m.side, m.tag, m.more, m.most = g.Rest(m.block, m.bytes); m.side != nil {
			mem.Free(m.block)
			var err error
			if m.block, err = mem.Alloc(m.most); err != nil {
				return false
			}
		}
	}
	if m.more > 0 {
		m.on, m.bytes = m.side, min(m.more, m.most)
		m.more -= m.bytes
		var err error
		if m.request, err = m.side.Receive(m.block, m.bytes, m.source, m.tag); err == nil {
			return true
		}
	}
	mem.Free(m.block)
	return false
}

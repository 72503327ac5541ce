package messages

import (
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/transport"
)

// At the end of a world no rank receives anything any more. What was sent to it all the same is taken and dropped, so that the
// sends of the others end.

// mostDropped is the length of the longest message that is received to be dropped. The sender of a longer
// one ends with a request under way.
const mostDropped = 1 << 30

// dropped is a message that is received, or refused, only so that its sender is done.
type dropped struct {
	request *transport.Request
	block   unsafe.Pointer
}

// DropNext takes the next message that has come for this member, and the one before further. It tells whether one is under
// way. Only the end of the world calls it.
func (g *Messages) DropNext() bool {
	on := g.Comm()
	if on == nil {
		return false
	}
	if m := g.dropped; m != nil {
		if !transport.Over(on, m.request) {
			return true
		}
		on.Release(m.request)
		mem.Free(m.block)
		g.dropped = nil
	}
	_, refuses := on.(transport.Fragmenter)
	if st, found, err := on.Probe(transport.AnySource, transport.AnyTag); err == nil && found && (refuses || st.Bytes <= mostDropped) {
		if msg, found, err := on.Match(transport.AnySource, transport.AnyTag); err == nil && found {
			g.dropped = drop(on, msg)
		}
	}
	return g.dropped != nil
}

// drop begins to take a message. It returns nil if that fails.
func drop(on transport.Endpoint, msg transport.Message) *dropped {
	m, err := new(dropped), error(nil)
	if f, ok := on.(transport.Fragmenter); ok {
		m.request, err = f.Refuse(msg)
	} else if m.block, err = mem.Alloc(max(1, msg.Bytes)); err == nil { // Open MPI 5 crashes if a long message has no room
		m.request, err = on.Take(msg, m.block, msg.Bytes)
	}
	if err != nil {
		mem.Free(m.block)
		return nil
	}
	return m
}

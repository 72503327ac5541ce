package messages

import (
	"slices"
	"sync"

	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/transport"
)

// kept has messages that probe has taken out of the transport, because the header of a long message has to be read to
// tell its length. Receives and later probes look here first. The messages of a rank that came before the header are
// taken out with it, so those here came before those that the transport has.
//
// Whoever looks here and then asks the transport holds mu from the one to the other: between the two no message may go
// from there to here. Receives without Go do not know the list, so they are held while it is not empty, and before
// something is put into it.
type kept struct {
	hold func(by int32)
	mu   sync.Mutex
	list []keptMessage
}

// keptMessage is one of them. The transport still has it, unless it was read.
type keptMessage struct {
	transport.Message
	read   bool
	header [headerBytes]byte // what was read
	length int64             // what probe tells
}

func (m *keptMessage) matches(peer, tag int32) bool {
	return (peer < 0 || m.Source == peer) && (tag < 0 || m.Tag == tag)
}

// take takes out the first message from a rank with a tag; each may be any. The caller holds mu.
func (k *kept) take(peer, tag int32) (m keptMessage, ok bool) {
	i := k.find(peer, tag)
	if i < 0 {
		return m, false
	}
	m = k.list[i]
	k.list = slices.Delete(k.list, i, i+1)
	k.hold(-1)
	return m, true
}

func (k *kept) find(peer, tag int32) int {
	return slices.IndexFunc(k.list, func(m keptMessage) bool { return m.matches(peer, tag) })
}

// Kept takes out the first message that a probe has kept. If the probe has read it, first is what it read.
func (g *Messages) Kept() (m transport.Message, first []byte, ok bool) {
	g.kept.mu.Lock()
	defer g.kept.mu.Unlock()
	k, ok := g.kept.take(transport.AnySource, transport.AnyTag)
	if k.read {
		first = k.header[:]
	}
	return k.Message, first, ok
}

// probe is the endpoint's Probe, which also knows the messages that are kept, and the lengths of long ones.
func (k *kept) probe(on transport.Endpoint, peer, tag int32) (st transport.Status, found bool, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	i := k.find(peer, tag)
	if i < 0 {
		st, found, err = on.Probe(peer, tag)
		if err != nil || !found || st.Bytes != headerBytes {
			return st, found, err
		}
		if err = k.draw(on, st); err != nil {
			return st, false, err
		}
		if i = k.find(peer, tag); i < 0 {
			return st, false, nil // a call without Go has received it
		}
	}
	m := &k.list[i]
	err = m.look(on)
	return transport.Status{Source: m.Source, Tag: m.Tag, Bytes: m.length}, err == nil, err
}

// draw takes the messages of a rank out of the transport, up to the first one with a tag.
func (k *kept) draw(on transport.Endpoint, st transport.Status) error {
	k.hold(1)
	defer k.hold(-1)
	for {
		m, found, err := on.Match(st.Source, transport.AnyTag)
		if err != nil || !found {
			return err
		}
		k.list = append(k.list, keptMessage{Message: m, length: m.Bytes})
		k.hold(1)
		if m.Tag == st.Tag {
			return nil
		}
	}
}

// look reads a message that may be a header.
func (m *keptMessage) look(on transport.Endpoint) error {
	if m.read || m.Bytes != headerBytes {
		return nil
	}
	block, err := mem.Alloc(headerBytes)
	if err != nil {
		return err
	}
	defer mem.Free(block)
	if err := transport.TakeNow(on, m.Message, block, headerBytes); err != nil {
		return err
	}
	m.read, m.header = true, *(*[headerBytes]byte)(block)
	if h := *(*header)(block); h.mark == headerMark {
		m.length = h.length()
	}
	return nil
}

// receiveKept gives a message that was kept to a transfer. Its request is not the transport's if it was read.
func (m *message) receiveKept(tr *transfer, from *keptMessage) (*transport.Request, error) {
	data, room := tr.room()
	if !from.read {
		return m.comm.Take(from.Message, data, room)
	}
	tr.read = true
	r := &transport.Request{Source: from.Source, Tag: from.Tag, Bytes: headerBytes}
	r.End()
	switch {
	case room < headerBytes: // outcome says that it is too long
	case tr.onDevice.direct() && tr.long == nil:
		return r, tr.onDevice.now(&from.header, true)
	default:
		*(*[headerBytes]byte)(data) = from.header
	}
	return r, nil
}

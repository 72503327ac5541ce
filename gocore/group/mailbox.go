package group

import (
	"encoding/binary"
	"sync"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/mpi"
)

// mailbox carries small messages between the cores of a job, out of any order and
// without anybody having to expect them: who has come to make a group, and who is where when one waits for
// long. It has a communicator of its own.
//
// A message is a header of 16 bytes (kind, sender, key) and at most maxMail bytes
// after it. A longer or shorter one is dropped: lengths come from outside.
type mailbox struct {
	lib  mpi.Library
	comm mpi.Comm
	me   int

	// onAsk and onAnswer are called from pump for messages that nobody waits for.
	onAsk    func(from int, key uint64, body []byte)
	onAnswer func(from int, key uint64, body []byte)

	mu      sync.Mutex
	inbox   map[letter][]byte // arrived and not yet taken
	outbox  []outgoing
	pumping sync.Mutex
}

type letter struct {
	kind mailKind
	from int
	key  uint64
}

type outgoing struct {
	slot  *mpi.Slot
	block unsafe.Pointer
}

type mailKind uint32

const (
	mailHello  mailKind = iota + 1 // a member has come to a meeting: to make group key, say
	mailGo                         // all have come
	mailFail                       // some never came: their ranks follow
	mailBye                        // the sender takes its hello back: its deadline ran out
	mailReady                      // are you still at the attempt of this hello?
	mailStill                      // yes
	mailAsk                        // where are you in group key? See inquiry
	mailAnswer                     // the answer
	mailAbsent                     // the sender does not come to the barrier of those who depart
)

const (
	mailHeader = 16
	maxMail    = 64 << 10
	mailTag    = 1
)

func newMailbox(lib mpi.Library, comm mpi.Comm, me int) *mailbox {
	return &mailbox{lib: lib, comm: comm, me: me, inbox: map[letter][]byte{}}
}

// send posts a message. Errors are not reported: the deadline of whoever waits for
// the message is the net under all of them.
func (m *mailbox) send(to int, kind mailKind, key uint64, body []byte) {
	if len(body) > maxMail {
		body = body[:maxMail]
	}
	block, err := mem.Alloc(int64(mailHeader + len(body)))
	if err != nil {
		return
	}
	b := unsafe.Slice((*byte)(block), mailHeader+len(body))
	binary.LittleEndian.PutUint32(b, uint32(kind))
	binary.LittleEndian.PutUint32(b[4:], uint32(m.me))
	binary.LittleEndian.PutUint64(b[8:], key)
	copy(b[mailHeader:], body)
	slot := m.lib.NewSlot()
	if err := m.lib.Start(&mpi.Call{Fn: mpi.FnSend, Peer: int32(to), Tag: mailTag, Comm: m.comm,
		SendBuf: block, SendCount: int64(len(b)), SendType: m.lib.Byte()}, slot); err != nil {
		m.lib.FreeSlot(slot)
		mem.Free(block)
		return
	}
	m.mu.Lock()
	m.outbox = append(m.outbox, outgoing{slot, block})
	m.mu.Unlock()
}

// take returns a message that has arrived.
func (m *mailbox) take(kind mailKind, from int, key uint64) ([]byte, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	l := letter{kind, from, key}
	body, ok := m.inbox[l]
	delete(m.inbox, l)
	return body, ok
}

// peek returns a message that has arrived, and leaves it there.
func (m *mailbox) peek(kind mailKind, from int, key uint64) ([]byte, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	body, ok := m.inbox[letter{kind, from, key}]
	return body, ok
}

// has tells whether a message of a kind has arrived, from anybody.
func (m *mailbox) has(kind mailKind) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for l := range m.inbox {
		if l.kind == kind {
			return true
		}
	}
	return false
}

// pump receives what is there and frees what was sent. It does not wait.
func (m *mailbox) pump() {
	if !m.pumping.TryLock() {
		return
	}
	defer m.pumping.Unlock()
	for m.receive() {
	}
	m.sent()
}

// sent frees the messages that are on their way and tells whether all are.
func (m *mailbox) sent() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	kept := m.outbox[:0]
	for _, o := range m.outbox {
		if o.slot.Done == 0 {
			m.lib.Poll([]uintptr{uintptr(unsafe.Pointer(o.slot))})
		}
		if o.slot.Done == 0 {
			kept = append(kept, o)
			continue
		}
		m.lib.FreeSlot(o.slot)
		mem.Free(o.block)
	}
	m.outbox = kept
	return len(kept) == 0
}

// receive takes one message, if there is one, and files it.
func (m *mailbox) receive() bool {
	msg, st, found, err := m.lib.Improbe(m.comm, mpi.AnySource, mailTag)
	if err != nil || !found {
		return false
	}
	if st.Bytes < 0 || st.Bytes > mailHeader+maxMail {
		return false // not of our making
	}
	block, err := mem.Alloc(max(1, st.Bytes))
	if err != nil {
		return false
	}
	defer mem.Free(block)
	if err := m.lib.Run(&mpi.Call{Fn: mpi.FnMrecv, Comm: m.comm, Message: msg, Peer: st.Source, Tag: st.Tag,
		RecvBuf: block, RecvCount: st.Bytes, RecvType: m.lib.Byte()}, nil); err != nil {
		return false
	}
	b := unsafe.Slice((*byte)(block), st.Bytes)
	if len(b) < mailHeader {
		return true
	}
	l := letter{mailKind(binary.LittleEndian.Uint32(b)), int(st.Source), binary.LittleEndian.Uint64(b[8:])}
	body := append([]byte(nil), b[mailHeader:]...)
	switch {
	case l.kind == mailAsk:
		m.onAsk(l.from, l.key, body)
	case l.kind == mailAnswer:
		m.onAnswer(l.from, l.key, body)
	case l.kind == mailBye:
		m.take(mailHello, l.from, l.key)
	default:
		m.mu.Lock()
		m.inbox[l] = body
		m.mu.Unlock()
	}
	return true
}

// close takes in what is still under way as far as that is possible at once.
func (m *mailbox) close() { m.pump() }

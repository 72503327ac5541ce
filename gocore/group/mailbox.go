package group

import (
	"encoding/binary"
	"sync"

	"github.com/paddlempi/paddlempi/gocore/channel"
	"github.com/paddlempi/paddlempi/gocore/mpi"
)

// mailbox carries small messages between the cores of a job, out of any order and
// without anybody having to expect them: who has come to make a group, and who is where when one waits for
// long.
//
// A message is a header of 12 bytes (kind, key) and at most maxMail bytes after it.
type mailbox struct {
	channel *channel.Channel

	// onAsk and onAnswer are called from pump for messages that nobody waits for.
	onAsk    func(from int, key uint64, body []byte)
	onAnswer func(from int, key uint64, body []byte)

	mu      sync.Mutex
	inbox   map[letter][]byte // arrived and not yet taken
	pumping sync.Mutex
}

type letter struct {
	kind mailKind
	from int
	key  uint64
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
	mailHeader = 12
	maxMail    = 64 << 10
)

func newMailbox(lib mpi.Library, comm mpi.Comm) *mailbox {
	return &mailbox{channel: channel.New(lib, comm, channel.Groups, mailHeader+maxMail), inbox: map[letter][]byte{}}
}

// send posts a message. Errors are not reported: the deadline of whoever waits for
// the message is the net under all of them.
func (m *mailbox) send(to int, kind mailKind, key uint64, body []byte) {
	header := binary.LittleEndian.AppendUint32(make([]byte, 0, mailHeader), uint32(kind))
	_ = m.channel.Send(to, binary.LittleEndian.AppendUint64(header, key), body)
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

// sent tells whether all messages are on their way.
func (m *mailbox) sent() bool { return m.channel.Sent() }

// receive takes one message, if there is one, and files it. A shorter one than the header is dropped.
func (m *mailbox) receive() bool {
	from, b, ok := m.channel.Receive()
	if !ok || len(b) < mailHeader {
		return ok
	}
	l := letter{mailKind(binary.LittleEndian.Uint32(b)), from, binary.LittleEndian.Uint64(b[4:])}
	body := b[mailHeader:]
	switch l.kind {
	case mailAsk:
		m.onAsk(l.from, l.key, body)
	case mailAnswer:
		m.onAnswer(l.from, l.key, body)
	case mailBye:
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

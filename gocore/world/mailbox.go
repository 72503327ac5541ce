package world

import (
	"encoding/binary"
	"sync"

	"github.com/paddlempi/paddlempi/gocore/channel"
	"github.com/paddlempi/paddlempi/gocore/transport"
)

// Mailbox carries small messages between the cores of a job: a rank has come to make a group, or a
// rank asks another rank whether it has announced a collective. Messages arrive in any order, and no
// rank has to expect them.
//
// A message is a header of 12 bytes (kind, key), and at most maxMail bytes after it.
type Mailbox struct {
	channel *channel.Channel

	// Pump calls onAsk and onAnswer for questions and their answers, for which no caller waits.
	onAsk    func(from int, key uint64, body []byte)
	onAnswer func(from int, key uint64, body []byte)

	// died, if set, tells whether a rank has died. MPICH crashes in a send to a process of another job that has (measured).
	died func(rank int) bool

	mu      sync.Mutex
	inbox   map[letter][]byte // messages that have arrived and were not taken
	letters map[int]int       // how many of them are from each rank
	pumping sync.Mutex
}

// letter identifies a message in the inbox. A later message with the same letter replaces it.
type letter struct {
	kind mailKind
	from int
	key  uint64
}

type mailKind uint32

const (
	mailHello  mailKind = iota + 1 // a member has come to a meeting, for instance to make group key
	mailGo                         // all members have come
	mailFail                       // some members never came: why, and their ranks follow
	mailBye                        // the sender takes its hello back, because its deadline has passed
	mailReady                      // question: are you still at the attempt of this hello?
	mailStill                      // answer to mailReady: yes
	mailAsk                        // question: where are you in group key? See inquiry
	mailAnswer                     // answer to mailAsk
	mailAbsent                     // the sender ends without the others: see stayAway
)

const (
	mailHeader = 12
	maxMail    = 64 << 10
	// mostLetters is how many letters of one rank the inbox holds. A rank waits for an answer to each,
	// so it has one for each of its threads.
	mostLetters = 1024
)

// possible tells whether a message of that kind can have such a body.
func (k mailKind) possible(body []byte) bool {
	switch k {
	case mailHello:
		return len(body) == 0 || len(body) == 8
	case mailGo, mailAsk:
		return len(body) == 8
	case mailFail:
		return len(body) >= 12 && len(body)%4 == 0
	case mailReady, mailStill:
		return len(body) == 16
	case mailAnswer:
		return len(body) == 32
	case mailBye, mailAbsent:
		return len(body) == 0
	}
	return false
}

func newMailbox(comm transport.Endpoint) *Mailbox {
	return &Mailbox{channel: channel.New(comm, channel.Groups, mailHeader+maxMail), inbox: map[letter][]byte{}, letters: map[int]int{}}
}

// send posts a message. It reports no error: whatever waits for the message has a deadline.
func (m *Mailbox) send(to int, kind mailKind, key uint64, body []byte) {
	if m.died != nil && m.died(to) {
		return
	}
	header := binary.LittleEndian.AppendUint32(make([]byte, 0, mailHeader), uint32(kind))
	_ = m.channel.Send(to, binary.LittleEndian.AppendUint64(header, key), body)
}

// take returns a message that has arrived and removes it.
func (m *Mailbox) take(kind mailKind, from int, key uint64) ([]byte, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	l := letter{kind, from, key}
	body, ok := m.inbox[l]
	if ok {
		delete(m.inbox, l)
		m.letters[from]--
	}
	return body, ok
}

// peek returns a message that has arrived and leaves it in the inbox.
func (m *Mailbox) peek(kind mailKind, from int, key uint64) ([]byte, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	body, ok := m.inbox[letter{kind, from, key}]
	return body, ok
}

// has tells whether a message of a kind has arrived from any rank.
func (m *Mailbox) has(kind mailKind) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for l := range m.inbox {
		if l.kind == kind {
			return true
		}
	}
	return false
}

// Pump receives the messages that have arrived and frees the buffers of those that were sent. It
// does not wait.
func (m *Mailbox) Pump() {
	if !m.pumping.TryLock() {
		return
	}
	defer m.pumping.Unlock()
	for m.receive() {
	}
	m.sent()
}

// sent tells whether MPI is done with all messages that were posted.
func (m *Mailbox) sent() bool { return m.channel.Sent() }

// receive takes one message, if one has arrived, and files it. It drops what no rank sends: a message
// shorter than the header, of an unknown kind or of another length than its kind has, and more letters
// than a rank writes.
func (m *Mailbox) receive() bool {
	from, b, ok := m.channel.Receive()
	if !ok || len(b) < mailHeader {
		return ok
	}
	l := letter{mailKind(binary.LittleEndian.Uint32(b)), from, binary.LittleEndian.Uint64(b[4:])}
	body := b[mailHeader:]
	if !l.kind.possible(body) {
		return true
	}
	switch l.kind {
	case mailAsk:
		m.onAsk(l.from, l.key, body)
	case mailAnswer:
		m.onAnswer(l.from, l.key, body)
	case mailBye:
		m.take(mailHello, l.from, l.key)
	default:
		m.mu.Lock()
		defer m.mu.Unlock()
		if _, there := m.inbox[l]; !there {
			if m.letters[from] >= mostLetters {
				return true
			}
			m.letters[from]++
		}
		m.inbox[l] = body
	}
	return true
}

// close receives what has arrived. It does not wait for messages that are still under way.
func (m *Mailbox) close() { m.Pump() }

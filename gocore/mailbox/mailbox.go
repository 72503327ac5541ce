// Package mailbox carries small messages between the cores of a job: letters.
//
// A letter has a kind and a key. A rank has come to make the group with that key, for instance, or asks another rank
// whether it has announced a collective of it. Letters arrive in any order, and no rank has to expect them. Those of most
// kinds lie in the inbox until they are taken; a later letter of the same kind, key and sender replaces the one before. The
// room that answers letters of a kind handles them instead (Handle), at the moment at which Pump receives them.
//
// Nobody sends letters in the background, and no thread waits for them: who waits for something pumps, and so do the chores of
// the engine.
package mailbox

import (
	"encoding/binary"
	"sync"

	"github.com/paddlempi/paddlempi/gocore/channel"
	"github.com/paddlempi/paddlempi/gocore/transport"
)

// Mailbox sends and receives the letters of one rank. Its methods are safe for concurrent use, but for Handle and Skip.
//
// A letter on the wire is a header of 12 bytes (kind, key), and at most maxBody bytes after it.
type Mailbox struct {
	comm    transport.Comm
	channel *channel.Channel
	handle  map[Kind]Handler
	skip    func(rank int) bool

	mu      sync.Mutex
	inbox   map[address][]byte // letters that have arrived and were not taken
	letters map[int]int        // how many of them are from each rank
	pumping sync.Mutex
}

// Handler takes in a letter. It is called by one goroutine at a time.
type Handler func(from int, key uint64, body []byte)

// address identifies a letter in the inbox.
type address struct {
	kind Kind
	from int
	key  uint64
}

// Kind says what a letter is about.
type Kind uint32

// The kinds. The first ones belong to meetings (package world), the others to questions (package health).
const (
	Hello  Kind = iota + 1 // a member has come to a meeting, for instance to make group key
	Go                     // all members have come
	Fail                   // some members never came: why, and their ranks follow
	Bye                    // the sender takes its hello back, because its deadline has passed
	Ready                  // question: are you still at the attempt of this hello?
	Still                  // answer to Ready: yes
	Ask                    // question: where are you in group key?
	Answer                 // answer to Ask
	Absent                 // the sender ends without the others; its key is OfProcess
	Revoke                 // the sender has revoked the world: why follows; its key is OfProcess
)

// OfProcess is the key of letters about the process of a rank. No group has it.
const OfProcess = ^uint64(0)

const (
	headerBytes = 12
	maxBody     = 64 << 10
	mostText    = 1 << 10 // of a Revoke
	// mostLetters is how many letters of one rank the inbox holds. A rank waits for an answer to each,
	// so it has one for each of its threads.
	mostLetters = 1024
)

// possible tells whether a letter of that kind can have such a body.
func (k Kind) possible(body []byte) bool {
	switch k {
	case Hello:
		return len(body) == 0 || len(body) == 8
	case Go, Ask:
		return len(body) == 8
	case Fail:
		return len(body) >= 12 && len(body)%4 == 0
	case Ready, Still:
		return len(body) == 16
	case Answer:
		return len(body) == 32
	case Bye, Absent:
		return len(body) == 0
	case Revoke:
		return len(body) <= mostText
	}
	return false
}

// New makes the mailbox of this rank on comm, which carries nothing else and belongs to the mailbox from now on.
func New(comm transport.Comm) *Mailbox {
	m := &Mailbox{comm: comm, channel: channel.New(comm, channel.Groups, headerBytes+maxBody),
		handle: map[Kind]Handler{}, inbox: map[address][]byte{}, letters: map[int]int{}}
	m.Handle(Bye, func(from int, key uint64, _ []byte) { m.Take(Hello, from, key) })
	return m
}

// Handle has h take in all letters of a kind, which do not come into the inbox then. It is called before the first Pump.
func (m *Mailbox) Handle(kind Kind, h Handler) { m.handle[kind] = h }

// Skip sends nothing from now on to a rank of which dead returns true: an MPI may crash where it has closed the connection to
// a process that has ended (MPICH 5).
func (m *Mailbox) Skip(dead func(rank int) bool) { m.skip = dead }

// Send posts a letter. It reports no error: whatever waits for the letter has a deadline.
func (m *Mailbox) Send(to int, kind Kind, key uint64, body []byte) {
	if m.skip != nil && m.skip(to) {
		return
	}
	header := binary.LittleEndian.AppendUint32(make([]byte, 0, headerBytes), uint32(kind))
	_ = m.channel.Send(to, binary.LittleEndian.AppendUint64(header, key), body)
}

// Take returns a letter that has arrived and removes it.
func (m *Mailbox) Take(kind Kind, from int, key uint64) ([]byte, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	at := address{kind, from, key}
	body, ok := m.inbox[at]
	if ok {
		delete(m.inbox, at)
		m.letters[from]--
	}
	return body, ok
}

// Peek returns a letter that has arrived and leaves it in the inbox.
func (m *Mailbox) Peek(kind Kind, from int, key uint64) ([]byte, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	body, ok := m.inbox[address{kind, from, key}]
	return body, ok
}

// Has tells whether a letter of a kind has arrived from any rank.
func (m *Mailbox) Has(kind Kind) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for at := range m.inbox {
		if at.kind == kind {
			return true
		}
	}
	return false
}

// Pump receives the letters that have arrived and frees the buffers of those that were sent. It
// does not wait.
func (m *Mailbox) Pump() {
	if !m.pumping.TryLock() {
		return
	}
	defer m.pumping.Unlock()
	for m.receive() {
	}
	m.Sent()
}

// Sent tells whether MPI is done with all letters that were posted.
func (m *Mailbox) Sent() bool { return m.channel.Sent() }

// receive takes one letter, if one has arrived, and files it. It drops what no rank sends: a message
// shorter than the header, of an unknown kind or of another length than its kind has, and more letters
// than a rank writes.
func (m *Mailbox) receive() bool {
	from, b, ok := m.channel.Receive()
	if !ok || len(b) < headerBytes {
		return ok
	}
	at := address{Kind(binary.LittleEndian.Uint32(b)), from, binary.LittleEndian.Uint64(b[4:])}
	body := b[headerBytes:]
	if !at.kind.possible(body) {
		return true
	}
	if handle := m.handle[at.kind]; handle != nil {
		handle(at.from, at.key, body)
		return true
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, there := m.inbox[at]; !there {
		if m.letters[from] >= mostLetters {
			return true
		}
		m.letters[from]++
	}
	m.inbox[at] = body
	return true
}

// Free frees what carries the letters. It does not wait for letters that are still under way.
func (m *Mailbox) Free() error { return m.comm.Free() }

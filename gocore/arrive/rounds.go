package arrive

import (
	"math/bits"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/transport"
)

// A gathering gives every member the words of all members, combined by bitwise or, and the note of each. It is
// recursive doubling by messages: in round i the members exchange what they know with the member at distance 2^i,
// so it takes log2 n rounds. If n is no power of two, some members give what they have to a partner first, and get
// the result from it at the end (Thakur, Rabenseifner, Gropp 2005).
//
// A message is a header of headerWords, and a record for every member whose note the sender knows. Records are
// untrusted: their lengths are checked before they are read.

// step is one round of a gathering as one member sees it.
type step struct {
	peer        int32
	sends       bool
	receives    bool
	known       int   // members whose notes it sends
	news        int   // those whose notes it receives
	in          int64 // the most bytes of the message that it receives
	outAt, inAt int64 // where the messages lie in the block of a gathering
}

// layout finds the places of the messages of steps, for notes of up to room bytes. It returns the bytes of a block, which
// begins with this member's own note.
func layout(steps []step, room int64) (size int64) {
	size = (room + 7) &^ 7
	for i := range steps {
		s := &steps[i]
		if s.sends {
			s.outAt = size
			size += headerBytes + int64(s.known)*recordBytes(room)
		}
		if s.receives {
			s.in, s.inAt = headerBytes+int64(s.news)*recordBytes(room), size
			size += s.in
		}
	}
	return size
}

// plan returns the steps of member me of n, without their places.
func plan(n, me int) (steps []step) {
	whole := 1 << (bits.Len(uint(n)) - 1) // the members that take part in the rounds
	extra := n - whole                    // those that give theirs to a partner
	if me < 2*extra && me%2 == 0 {
		return []step{{peer: int32(me + 1), sends: true, known: 1}, {peer: int32(me + 1), receives: true, known: 1, news: n - 1}}
	}
	// A member of the rounds has a number there, and the members of a block of numbers have notes of these members.
	number := me - extra
	if me < 2*extra {
		number = me / 2
	}
	of := func(v int) int {
		if v < extra {
			return 2*v + 1
		}
		return v + extra
	}
	notes := func(from, to int) int { return to - from + max(0, min(to, extra)-min(from, extra)) }
	if me < 2*extra {
		steps = append(steps, step{peer: int32(me - 1), receives: true, known: 1, news: 1})
	}
	for d := 1; d < whole; d *= 2 {
		mine, theirs := number&^(d-1), number&^(d-1)^d
		steps = append(steps, step{peer: int32(of(number ^ d)), sends: true, receives: true,
			known: notes(mine, mine+d), news: notes(theirs, theirs+d)})
	}
	if me < 2*extra {
		steps = append(steps, step{peer: int32(me - 1), sends: true, known: n - 1})
	}
	return steps
}

// The header of a message: the number and the kind of the gathering, the words, and the bytes of the records.
const (
	headerWords = 3 + wireWords
	headerBytes = 8 * headerWords
)

// recordBytes returns what the record of a note takes: member and length as 32-bit words, and the note.
func recordBytes(note int64) int64 { return 8 + (note+7)&^7 }

// gathering is one gathering of a member. Its messages lie in one block outside the Go heap.
type gathering struct {
	end   transport.Endpoint
	tag   int32
	n, me int
	room  int64 // bytes of a note
	steps []step
	block unsafe.Pointer

	seq, kind uint64
	words     [wireWords]uint64
	notes     []Note // by member; those of the others are in the block
	had       []bool // whose notes are known
	known     int
	at        int // the step under way; len(steps): none
	receiving *transport.Request
	sending   transport.UnderWay
}

// newGathering makes a gathering with notes of up to room bytes. size is of layout(steps, room).
func newGathering(end transport.Endpoint, tag int32, room int64, steps []step, size int64) (*gathering, error) {
	n := end.Size()
	g := &gathering{end: end, tag: tag, n: n, me: end.Rank(), room: room, steps: steps, at: len(steps),
		notes: make([]Note, n), had: make([]bool, n)}
	g.sending.By = end
	var err error
	g.block, err = mem.Alloc(size)
	return g, err
}

// begin starts a gathering of words, and of a note, which is copied. It returns what poll returns.
func (g *gathering) begin(seq, kind uint64, words *[wireWords]uint64, note Note) (over bool, err error) {
	g.seq, g.kind, g.words = seq, kind, *words
	clear(g.had)
	if note.Bytes > 0 {
		mem.Copy(g.block, note.Data, note.Bytes)
	}
	g.notes[g.me], g.had[g.me], g.known = Note{g.block, note.Bytes}, true, 1
	g.at = -1
	return g.next()
}

// next goes on to the next step, and over those that wait for nothing.
func (g *gathering) next() (over bool, err error) {
	for {
		if g.at++; g.at == len(g.steps) {
			if g.known != g.n {
				return false, &Damaged{g.me, "it lacks the notes of some members"}
			}
			return true, nil
		}
		s := &g.steps[g.at]
		if s.receives {
			if g.receiving, err = g.end.Receive(unsafe.Add(g.block, s.inAt), s.in, s.peer, g.tag); err != nil {
				g.receiving, g.at = nil, len(g.steps)
				return false, err
			}
		}
		if s.sends {
			data := unsafe.Add(g.block, s.outAt)
			if err = g.sending.Add(g.end.Send(data, g.write(data), s.peer, g.tag)); err != nil {
				g.giveUp()
				return false, err
			}
		}
		if s.receives {
			return false, nil
		}
	}
}

// write writes the message of what this member knows, and returns its length.
func (g *gathering) write(to unsafe.Pointer) int64 {
	bytes := int64(headerBytes)
	for member, note := range g.notes {
		if !g.had[member] || member == int(g.steps[g.at].peer) { // it knows its own
			continue
		}
		*(*[2]uint32)(unsafe.Add(to, bytes)) = [2]uint32{uint32(member), uint32(note.Bytes)}
		mem.Copy(unsafe.Add(to, bytes+8), note.Data, note.Bytes)
		bytes += recordBytes(note.Bytes)
	}
	header := (*[headerWords]uint64)(to)
	header[0], header[1], header[2] = g.seq, g.kind, uint64(bytes-headerBytes)
	copy(header[3:], g.words[:])
	return bytes
}

// poll takes the gathering further, and tells whether this member knows everything. Its messages may still be under
// way then: see settled. After an error the gathering is given up.
func (g *gathering) poll() (over bool, err error) {
	for g.at < len(g.steps) {
		if !transport.Over(g.end, g.receiving) {
			return false, nil
		}
		s := &g.steps[g.at]
		got := g.receiving.Bytes
		err := g.end.Err(g.receiving)
		g.end.Release(g.receiving)
		g.receiving = nil
		if err == nil {
			err = g.read(s, got)
		}
		if err != nil {
			g.at = len(g.steps)
			return false, err
		}
		if over, err := g.next(); over || err != nil {
			return over, err
		}
	}
	return true, nil
}

// read takes in a message of bytes bytes.
func (g *gathering) read(s *step, bytes int64) error {
	from := unsafe.Add(g.block, s.inAt)
	header := (*[headerWords]uint64)(from)
	if bytes < headerBytes || header[0] != g.seq || header[1] != g.kind || header[2] != uint64(bytes-headerBytes) {
		return &Damaged{int(s.peer), "its message is not of this collective"}
	}
	for i := range g.words {
		g.words[i] |= header[3+i]
	}
	for at := int64(headerBytes); at < bytes; {
		if bytes-at < 8 {
			return &Damaged{int(s.peer), "its message is cut off"}
		}
		record := *(*[2]uint32)(unsafe.Add(from, at))
		member, length := int(record[0]), int64(record[1])
		if member >= g.n || g.had[member] || length > g.room || recordBytes(length) > bytes-at {
			return &Damaged{int(s.peer), "its message has a note that no member announces"}
		}
		g.notes[member], g.had[member] = Note{unsafe.Add(from, at+8), length}, true
		g.known++
		at += recordBytes(length)
	}
	return nil
}

// Damaged is the error of an arrival that a member has sent what no member sends.
type Damaged struct {
	Member int // in the group
	Why    string
}

func (d *Damaged) Error() string { return "arrive: " + d.Why }

// giveUp gives the gathering up: what this member waits for comes no more.
func (g *gathering) giveUp() {
	g.at = len(g.steps)
	if g.receiving != nil {
		_ = g.end.Cancel(g.receiving)
	}
}

// push lets the transport send what it has held back. MPICH waits for the next call, which may come late.
func (g *gathering) push() {
	if g.sending.Len() > 0 {
		g.sending.Poll()
	}
}

// settled tells whether no message of the gathering is under way. It tests them.
func (g *gathering) settled() bool {
	if g.receiving != nil {
		if g.at < len(g.steps) || !transport.Over(g.end, g.receiving) {
			return false
		}
		g.end.Release(g.receiving)
		g.receiving = nil
	}
	if g.sending.Len() > 0 {
		g.sending.Poll()
		_ = g.sending.Reap() // the receiver tells of its trouble itself
	}
	return g.sending.Len() == 0
}

func (g *gathering) free() {
	mem.Free(g.block)
	g.block = nil
}

package liveness

import "encoding/binary"

// fact is a message: something that a rank has found out, and tells the others.
type fact struct {
	kind    kind
	subject int // a rank; of lost, a node; of over, 0; of notice, any number of 32 bits
	by      int // the rank that found it out
}

type kind byte

const (
	died     kind = iota + 1 // the rank's process has ended, and it had not said that it would
	lost                     // a node does not answer
	left                     // the rank has ended in order
	rubbish                  // the rank has sent what is no message
	over                     // all ranks have come to the end of the job: none dies from now on
	begin                    // the rank takes this connection: see link
	excluded                 // the rank goes on without this one; is not sent
	ask                      // a question follows: see Ask
	notice                   // the subject is a number that a rank tells all others: see Notify
)

func (k kind) death() bool { return k != left && k != over }

// A fact on the wire: its kind, three bytes of 0, subject and by.
const factBytes = 12

func (f fact) encode() []byte {
	b := []byte{byte(f.kind), 0, 0, 0}
	b = binary.LittleEndian.AppendUint32(b, uint32(f.subject))
	return binary.LittleEndian.AppendUint32(b, uint32(f.by))
}

// decode reads a fact. ok is false if no rank of a job of this size sends that.
func decode(b [factBytes]byte, ranks, nodes int) (f fact, ok bool) {
	subject, by := binary.LittleEndian.Uint32(b[4:]), binary.LittleEndian.Uint32(b[8:])
	f = fact{kind(b[0]), int(subject), int(by)}
	limit := ranks
	switch f.kind {
	case died, left, rubbish, begin:
	case lost:
		limit = nodes
	case over:
		limit = 1
	case notice:
		return f, b[1]|b[2]|b[3] == 0 && uint64(by) < uint64(ranks)
	default:
		return fact{}, false
	}
	return f, b[1]|b[2]|b[3] == 0 && uint64(subject) < uint64(limit) && uint64(by) < uint64(ranks)
}

// tokenBytes is the length of a token.
const tokenBytes = 16

// token is what one end of a connection shows the other first.
type token [tokenBytes]byte

// tokens are those of the two ends. They differ, so that a process that sends back what it gets does not
// pass for a rank.
type tokens struct{ hello, reply token }

func tokensOf(s Secret) (t tokens) {
	_, _ = binary.Encode(t.hello[:], binary.LittleEndian, s[:2])
	_, _ = binary.Encode(t.reply[:], binary.LittleEndian, s[2:])
	return t
}

// with returns the token and ranks behind it. A rank that connects says which it is and which it wants; the other says
// which it is.
func (t token) with(ranks ...int) []byte {
	b := t[:]
	for _, rank := range ranks {
		b = binary.LittleEndian.AppendUint32(b, uint32(rank))
	}
	return b
}

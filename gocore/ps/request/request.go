// Package request has the headers of what a trainer asks a server, and of what the server answers.
// They travel with the ids and rows of the tables (package link) and are read as what they are:
// bytes of another process.
package request

import (
	"encoding/binary"
	"math"

	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// Op says what a request is for.
type Op uint8

const (
	Pull  Op = iota + 1 // the rows of the ids
	Push                // gradients of the ids: one step of the trainer
	Write               // new values of the rows of the ids; their states stay

	// Refuse is in the place of a Push, without tables: the step of all trainers fails, and changes
	// nothing.
	Refuse
	// Reserve has ids and no rows: the rows of the ids are made, so that a Push or Write of them
	// needs no memory.
	Reserve
	// Add is in the place of a Push: what comes is added to the rows, without their optimizer. It
	// is not for synchronous training.
	Add
	// Look is a Pull that makes no rows, and of which no training comes: an id without a row has
	// what its row would begin with. With LookZeros it has zeros.
	Look
	LookZeros
	// ReadStates asks for the states of the ids, of which it makes no row; the answer has the steps
	// of the table. WriteStates sets them, and the steps.
	ReadStates
	WriteStates

	last = WriteStates
)

func (o Op) String() string {
	switch o {
	case Pull:
		return "pull"
	case Push:
		return "push"
	case Write:
		return "write"
	case Refuse:
		return "refusal"
	case Reserve:
		return "reservation"
	case Add:
		return "addition"
	case Look, LookZeros:
		return "lookup"
	case ReadStates:
		return "read of states"
	case WriteStates:
		return "write of states"
	}
	return "unknown"
}

// Reads tells whether the answer to a request has the rows of its ids, or their states.
func (o Op) Reads() bool { return o == Pull || o == Look || o == LookZeros || o == ReadStates }

// Writes tells whether a request sets what rows or their states are.
func (o Op) Writes() bool { return o == Write || o == WriteStates }

// OfStates tells whether the states of rows are on the way in the place of rows.
func (o Op) OfStates() bool { return o == ReadStates || o == WriteStates }

// CountsSteps tells whether a request has to do with the steps of a table: each server gets it, also
// one that has none of the table's ids.
func (o Op) CountsSteps() bool { return o == Push || o == WriteStates }

// IsStep tells whether a request is the trainer's part of a step.
func (o Op) IsStep() bool { return o == Push || o == Refuse || o == Add }

// Updates tells whether a request changes what is there. Every server gets it, also one that has
// none of the ids.
func (o Op) Updates() bool { return o.IsStep() || o.Writes() }

// Width returns how many elements a row has on the way, of a table with rows of dim elements and
// states of so many floats.
func (o Op) Width(dim, states int64) int64 {
	if o.OfStates() {
		return states
	}
	return dim
}

// RowBytes returns the bytes of a row on the way, of so many elements (Width), in a table with rows
// of the given dtype.
func (o Op) RowBytes(dim int64, rows op.DType) int64 {
	if o == Reserve {
		return 0
	}
	return dim * int64(o.RowType(rows).Size())
}

// RowType returns of what dtype the rows of a table travel, whose rows are of the given one: pulls
// and lookups bring them as they are; gradients, new values and states are of float32.
func (o Op) RowType(rows op.DType) op.DType {
	if o.Reads() && !o.OfStates() {
		return rows
	}
	return op.Float32
}

// Align returns where the rows of the next table with ids begin, after so many bytes.
func Align(bytes int64) int64 { return (bytes + 3) &^ 3 }

// Limits of how many tables a request may name. Up to MostInHeader are named in its header, for
// which package link has room. More are named before the ids, in listWords words each.
const (
	MostInHeader = 1024
	MostTables   = 1 << 16
	listWords    = 2
)

// TableRows says which table a request is for, and how many of its rows.
type TableRows struct {
	Table uint32
	Count uint32 // of ids; 0 in a push whose ids are all of other servers
	// Rate is the learning rate of this push; NaN: the table's. Of a WriteStates it is the steps
	// that the table has made.
	Rate float64
}

// Head is the header of a request.
type Head struct {
	Op Op
	// Step of a Push or Refuse is its number on this trainer, from 1; 0: the next one, because the
	// effect of an earlier one is unknown. Of others it is 0 or AfterPush.
	Step   int64
	Seen   int64 // of a Push: the version that the trainer's last pull had; -1: it has not pulled
	Number int64 // of a request that Updates: SetNumber sets it. Else 0
	Tables []TableRows
	listed int // Decode: so many tables are named before the ids; TakeList reads them
}

// ListLen returns how many words before the ids name the tables; 0: the header does.
func (h *Head) ListLen() int64 {
	if len(h.Tables) <= MostInHeader {
		return 0
	}
	return listWords * int64(len(h.Tables))
}

// PutList writes these words.
func (h *Head) PutList(words []int64) {
	for i, r := range h.Tables {
		words[listWords*i], words[listWords*i+1] = int64(r.Table)|int64(r.Count)<<32, int64(math.Float64bits(r.Rate))
	}
}

// TakeList reads them, if there are some, and returns the ids behind them.
func (h *Head) TakeList(words []int64) (ids []int64, err error) {
	if h.listed == 0 {
		return words, nil
	}
	if len(words) < listWords*h.listed {
		return nil, status.New(status.Argument, "a request names %d tables before its ids, in %d words; it takes %d", h.listed, len(words), listWords*h.listed)
	}
	h.Tables = make([]TableRows, h.listed)
	for i := range h.Tables {
		word, rate := words[listWords*i], words[listWords*i+1]
		h.Tables[i] = TableRows{uint32(word), uint32(word >> 32), math.Float64frombits(uint64(rate))}
	}
	return words[listWords*h.listed:], nil
}

// SetNumber gives an encoded request the number of its update. A trainer numbers its updates from
// 1, in the order in which it sends them, and an update has the same number on all servers.
func SetNumber(header []byte, number int64) {
	binary.LittleEndian.PutUint64(header[numberAt:], uint64(number))
}

// AfterPush is the step of a Pull or Write that comes after a push of the same trainer which it has
// given up: if the server has that push and waits for other trainers, it carries the request out
// after the step.
const AfterPush = 1

const (
	headBytes   = 32
	numberAt    = 24
	tableBytes  = 16
	AnswerBytes = 24 // of an encoded Answer
)

// Encode returns the bytes of h.
func (h *Head) Encode() []byte {
	in, listed := h.Tables, byte(0)
	if len(in) > MostInHeader {
		in, listed = nil, 1
	}
	b := make([]byte, 0, headBytes+tableBytes*len(in))
	b = append(b, byte(h.Op), listed, 0, 0)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(h.Tables)))
	b = binary.LittleEndian.AppendUint64(b, uint64(h.Step))
	b = binary.LittleEndian.AppendUint64(b, uint64(h.Seen))
	b = binary.LittleEndian.AppendUint64(b, uint64(h.Number))
	for _, r := range in {
		b = binary.LittleEndian.AppendUint32(b, r.Table)
		b = binary.LittleEndian.AppendUint32(b, r.Count)
		b = binary.LittleEndian.AppendUint64(b, math.Float64bits(r.Rate))
	}
	return b
}

// Decode reads a header. The error says what is wrong with the bytes.
func Decode(b []byte) (Head, error) {
	var h Head
	if len(b) < headBytes {
		return h, status.New(status.Argument, "a request has a header of %d bytes; it takes at least %d", len(b), headBytes)
	}
	h.Op = Op(b[0])
	n := binary.LittleEndian.Uint32(b[4:])
	h.Step, h.Seen = int64(binary.LittleEndian.Uint64(b[8:])), int64(binary.LittleEndian.Uint64(b[16:]))
	h.Number = int64(binary.LittleEndian.Uint64(b[numberAt:]))
	if h.Op.String() == "unknown" || b[1] > 1 || b[2] != 0 || b[3] != 0 {
		return h, status.New(status.Argument, "a request has the code %d; codes are %d to %d", b[0], Pull, last)
	}
	least, most, inHeader := uint32(0), uint32(MostInHeader), int(n)
	if b[1] == 1 {
		least, most, inHeader = MostInHeader+1, MostTables, 0
	}
	if n < least || n > most || len(b) != headBytes+tableBytes*inHeader {
		return h, status.New(status.Argument, "a request of %d bytes says that it has %d parts; it may have %d to %d, of %d bytes each in its header", len(b), n, least, most, tableBytes)
	}
	if h.Step < 0 || h.Seen < -1 || h.Number < 0 {
		return h, status.New(status.Argument, "a %v has step %d after version %d, and number %d; none is negative", h.Op, h.Step, h.Seen, h.Number)
	}
	h.listed = int(n) - inHeader
	h.Tables = make([]TableRows, inHeader)
	for i := range h.Tables {
		p := b[headBytes+tableBytes*i:]
		h.Tables[i] = TableRows{binary.LittleEndian.Uint32(p), binary.LittleEndian.Uint32(p[4:]), math.Float64frombits(binary.LittleEndian.Uint64(p[8:]))}
	}
	return h, nil
}

// Answer is the header of an answer.
type Answer struct {
	Version   int64 // updates that the server has applied
	Staleness int64 // of a push: updates of other trainers since this one's pull
	// Steps, of a push, is how many of this trainer the server has; of a ReadStates it is the steps
	// of the table.
	Steps int64
}

// Encode returns the bytes of a.
func (a Answer) Encode() []byte {
	b := binary.LittleEndian.AppendUint64(make([]byte, 0, AnswerBytes), uint64(a.Version))
	b = binary.LittleEndian.AppendUint64(b, uint64(a.Staleness))
	return binary.LittleEndian.AppendUint64(b, uint64(a.Steps))
}

// DecodeAnswer reads the header of an answer.
func DecodeAnswer(b []byte) (Answer, error) {
	if len(b) != AnswerBytes {
		return Answer{}, status.New(status.Argument, "an answer has a header of %d bytes instead of %d", len(b), AnswerBytes)
	}
	return Answer{int64(binary.LittleEndian.Uint64(b)), int64(binary.LittleEndian.Uint64(b[8:])), int64(binary.LittleEndian.Uint64(b[16:]))}, nil
}

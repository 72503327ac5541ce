package trace

import (
	"encoding/binary"
	"errors"
	"io"
	"os"

	"github.com/paddlempi/paddlempi/gocore/status"
)

// Between the polls and the end of a recording its operations are in a compact form: some 15 bytes each. What many operations have in
// common is their kind, of which there are few; the rest are numbers, most of them near those of the operation before.

// kind is what many operations of a ring have in common.
type kind struct {
	group     uint32
	flags     Flags
	signature uint64 // the first word
	outcome   uint64
	algorithm [16]byte
}

// mostKinds is how many kinds of one ring are kept: any process can write anything into its ring.
const mostKinds = 1 << 16

// The columns of an operation besides its kind.
const (
	colNumber = iota
	colSeq
	colCount
	colDetail
	colPeer
	colPeer2 // of a collective: entry.share
	colTag
	colTag2
	colSubmitted // in ticks, as those that follow
	colBegun
	colArrived
	colWaited
	colEnded
	columns
)

// columnNames are the names of the columns in the file.
var columnNames = [columns]string{"number", "seq", "count", "detail", "peer", "peer2", "tag", "tag2", "submitted", "begun", "arrived", "waited", "ended"}

// row is an operation without its kind.
type row [columns]uint64

// packer packs the operations of a ring.
type packer struct {
	kinds   []kind
	numbers map[kind]int
	recent  int   // the kind of the last one
	last    []row // the last one of each kind
	before  row   // the last one
	bytes   []byte
	damaged uint64 // operations that cannot be any
}

// add packs an operation that has ended.
func (p *packer) add(e *entry) {
	number, ok := p.number(kind{e.group, e.flags, e.signature[0], e.outcome, e.algorithm})
	if !ok {
		p.damaged++
		return
	}
	values, last := rowOf(e), &p.last[number]
	p.bytes = binary.AppendUvarint(p.bytes, uint64(number))
	for i, v := range &values {
		switch i {
		case colNumber, colSubmitted:
			v -= p.before[i]
		case colBegun, colArrived, colWaited, colEnded:
			v = after(v, values[colSubmitted])
		default:
			v -= last[i]
		}
		p.bytes = binary.AppendVarint(p.bytes, int64(v))
	}
	p.before, *last = values, values
}

// number returns the number of a kind. ok is false if no operation can be of it, or there are too many.
func (p *packer) number(k kind) (number int, ok bool) {
	if len(p.kinds) > 0 && p.kinds[p.recent] == k {
		return p.recent, true
	}
	if number, ok = p.numbers[k]; !ok {
		if len(p.kinds) == mostKinds || !k.valid() {
			return 0, false
		}
		if p.numbers == nil {
			p.numbers = map[kind]int{}
		}
		number = len(p.kinds)
		p.kinds, p.last, p.numbers[k] = append(p.kinds, k), append(p.last, row{}), number
	}
	p.recent = number
	return number, true
}

// after returns 1 plus the ticks from submitted to a time, 0 if the time is 0.
func after(at, submitted uint64) uint64 {
	switch {
	case at == 0:
		return 0
	case at < submitted: // on another core
		return 1
	}
	return at - submitted + 1
}

func rowOf(e *entry) row {
	r := row{colNumber: e.word >> numberFrom, colSeq: e.seq, colCount: e.signature[1], colDetail: e.signature[2],
		colSubmitted: e.submitted, colBegun: e.begun, colArrived: e.arrived, colWaited: *e.waited(), colEnded: e.ended}
	if e.flags&Message != 0 {
		r[colPeer], r[colPeer2] = uint64(int64(e.peer[0])), uint64(int64(e.peer[1]))
		r[colTag], r[colTag2] = uint64(int64(e.tag[0])), uint64(int64(e.tag[1]))
	} else {
		r[colPeer2] = uint64(e.share())
	}
	return r
}

// unpack calls f with each operation that was packed, in the order in which they were. Times after submitted are as after returns them.
func unpack(b []byte, kinds int, f func(kind int, values *row)) error {
	last := make([]row, kinds)
	var before row
	for len(b) > 0 {
		number, n := binary.Uvarint(b)
		if n <= 0 || number >= uint64(kinds) {
			return errPacked
		}
		b = b[n:]
		values, of := row{}, &last[number]
		for i := range values {
			v, n := binary.Varint(b)
			if n <= 0 {
				return errPacked
			}
			b = b[n:]
			switch values[i] = uint64(v); i {
			case colNumber, colSubmitted:
				values[i] += before[i]
			case colBegun, colArrived, colWaited, colEnded:
			default:
				values[i] += of[i]
			}
		}
		before, *of = values, values
		f(int(number), &values)
	}
	return nil
}

var errPacked = errors.New("the operations that were packed cannot be read")

// extent is a part of the spool.
type extent struct{ at, size int64 }

// spool is a file without a name.
type spool struct {
	file *os.File
	size int64
}

// newSpool makes a spool in a folder.
func newSpool(folder string) (*spool, error) {
	f, err := os.CreateTemp(folder, ".paddlempi-timeline-*")
	if err != nil {
		return nil, status.New(status.Argument, "cannot write into %s: %v", folder, errors.Unwrap(err))
	}
	_ = os.Remove(f.Name())
	return &spool{file: f}, nil
}

func (s *spool) append(b []byte) (extent, error) {
	x := extent{s.size, int64(len(b))}
	n, err := s.file.WriteAt(b, s.size)
	s.size += int64(n)
	if err != nil {
		return x, status.New(status.Argument, "cannot write to the spool: %v", errors.Unwrap(err))
	}
	return x, nil
}

// read returns what was appended, in several parts.
func (s *spool) read(extents []extent) ([]byte, error) {
	var b []byte
	for _, x := range extents {
		n := len(b)
		b = append(b, make([]byte, x.size)...)
		if _, err := io.ReadFull(io.NewSectionReader(s.file, x.at, x.size), b[n:]); err != nil {
			return nil, status.New(status.Argument, "cannot read from the spool: %v", err)
		}
	}
	return b, nil
}

func (s *spool) close() { s.file.Close() }

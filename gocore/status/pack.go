package status

import (
	"encoding/binary"
	"errors"
	"strings"
	"unicode"
)

// Errors as bytes, for other processes. Whoever reads them checks every length and number.

const (
	packedHead = 12      // code, class of MPI, number of ranks
	mostRanks  = 1024    // of an error
	mostCode   = 1 << 10 // no code of an error is above

	// MostText is the most bytes of an error's text that Pack keeps.
	MostText = 8 << 10
)

// Pack makes bytes of an error, some 12 KiB at most.
func Pack(err error) []byte {
	e := Plain(err)
	ranks := e.Ranks[:min(len(e.Ranks), mostRanks)]
	b := binary.LittleEndian.AppendUint32(nil, uint32(e.Code))
	b = binary.LittleEndian.AppendUint32(b, uint32(e.MPIClass))
	b = binary.LittleEndian.AppendUint32(b, uint32(len(ranks)))
	for _, r := range ranks {
		b = binary.LittleEndian.AppendUint32(b, uint32(r))
	}
	return append(b, e.Msg[:min(len(e.Msg), MostText)]...)
}

// Unpack is the opposite of Pack. ok is false if the bytes are none of its.
func Unpack(b []byte) (e *Error, ok bool) {
	if len(b) < packedHead {
		return nil, false
	}
	code, class, n := binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint32(b[4:]), binary.LittleEndian.Uint32(b[8:])
	b = b[packedHead:]
	if code == 0 || code > mostCode || n > mostRanks || len(b) < 4*int(n) {
		return nil, false
	}
	e = &Error{Code: Code(code), MPIClass: int(int32(class))}
	for ; n > 0; n, b = n-1, b[4:] {
		r := int32(binary.LittleEndian.Uint32(b))
		if r < 0 {
			return nil, false
		}
		e.Ranks = append(e.Ranks, int(r))
	}
	e.Msg = strings.Map(func(r rune) rune { // a terminal may show it
		if unicode.IsPrint(r) || r == '\n' || r == '\t' {
			return r
		}
		return '?'
	}, string(b))
	return e, true
}

// Plain returns a copy of an error with its whole text, which the caller may change. What is no *Error becomes one of code Panic.
func Plain(err error) *Error {
	var e *Error
	if !errors.As(err, &e) || e.Code <= 0 {
		return New(Panic, "%v", err)
	}
	return &Error{Code: e.Code, MPIClass: e.MPIClass, Ranks: e.Ranks, Msg: err.Error()}
}

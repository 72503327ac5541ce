package request

import (
	"encoding/binary"

	"github.com/paddlempi/paddlempi/gocore/status"
)

// Call is the header of a call of a KV: keys, and rows, for a function of the server's program. It travels as
// the requests for tables do.
type Call struct {
	KV         uint32 // its number on the server
	Push, Pull bool   // rows go there; rows come back
	Command    int64  // the trainer's program tells it to the server's
	Count      uint32 // of keys
}

const (
	callCode  = 'K' // no Op
	callBytes = 24
	callPush  = 1
	callPull  = 2
)

// IsCall tells whether a header is that of a Call.
func IsCall(b []byte) bool { return len(b) > 0 && b[0] == callCode }

// Encode returns the bytes of c.
func (c *Call) Encode() []byte {
	b := make([]byte, callBytes)
	b[0] = callCode
	if c.Push {
		b[1] |= callPush
	}
	if c.Pull {
		b[1] |= callPull
	}
	binary.LittleEndian.PutUint32(b[4:], c.KV)
	binary.LittleEndian.PutUint64(b[8:], uint64(c.Command))
	binary.LittleEndian.PutUint32(b[16:], c.Count)
	return b
}

// DecodeCall reads a header. The error says what is wrong with the bytes.
func DecodeCall(b []byte) (c Call, err error) {
	if len(b) != callBytes || b[0] != callCode {
		return c, status.New(status.Argument, "a call of a KV has a header of %d bytes; it takes %d", len(b), callBytes)
	}
	if b[1] == 0 || b[1] > callPush|callPull || b[2] != 0 || b[3] != 0 || binary.LittleEndian.Uint32(b[20:]) != 0 {
		return c, status.New(status.Argument, "a call of a KV has the flags %d; they are %d (push), %d (pull), or both", b[1], callPush, callPull)
	}
	return Call{
		KV: binary.LittleEndian.Uint32(b[4:]), Push: b[1]&callPush != 0, Pull: b[1]&callPull != 0,
		Command: int64(binary.LittleEndian.Uint64(b[8:])), Count: binary.LittleEndian.Uint32(b[16:]),
	}, nil
}

package request

import (
	"encoding/binary"

	"github.com/paddlempi/paddlempi/gocore/status"
)

// KVHead is the header of a call of a KV: keys, and rows, for a function of the server's program.
// It travels as the requests for tables do.
type KVHead struct {
	KV         uint32 // its number on the server
	Push, Pull bool   // rows go there; rows come back
	Command    int64  // the trainer's program tells it to the server's
	Count      uint32 // of keys
}

const (
	kvCode  = 'K' // no Op
	kvBytes = 24
	kvPush  = 1
	kvPull  = 2
)

// IsKV tells whether a header is a KVHead.
func IsKV(b []byte) bool { return len(b) > 0 && b[0] == kvCode }

// Encode returns the bytes of h.
func (h *KVHead) Encode() []byte {
	b := make([]byte, kvBytes)
	b[0] = kvCode
	if h.Push {
		b[1] |= kvPush
	}
	if h.Pull {
		b[1] |= kvPull
	}
	binary.LittleEndian.PutUint32(b[4:], h.KV)
	binary.LittleEndian.PutUint64(b[8:], uint64(h.Command))
	binary.LittleEndian.PutUint32(b[16:], h.Count)
	return b
}

// DecodeKV reads a header. The error says what is wrong with the bytes.
func DecodeKV(b []byte) (h KVHead, err error) {
	if len(b) != kvBytes || b[0] != kvCode {
		return h, status.New(status.Argument, "a call of a KV has a header of %d bytes; it takes %d", len(b), kvBytes)
	}
	if b[1] == 0 || b[1] > kvPush|kvPull || b[2] != 0 || b[3] != 0 || binary.LittleEndian.Uint32(b[20:]) != 0 {
		return h, status.New(status.Argument, "a call of a KV has the flags %d; they are %d (push), %d (pull), or both", b[1], kvPush, kvPull)
	}
	return KVHead{
		KV: binary.LittleEndian.Uint32(b[4:]), Push: b[1]&kvPush != 0, Pull: b[1]&kvPull != 0,
		Command: int64(binary.LittleEndian.Uint64(b[8:])), Count: binary.LittleEndian.Uint32(b[16:]),
	}, nil
}

package memory

import (
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/transport"
)

// Codes of requests.
const (
	codeTruncated = 1 + iota // the message is longer than the room
	codeDamaged              // the other process is damaged
	codeDied                 // it has died
	codePacker               // a packer of this process has failed; it knows why
	codeLost                 // the packer of the sender has
)

// errorOf returns the error of a request that is done.
func errorOf(r *transport.Request) error {
	switch r.Code {
	case 0:
		return nil
	case codeTruncated:
		return status.New(status.Truncate, "a message of %d bytes from rank %d with tag %d is longer than the room for it", r.Bytes, r.Source, r.Tag)
	case codeDied:
		return status.New(status.ProcFailed, "the other process has died")
	case codePacker:
		return status.New(status.GroupBroken, "a tensor could not be packed or unpacked")
	case codeLost:
		return status.New(status.GroupBroken, "rank %d could not read the tensor that it sends with tag %d", r.Source, r.Tag)
	}
	return status.New(status.GroupBroken, "the memory that this process shares with another one is damaged: what lies there no process of a job writes")
}

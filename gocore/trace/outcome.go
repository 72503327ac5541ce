package trace

import (
	"bytes"
	"fmt"

	"github.com/paddlempi/paddlempi/gocore/status"
)

// outcomes are the names of the codes with which operations end.
var outcomes = map[status.Code]string{
	status.OK:             "ok",
	status.Argument:       "argument",
	status.Type:           "type",
	status.Timeout:        "timeout",
	status.Interrupted:    "interrupted",
	status.Mismatch:       "mismatch",
	status.Refused:        "refused",
	status.PeerLeft:       "peer_left",
	status.PeerDied:       "peer_died",
	status.GroupBroken:    "group_broken",
	status.GroupDestroyed: "group_destroyed",
	status.MPI:            "mpi",
	status.Truncate:       "truncate",
	status.ProcFailed:     "proc_failed",
	status.Revoked:        "revoked",
	status.Panic:          "panic",
	status.Unsupported:    "unsupported",
	status.NoMemory:       "no_memory",
	status.Cuda:           "cuda",
	status.Reentrant:      "reentrant",
}

func outcome(code uint64) string {
	if name, ok := outcomes[status.Code(code)]; ok && code < 1<<31 {
		return name
	}
	return fmt.Sprintf("error %d", code)
}

func ptr[T any](v T) *T { return &v }

func hex(v uint64) string { return fmt.Sprintf("%016x", v) }

// text returns what a reader may print of a name that ends at its first 0.
func text(b []byte) string {
	b, _, _ = bytes.Cut(b, []byte{0})
	return string(bytes.Map(func(r rune) rune {
		if r <= ' ' || r > '~' {
			return -1
		}
		return r
	}, b))
}

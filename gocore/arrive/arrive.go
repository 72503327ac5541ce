// Package arrive is the first half of every collective: a member announces what
// it is about to do and waits until all others have announced the same.
//
// Only then is MPI called. The deadline, Ctrl-C, the names of missing ranks and
// the check of the signatures all live in that wait, where nothing has been sent
// yet and everything can still be given up (design D4).
//
// There are two ways to arrive: Lines, shared cache lines for a group whose
// members live on one node, and Wire, a small allreduce for one that spans nodes.
package arrive

import "github.com/paddlempi/paddlempi/gocore/status"

// Signature is what every member of a collective must agree on, packed so that
// comparing costs three loads. Word 0 is the operation (code, dtype, reduce op,
// root), word 1 the count, word 2 whatever else must match (a hash of the counts
// of an uneven collective). An all-zero signature is never sent.
type Signature [3]uint64

// Flags a member publishes with its signature. Those that every member set are
// the agreed ones. From Others on the bits belong to whoever announces.
type Flags uint32

const (
	Sync    Flags = 1 << iota // the caller waits inside the call: blocking MPI will do
	Refused                   // this member found its own call wrong and will not run it
	Others                    // the first bit that has no meaning here
)

// State of an arrival.
type State int

const (
	Pending State = iota
	Agreed        // everyone is here with the same signature
	Differ        // everyone is here, but signatures differ; see Diff
	Closed        // a member gave it up before everyone was here; see Closers
)

// Result is valid once the state is Agreed or Differ.
type Result struct {
	All  Flags  // set by every member
	Any  Flags  // set by at least one
	Diff uint32 // bit i: word i of the signatures is not the same everywhere
}

// Entry is what one member announced.
type Entry struct {
	Signature Signature
	Flags     Flags
}

// Arrival is one member's view of its group's arrivals. Announce and Poll are
// called by one goroutine at a time, Announce(k+1) only after Poll reported k.
type Arrival interface {
	// Announce publishes collective seq and polls once, as Poll does.
	Announce(seq uint64, sig *Signature, flags Flags, spin int) (State, Result, error)
	// Poll looks who is there, pausing at most spin times.
	Poll(spin int) (State, Result, error)
	// Entries returns what each member announced for the current collective; valid
	// after Poll returned Differ, or Agreed with Refused among Any.
	Entries() []Entry
	// Missing returns the group ranks known not to have announced the current
	// collective; known is false where this cannot be told from here.
	Missing() (ranks []int, known bool)
	// GiveUp closes collective seq: the current one, or the next when everyone was seen
	// at the current one. It returns false when all members have announced seq. Then
	// some may be running it, and this member has to do so as well.
	GiveUp(seq uint64, reason status.Code) bool
	// Closers returns the reason of each member that is known to have closed collective seq.
	Closers(seq uint64) map[int]status.Code
	// Settled tells whether nothing is under way that MPI still has to do for an arrival
	// that was given up.
	Settled() bool
	// Close gives the shared memory back.
	Close() error
}

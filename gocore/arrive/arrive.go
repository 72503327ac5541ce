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

// Signature is what every member of a collective must agree on, packed so that
// comparing costs three loads. Word 0 is the operation (code, dtype, reduce op,
// root), word 1 the count, word 2 whatever else must match (a hash of the counts
// of an uneven collective). An all-zero signature is never sent.
type Signature [3]uint64

// Flags a member publishes with its signature. Those that every member set are
// the agreed ones.
type Flags uint32

const (
	Sync    Flags = 1 << iota // the caller waits inside the call: blocking MPI will do
	Even                      // all parts of this member's all_to_all have the same length
	Refused                   // this member found its own call wrong and will not run it
)

// State of an arrival.
type State int

const (
	Pending State = iota
	Agreed        // everyone is here with the same signature
	Differ        // everyone is here, but signatures differ; see Diff
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
	// Announce publishes collective seq. It does not wait.
	Announce(seq uint64, sig Signature, flags Flags) error
	// Poll looks who is there, pausing at most spin times.
	Poll(spin int) (State, Result, error)
	// Entries returns what each member announced for the current collective; valid
	// after Poll returned Differ, or Agreed with Refused among Any.
	Entries() []Entry
	// Missing returns the group ranks known not to have announced the current
	// collective; known is false where this cannot be told from here.
	Missing() (ranks []int, known bool)
	// Close gives the shared memory back.
	Close() error
}

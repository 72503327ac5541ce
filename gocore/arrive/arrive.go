package arrive

import (
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// Signature is what all members of a collective must agree on, packed so that a comparison costs
// three loads. Word 0 is the operation (code, dtype, reduce op, root), word 1 the count, word 2
// whatever else must match, for instance a hash of the counts of an uneven collective. A signature
// of zeros is never sent.
type Signature [3]uint64

// Flags are published with a signature. The flags that all members set are the agreed ones. The
// bits from Others on belong to the caller.
type Flags uint32

const (
	Sync    Flags = 1 << iota // the caller waits inside its call, so blocking MPI calls are possible
	Refused                   // this member found its own arguments wrong and will not run the collective
	Ahead                     // this member announced the collective ahead of its turn
	Left                      // this member comes to no collective from this one on: see Wire.Leave
	Summed                    // the payload may be summed up with those of the other members on its node: see Payload.Sum
	Others                    // the first bit without a meaning here
)

// Payload is memory outside the Go heap whose bytes a member tells the others with its signature: the
// payload of a small collective, or where its tensors are. The bytes are copied. The arrival of
// one member drops them.
type Payload struct {
	Data  unsafe.Pointer
	Bytes int64 // at most Room of the arrival
	// Fill, if set, stands for Data, and writes the payload. Only a Wire knows it. It is called once, when the payload is
	// announced.
	Fill func(to unsafe.Pointer)
	// Told are words that all members learn, combined with those of the others by bitwise or: Result.Told. Only a Wire knows them.
	Told [2]uint64
	// Sum says how the payloads of the members on a node become one, if Summed is announced. Only a Wire knows it.
	Sum *NodeSum
}

// NodeSum says how the payloads of the members on a node become one. The leader of the node makes it, if all members there have
// announced the same, and it alone crosses the wire.
type NodeSum struct {
	Bytes int64                                          // of the sum, at most Rooms.Sum
	Run   func(to unsafe.Pointer, from []unsafe.Pointer) // from are the payloads in the order of the members
	// ForOthers says that the members on the node do not get the sum, but each other's payloads. So the sum may be of what the other
	// node needs. Only a group on two nodes has such sums.
	ForOthers bool
}

// Rooms are the most bytes of what members tell with their announcements.
type Rooms struct {
	Payload  int64 // of one
	Gathered int64 // of one, if all members get all payloads as their result
	Alone    int64 // of one, if the others have none
	Sum      int64 // of the sum of the payloads of a node; 0: none is made. Each of these is as long at most, or as Alone
}

// write writes the payload to memory of Bytes bytes, unless it is there already.
func (n *Payload) write(to unsafe.Pointer) {
	switch {
	case n.Fill != nil:
		n.Fill(to)
	case n.Bytes > 0 && n.Data != to:
		mem.Copy(to, n.Data, n.Bytes)
	}
}

// State is the state of an arrival.
type State int

const (
	Pending State = iota
	Agreed        // all members have announced the same signature
	Differ        // all members have announced, but their signatures differ; see Diff
	Closed        // a member gave up before all had announced; see Closers
	Rubbish       // the slot of a member holds what no member writes there; see ControlSlots.Rubbish
)

// Result is valid if the state is Agreed or Differ.
type Result struct {
	All  Flags     // set by all members
	Any  Flags     // set by at least one member
	Diff uint32    // bit i: word i of the signatures differs between members
	Told [2]uint64 // Payload.Told of all members
}

// Entry is what one member has announced.
type Entry struct {
	Signature Signature
	Flags     Flags
}

// Arrival is the arrivals of a group as one of its members sees them. Announce and Poll are called
// by one goroutine at a time, and Announce(k+1) only after Poll has reported k.
type Arrival interface {
	// Announce announces collective seq and polls once, as Poll does.
	Announce(seq uint64, sig *Signature, flags Flags, payload Payload, spin int) (State, Result, error)
	// Poll tests whether all members have announced. It pauses spin times at most.
	Poll(spin int) (State, Result, error)
	// Entries returns what each member has announced for the current collective. It is valid after
	// Poll has returned Differ, or Agreed with Refused in Any.
	Entries() []Entry
	// Missing returns the group ranks that have not announced the current collective. known is
	// false if the arrival cannot tell.
	Missing() (ranks []int, known bool)
	// GiveUp closes collective seq: the current one, the next one if all members have announced the
	// current one, or one that this member has announced ahead. It returns false if all members have
	// announced seq. Some may be running it then, so this member must run it too.
	GiveUp(seq uint64, reason status.Code) bool
	// Closers returns the members that are known to take no part in collective seq, and their reasons. One
	// that takes no part because of another one need not be among them.
	Closers(seq uint64) map[int]status.Code
	// Settled tells whether MPI has completed all requests of arrivals that were given up.
	Settled() bool
	// Close frees the memory of the arrival.
	Close() error
}
